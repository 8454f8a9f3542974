"""The law of everything that is shown: it has no secret, whatever variables, commands, configs and runs have."""

import io
import json
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from zlaunch import console, secrets
from zlaunch.cli.config.diff import diff
from zlaunch.cli.runs.list import list_runs
from zlaunch.cli.runs.report import report
from zlaunch.cli.runs.show import show
from zlaunch.cli.runs.why import why
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.findings import as_github, as_json, as_sarif, as_text
from zlaunch.config.report import ReportOptions, inspect_config
from zlaunch.diagnosis.log_text import clip
from zlaunch.diagnosis.render import verdict_lines
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.errors import Finding, Place, Refused
from zlaunch.hosts.cluster.rendezvous import MemberFailed, Rendezvous
from zlaunch.hosts.cluster.started_by import Member
from zlaunch.hosts.machine.ports import free_port
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.write import write_record
from zlaunch.runs.store import find_run, load_run

values = st.from_regex(r"[a-z][A-Z][0-9][a-zA-Z0-9_+/=.!$%-]{4,90}[0-9]|[a-z]{9}", fullmatch=True)
"""What people take for passwords, and services for tokens."""
names = st.sampled_from(
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "MY_PAT",
        "GITHUBTOKEN",
        "X-Api-Key",
    ]
)
options = st.sampled_from(
    ["--hub_token", "--api-key", "--wandb.api_key", "--password", "--auth-token", "--ssh_key"]
)
FORMS: Mapping[str, Callable[[str, str, str], list[str]]] = {
    "two words": lambda _name, option, value: [option, value],
    "one word": lambda _name, option, value: [f"{option}={value}"],
    "several values": lambda _name, _option, value: ["--api_keys", "first1234", value],
    "header": lambda _name, _option, value: [f"--header=Authorization: Bearer {value}"],
    "other header": lambda _name, _option, value: ["-H", f"X-Api-Key: {value}"],
    "variable": lambda name, _option, value: ["--env", f"{name}={value}"],
    "override": lambda _name, _option, value: [f"+hub.token={value}"],
    "JSON": lambda name, _option, value: ["--extra", json.dumps({name: value})],
    "URL": lambda _name, _option, value: [f"--url=https://me:{value.replace('/', '')}@host.example/x"],
    "query": lambda _name, _option, value: ["--url", f"https://host.example/x?a=1&token={value}&b=2"],
    "known token": lambda _name, _option, value: ["hf_" + "".join(filter(str.isalnum, value)) * 4],
}


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    with mock.patch.object(secrets, "_KNOWN", secrets._Known()), mock.patch.object(secrets, "_PRINTS", []):
        yield


def shown(view: Callable[[], object]) -> str:
    """Return all that a view prints."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), suppress(typer.Exit):
        view()
    return out.getvalue() + err.getvalue()


def core(words: list[str], value: str) -> str:
    """The part of a secret that no view changes: without what a URL cannot have."""
    return next(
        text
        for text in (value, value.replace("/", ""), "".join(filter(str.isalnum, value)))
        if any(text in word for word in words)
    )


@given(st.sampled_from(sorted(FORMS)), names, options, values)
def test_a_command_is_shown_without_its_secrets(form: str, name: str, option: str, value: str) -> None:
    words = FORMS[form](name, option, value)
    secrets.remember_arguments(words)  # as those of the command line are
    for view in (
        lambda: console.data(shlex.join(words)),
        lambda: console.say(*console.paragraph(f"`zlaunch train x.py -- {shlex.join(words)}` fails")),
        lambda: console.data(*console.table([("command", shlex.join(words))])),
        lambda: console.data(to_json({"command": words, "text": shlex.join(words)})),
    ):
        assert core(words, value) not in shown(view)


@given(names, values)
def test_what_was_secret_where_it_was_read_is_shown_nowhere(name: str, value: str) -> None:
    secrets.remember({name: value})
    quoted = shlex.quote(value)
    for text in (
        f"ValueError: no user {value}",
        f"cannot open '{value}'",
        f"x={quoted}",
        json.dumps([value]),
    ):
        assert value not in shown(lambda text=text: console.data(text))  # type: ignore[misc]
        assert value not in shown(lambda text=text: console.data(to_json({"cause": text})))  # type: ignore[misc]


@given(st.dictionaries(st.sampled_from(["api_key", "hub_token", "db_password"]), values, min_size=1), values)
def test_findings_of_a_config_are_shown_without_its_secrets(
    tmp_path_factory: pytest.TempPathFactory, section: dict[str, str], value: str
) -> None:
    file = tmp_path_factory.mktemp("config") / "ds.json"
    config: dict[str, Any] = {
        "comet": {"enabled": "x", **section},
        "train_batch_size": value,
        "zero": section,
    }
    file.write_text(json.dumps(config))
    reports = [inspect_config(str(file), ReportOptions())]
    for view in (as_text, as_json, as_github, as_sarif):
        text = shown(lambda view=view: view(reports, False))  # type: ignore[misc]
        assert not [secret for secret in section.values() if secret in text]


def test_a_difference_of_two_configs_is_shown_without_secrets_however_short(tmp_path: Path) -> None:
    for name, key in (("a", "hunter"), ("b", "pike")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"comet": {"enabled": True, "api_key": key}}))
    names = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    text = shown(lambda: diff(*names)) + shown(lambda: diff(*names, as_json=True))
    assert text.count(secrets.HIDDEN) == 4
    assert "hunter" not in text
    assert "pike" not in text


def test_what_two_nodes_have_of_a_secret_is_not_told() -> None:
    port = free_port()
    leader = Rendezvous(Member(0, 2, "127.0.0.1", port, "a test"), 5.0, lambda _: None, "")
    member = Rendezvous(Member(1, 2, "127.0.0.1", port, "a test"), 5.0, lambda _: None, "")
    (meeting := threading.Thread(target=leader._gather, args=(5.0,), daemon=True)).start()
    member._connect(5.0)
    meeting.join()
    member.tell({"parts": {"ds_config": {"comet": {"api_key": "hunter"}}}})
    with pytest.raises(MemberFailed) as failed:
        leader.compare_plans({"ds_config": {"comet": {"api_key": "pike"}}})
    assert "`comet.api_key`: `(hidden)` and `(hidden)`" in failed.value.message


def poisoned_run(root: Path, words: list[str], value: str) -> None:
    """Write a run whose command, variables, ds_config, exception and verdict have a secret."""
    (root / "ranks").mkdir(parents=True)
    (root / "logs").mkdir()
    cause = f"the script raised a ValueError: 401 for {value}"
    files: dict[str, Any] = {
        "job.json": {
            "asked": ["zlaunch", "train", "x.py", "--", *words], "script": ["x.py", *words], "argv": ["x.py", *words],
            "environment": {"HUB_TOKEN": value}, "ranks": [{"rank": 0, "host": "a", "device": 0}],
            "interface": "deepspeed", "started": 1e9, "zlaunch_pid": 1, "host": "a", "stage": 2,
        },
        "ds_config.json": {"comet": {"api_key": value}},
        "how-it-ended.json": {
            "how": "failed", "exit_status": 1,
            "verdict": {"code": "script-raised", "cause": cause, "rank": 0, "facts": [f"{value}!"], "advice": []},
        },
        "ranks/rank-0.pulse.json": {"step": 1, "phase": "step"},
        "ranks/rank-0.program.json": {"engine": {"stage": 2, "ds_config": {"comet": {"api_key": f"{value}2"}}}},
        "ranks/rank-0.error.json": {"kind": "ValueError", "message": value, "traceback": value},
    }  # fmt: skip
    for name, members in files.items():
        (root / name).write_text(json.dumps(members))


@settings(max_examples=20, phases=[Phase.generate])
@given(st.sampled_from(sorted(FORMS)), names, options, values)
def test_a_run_is_shown_without_its_secrets(
    tmp_path_factory: pytest.TempPathFactory, form: str, name: str, option: str, value: str
) -> None:
    folder, words = tmp_path_factory.mktemp("runs"), FORMS[form](name, option, value)
    poisoned_run(folder / "20260101-120000-x", words, value)
    text = ""
    for is_json in (False, True):
        html = None if is_json else "-"
        text += shown(partial(show, "latest", folder, as_json=is_json))
        text += shown(partial(why, "latest", folder, as_json=is_json))
        text += shown(partial(list_runs, folder, 20, as_json=is_json))
        text += shown(partial(report, "latest", html, folder, as_json=is_json))
    assert "401" in text
    assert value not in text
    assert core(words, value) not in text


@settings(max_examples=20, phases=[Phase.generate])
@given(names, st.from_regex(r"[a-z][A-Z][0-9][a-zA-Z0-9_+/=.!$%-]{8,60}[0-9]", fullmatch=True))
def test_what_a_run_knew_is_hidden_where_it_is_not_known_any_more(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: str
) -> None:
    root = tmp_path_factory.mktemp("runs") / "20260101-120000-x"
    (root / "logs").mkdir(parents=True)
    (root / "job.json").write_text('{"started": 1.0}')
    secrets.remember({name: value})
    write_record(RunDir(root).secrets, secrets.fingerprints()._asdict())
    secrets._KNOWN.values.clear()
    find_run("latest", root.parent)
    text = f"connecting with {value}, <{value}>, '{value}.'; me:{value}@host and 0123456789abcdef"
    assert value not in secrets.hide_in_text(text)
    assert "0123456789abcdef" in secrets.hide_in_text(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"salt": "no", "digests": {"9": ["a"]}}',
        '{"salt": "00", "digests": {"x": []}}',
        '{"salt": "%s", "digests": {"14": ["a"]}}' % ("00" * 65),
        '{"salt": "00", "digests": {"99999999999": ["a"]}}',
        "{",
    ],
)
def test_a_damaged_record_of_secrets_keeps_no_run_from_being_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "job.json").write_text('{"started": 1.0}')
    (tmp_path / "a" / "secrets.json").write_text(text)
    assert find_run("a", tmp_path) == tmp_path / "a"
    assert secrets.hide_in_text("step 0123456789abcd") == "step 0123456789abcd"


def test_a_run_that_is_listed_hides_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text('{"started": 1.0}')
    secrets.remember({"HF_TOKEN": "aB3dE5gH7jK9m"})
    write_record(RunDir(tmp_path).secrets, secrets.fingerprints()._asdict())
    secrets._KNOWN.values.clear()
    load_run(tmp_path)
    assert secrets.hide_in_text("401 for aB3dE5gH7jK9m") == "401 for (hidden)"


def test_few_words_of_a_log_are_hashed_slowly() -> None:
    secrets.remember({"HF_TOKEN": "aB3dE5gH7jK9m"})
    prints = secrets.fingerprints()
    words = " ".join(f"id-{number:010}" for number in range(2000))
    with mock.patch.object(secrets, "_digest", return_value="") as slow:
        prints.hide(words, str)
    assert slow.call_count < 20


def test_a_short_secret_has_no_fingerprint() -> None:
    secrets.remember({"HF_TOKEN": "aB3dE5gH7jK"})
    assert secrets.fingerprints().digests == {}


def test_a_long_secret_is_hidden_before_it_is_clipped_or_broken_at_a_hyphen() -> None:
    secrets.remember({"HF_TOKEN": (value := "Ab1-" * 40 + "z")})
    cause = f"the script raised: 401 for {value}"
    lines = verdict_lines(Verdict("script-raised", cause, facts=(value,)), "a failed", 80)
    assert "Ab1" not in "".join(lines) + clip(cause, 80)


def test_the_line_of_a_file_is_shown_with_its_mark_in_place() -> None:
    line = '"api_key": "nobodymayknow", "x": 1'
    finding = Finding("code", "message", place=Place("ds.json", 1, line.index('"x"') + 1, line, 3))
    text = shown(lambda: console.show_error(Refused([finding])))
    assert "nobodymayknow" not in text
    shown_line, mark = text.splitlines()[2:4]
    assert mark.index("^^^") == shown_line.index('"x"')
