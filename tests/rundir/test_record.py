"""Records: what is written can be read, and what is damaged, foreign or older too."""

import json
import os
import shlex
import subprocess
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from socket import gethostname
from types import UnionType
from typing import Any, Union, get_args, get_origin, is_typeddict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import facts_of
from tests.making import json_objects, script
from tests.running import Program
from zlaunch.cli.views.run import members
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.job.spec import JobSpec
from zlaunch.launch import rundir_writer
from zlaunch.launch.plan_record import moved_plan, recorded_job
from zlaunch.rundir import record
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import parse_record, read_record
from zlaunch.rundir.record import JobRecord
from zlaunch.rundir.run_files import RunFiles
from zlaunch.rundir.write import VERSION, record_text
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.run import Run
from zlaunch.runs.stop import stop_run
from zlaunch.runs.store import load_run
from zlaunch.runs.why import verdict_of

OLD = Path(__file__).parent / "old_runs"
"""Runs of zlaunch 0.1.0 before records had a version, and what `zlaunch runs` said of them then.

The folder is written as `/folder`, the host as `HOST`, the environment as `/venv`.
"""
LAST_WRITTEN = 1795359770.0
SAID: dict[str, Any] = json.loads((OLD / "said.json").read_text())
GIVEN = facts_of(JobSpec(Path("train.py")), script())
KINDS: list[Any] = [kind for kind in vars(record).values() if is_typeddict(kind)]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The runs as they would be in this folder, on this host, in this environment."""
    places = {"/folder": tmp_path, '"HOST"': f'"{gethostname()}"', "/venv/bin": sysconfig.get_path("scripts")}
    for file in (file for file in OLD.rglob("*") if file.is_file()):
        text = file.read_text()
        for before, now in places.items():
            text = text.replace(before, str(now))
        copy = tmp_path / "runs" / file.relative_to(OLD)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text)
        os.utime(copy, (0, LAST_WRITTEN))
    (tmp_path / "runs" / "train.py.txt").rename(tmp_path / "train.py")
    return tmp_path / "runs"


def said_of(run: Run) -> dict[str, Any]:
    """Say of a run what `runs why --json` and the memory of `runs show --json` do."""
    verdict, stall = verdict_of(run), run.stall
    kinds: dict[str, Mapping[int, object]] = {
        "error": run.errors, "pulse": run.heartbeats, "record": run.ranks, "sample": run.samples,
    }  # fmt: skip
    said: dict[str, Any] = {
        **members(run),
        "verdict": verdict and asdict(verdict),
        "stall": stall and asdict(stall),
        "memory": asdict(compare_with_forecast(run)),
        "rank_files": {rank: [kind for kind, found in kinds.items() if rank in found] for rank in run.ranks},
    }
    if verdict is not None:
        said["verdict"]["facts"] = [fact for fact in verdict.facts if "last update" not in fact]
        del said["verdict"]["when"]  # was not told then
    return said


@pytest.mark.parametrize("name", SAID)
def test_a_run_of_the_release_before_is_told_as_it_was_then(name: str, old: Path) -> None:
    said = json.dumps(said_of(load_run(old / name))).replace(str(old.parent), "/folder")
    assert json.loads(said.replace(f'"{gethostname()}"', '"HOST"')) == SAID[name]


@pytest.mark.parametrize("name", SAID)
def test_a_run_of_the_release_before_can_be_repeated(name: str, old: Path) -> None:
    files = RunFiles(old / name)
    again = moved_plan(files, replace(GIVEN, layout=RunDir(old / "again")))
    ds_config = str(old / "again" / "ds_config.json")
    assert again.script_words == (*files.job["script"][:-1], ds_config)
    assert again.values.config() == files.config
    spec = recorded_job(files)
    assert (list(spec.args.words), spec.run_options.policy.max_restarts) == (
        files.job["spec"]["script_args"],
        0,
    )


@pytest.mark.job
def test_a_run_sh_with_the_old_name_of_the_rank_program_runs_and_can_be_stopped(old: Path) -> None:
    """The script imports `zlaunch.report`, an old name too."""
    root = old / "lost"
    job = read_record(root / "job.json", JobRecord)
    assert "zlaunch.rank" in job["argv"]
    (root / "job.json").write_text(json.dumps({**job, "host": "elsewhere"}))
    for file in (root / "ranks").iterdir():
        file.unlink()
    script = (root / "run.sh").read_text().splitlines()
    (root / "run.sh").write_text("\n".join([*script[:-1], shlex.join(job["argv"])]))
    with Program(["/bin/sh", root / "run.sh"], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as run:
        until = time.monotonic() + 120
        while [one.get("step") for one in RunFiles(root).heartbeats.values()] != [4, 4]:
            assert time.monotonic() < until
            assert run.poll() is None
            time.sleep(0.1)
        stop_run(load_run(root))
        run.wait(30)
    ranks = RunFiles(root).ranks.values()
    assert [rank["stopped_by"] for rank in ranks] == [15, 15]


def test_the_old_name_of_report_is_the_same_function() -> None:
    from zlaunch import report as old_name
    from zlaunch.worker import report

    assert old_name.report is report.report


def test_every_record_that_is_written_has_its_version(old: Path) -> None:
    run_dir = RunDir(old / "failed")
    rundir_writer.append_metrics(run_dir, {"step": 1})
    rundir_writer.write_outcome(run_dir, Outcome("failed", 1, 1), time.time())
    written = [
        json.loads(run_dir.ending.read_text()),
        json.loads(run_dir.metrics.read_text().splitlines()[-1]),
    ]
    assert [one["version"] for one in written] == [VERSION, VERSION]
    assert "version" not in RunFiles(run_dir.root).ending


def test_a_ds_config_keeps_a_key_that_is_named_version(old: Path) -> None:
    (old / "failed" / "ds_config.json").write_text('{"version": 3}')
    assert RunFiles(old / "failed").config == {"version": 3}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def has_type(value: Any, hint: Any) -> bool:
    """Check a value against a type, without a line of the reader's."""
    args, origin = get_args(hint), get_origin(hint)
    if origin in (Union, UnionType):
        return any(has_type(value, one) for one in args)
    if is_typeddict(hint) or origin is dict:
        known, other = ({}, args[1]) if origin is dict else (hint.__annotations__, object)
        return isinstance(value, dict) and all(has_type(value[one], known.get(one, other)) for one in value)
    if origin is list:
        return isinstance(value, list) and all(has_type(one, args[0]) for one in value)
    if hint is object or isinstance(value, bool):
        return hint in (object, bool)
    is_bounded = isinstance(value, int) or hint is record.Finite
    kinds = {float: (int, float), record.Finite: (int, float)}.get(hint, hint)
    return isinstance(value, kinds) and (isinstance(value, str | None) or not is_bounded or abs(value) < 1e18)


@given(st.sampled_from(KINDS), st.data())
def test_whatever_a_file_holds_a_record_has_its_types(kind: Any, data: st.DataObject) -> None:
    names = st.sampled_from([*kind.__annotations__, "else"])
    found = data.draw(st.dictionaries(names, json_values, max_size=4) | json_objects)
    read = parse_record(json.dumps(found), kind)
    assert has_type(read, kind)
    right = {
        name: one for name, one in found.items() if has_type(one, kind.__annotations__.get(name, object))
    }
    same = {name: read.get(name, "missing") for name in right}
    assert json.dumps(same) == json.dumps(right)


@pytest.mark.parametrize("kind", KINDS)
def test_every_member_of_every_record_can_be_checked(kind: Any) -> None:
    for name in kind.__annotations__:
        parse_record(json.dumps({name: [{"a": 1}]}), kind)


@given(st.sampled_from(KINDS), st.integers(0, 60))
def test_a_half_written_record_is_empty(kind: Any, length: int) -> None:
    whole = record_text({"host": "w0", "step": 3, "ranks": [{"rank": 0}]})
    assert parse_record(whole[: min(length, len(whole) - 3)], kind) == {}
