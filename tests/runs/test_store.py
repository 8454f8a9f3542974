"""Finding run directories and reading them, whatever state they are in."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.deaths import BUILD_LED_TO
from tests.irregular import KINDS, replaced, within
from tests.recorded_run import write_run
from zlaunch.cli.runs.why import explained
from zlaunch.cli.views.run_facts import facts
from zlaunch.diagnosis.collect import LauncherEnd, collect_evidence
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.diagnosis.stall import StallEvidence
from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.files import LONGEST_LINE_BYTES, read_from
from zlaunch.launch import rundir_writer
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.owner import is_running, own_identity, owner_process
from zlaunch.rundir.read import conform
from zlaunch.rundir.record import JobRecord
from zlaunch.rundir.run_files import RunFiles
from zlaunch.runs.history import RunHistory
from zlaunch.runs.logs import follow, start_of
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.run import State
from zlaunch.runs.stop import has_stopped, may_have_ended
from zlaunch.runs.store import all_runs, find_run, load_run
from zlaunch.runs.why import verdict_of

OWN: dict[str, Any] = {**own_identity()}


def fake_run(folder: Path, name: str, started: float = 1e9, **job: Any) -> Path:
    root = folder / name
    for part in ("logs", "ranks"):
        (root / part).mkdir(parents=True)
    facts = {"started": started, "script": ["train.py"], "ranks": [{"rank": 0, "host": "w0"}], **OWN, **job}
    (root / "job.json").write_text(json.dumps(facts))
    return root


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    fake_run(folder, "20260101-120000-train", started=1e9)
    fake_run(folder, "20260102-120000-train", started=3e9)
    fake_run(folder, "named", started=2e9)
    return folder


def test_runs_are_listed_by_their_start_and_not_by_their_name(runs: Path) -> None:
    assert [root.name for root in all_runs(runs)] == [
        "20260102-120000-train", "named", "20260101-120000-train",
    ]  # fmt: skip


def test_files_hidden_folders_and_folders_of_other_things_are_no_runs(runs: Path) -> None:
    (runs / "notes.txt").write_text("")
    (runs / ".cache").mkdir()
    (runs / "plots" / "more").mkdir(parents=True)
    assert len(all_runs(runs)) == 3


def test_a_directory_that_nothing_was_written_to_yet_is_listed(runs: Path) -> None:
    (runs / "claimed" / "logs").mkdir(parents=True)
    assert "claimed" in [root.name for root in all_runs(runs)]


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("20260101", "20260101-120000-train"),
        ("named", "named"),
        ("n", "named"),
        ("latest", "20260102-120000-train"),
    ],
)
def test_a_run_is_found_by_its_name_or_its_beginning(word: str, name: str, runs: Path) -> None:
    assert find_run(word, runs) == runs / name


def test_a_run_is_found_by_its_path(runs: Path, tmp_path: Path) -> None:
    elsewhere = fake_run(tmp_path / "else", "where")
    assert find_run(str(elsewhere), runs) == elsewhere


def test_a_whole_name_wins_over_longer_ones(runs: Path) -> None:
    fake_run(runs, "named-2")
    assert find_run("named", runs) == runs / "named"


def test_a_beginning_of_several_names_names_them(runs: Path) -> None:
    with pytest.raises(WrongUsage, match="`20260102-120000-train`, `20260101-120000-train`"):
        find_run("2026", runs)


@pytest.mark.parametrize("word", ["nobody", "no/where", "", "2026/"])
def test_what_is_not_there_is_not_found(word: str, runs: Path) -> None:
    with pytest.raises(InputMissing):
        find_run(word, runs)


def test_where_nothing_was_run_there_is_no_latest_run(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="there is no run in"):
        find_run("latest", tmp_path)


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '"text"', '{"started": 1', "\0\0", "[" * 100_000, "9" * 5000]
)
@pytest.mark.parametrize("file", ["job.json", "how-it-ended.json", "ranks/rank-0.json", "metrics.jsonl"])
def test_a_broken_file_is_a_trouble_and_never_an_error(content: str, file: str, runs: Path) -> None:
    (runs / "named" / file).write_text(content)
    record = load_run(runs / "named")
    assert (record.state is State.BROKEN) == (file == "job.json")
    assert any(Path(file).name in trouble for trouble in record.troubles) or file == "metrics.jsonl"


def test_a_stall_is_read_back_as_it_was_written(runs: Path) -> None:
    stall = StallEvidence(61.5, 7, {0: "train.py:9 main", 1: "data.py:4 load"}, (1,), ended_job=False)
    rundir_writer.write_outcome(RunDir(runs / "named"), Outcome("stopped", 130, -2), time.time(), stall)
    assert load_run(runs / "named").stall == stall


def test_a_part_of_a_run_that_was_read_is_not_read_again(runs: Path) -> None:
    run = load_run(runs / "named")
    before = (run.state, run.heartbeats, run.troubles)
    shutil.rmtree(runs / "named")
    assert (run.state, run.heartbeats, run.troubles) == before


def test_a_file_that_cannot_be_read_says_why(runs: Path) -> None:
    (runs / "named" / "how-it-ended.json").mkdir()
    assert "it is a directory" in str(RunFiles(runs / "named").troubles)


def test_a_pulse_may_have_trailing_spaces_and_numbers_that_are_none(runs: Path) -> None:
    (runs / "named" / "ranks" / "rank-0.pulse.json").write_text('{"step": 3, "loss": NaN}' + " " * 200)
    assert load_run(runs / "named").step == 3


def test_the_files_of_a_rank_are_told_apart_by_their_kind(runs: Path) -> None:
    for kind in ("", ".pulse", ".sample", ".error"):
        (runs / "named" / "ranks" / f"rank-12{kind}.json").write_text(json.dumps({"kind": kind}))
    found = RunFiles(runs / "named")
    assert [str(files[12]) for files in (found.ranks, found.heartbeats, found.samples, found.errors)] == [
        "{'kind': ''}",
        "{'kind': '.pulse'}",
        "{'kind': '.sample'}",
        "{'kind': '.error'}",
    ]


def test_this_very_process_works() -> None:
    assert is_running(conform(OWN, JobRecord)) is True


@pytest.mark.parametrize(
    "other",
    [{"zlaunch_started": OWN["zlaunch_started"] - 100}, {"zlaunch_pid": 1 << 22}, {"zlaunch_pid": -1}],
)
def test_another_process_is_not_mistaken_for_the_runs_own(other: dict[str, Any]) -> None:
    job = conform({**OWN, **other}, JobRecord)
    assert owner_process(job) is None
    assert is_running(job) is False


@pytest.mark.parametrize("name", ["host", "pid_namespace", "boot"])
def test_what_works_on_another_host_or_in_another_container_cannot_be_seen(name: str) -> None:
    job = conform({**OWN, "started": time.time(), name: "elsewhere"}, JobRecord)
    assert is_running(job) is None
    assert owner_process(job) is None


def test_a_run_from_before_this_host_was_booted_is_not_running() -> None:
    assert is_running(conform({**OWN, "started": 1.0, "boot": "earlier"}, JobRecord)) is False


def test_a_run_of_a_version_that_recorded_the_host_alone_is_seen() -> None:
    job = {name: value for name, value in OWN.items() if name not in ("boot", "pid_namespace")}
    assert is_running(conform(job, JobRecord)) is True


def tail_of(log: Path, count: int) -> bytes:
    return b"".join(read_from(log, start_of(log, count)))


@given(
    st.lists(st.sampled_from([b"", b"x", b"y" * 300_000, b"z" * 262_143]), max_size=8),
    st.booleans(),
    st.integers(0, 9),
)
def test_the_last_lines_are_those_that_python_reads(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], is_ended: bool, count: int
) -> None:
    log = tmp_path_factory.getbasetemp() / "log"
    log.write_bytes(b"\n".join(lines) + b"\n" * is_ended)
    with log.open("rb") as file:
        expected = file.readlines()
    assert tail_of(log, count) == b"".join(expected[len(expected) - min(count, len(expected)) :])


def test_of_a_line_as_long_as_a_disk_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(1 << 40)  # without blocks on the disk; reading it would take an hour
    assert start_of(log, 5) == (1 << 40) - LONGEST_LINE_BYTES


def test_the_last_lines_of_a_log_are_found_however_long_it_is(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"%06d %s\n" % (number, b"x" * 100) for number in range(3000)) + b"rest")
    assert [line[:6] for line in tail_of(log, 3).splitlines()] == [b"002998", b"002999", b"rest"]


def test_a_last_line_longer_than_what_is_read_at_once_is_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"a" * 100_000 + b"\n" + b"b" * 100_000 + b"\n")
    assert tail_of(log, 1) == b"b" * 100_000 + b"\n"


@pytest.mark.parametrize("tail", [0, 1, 2, 5])
def test_the_last_lines_are_the_end_of_the_whole(tail: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\r50%\r100%\n\nfour\n")
    lines = [b"one\n", b"two\r50%\r100%\n", b"\n", b"four\n"]
    assert tail_of(log, tail) == b"".join(lines[max(0, 4 - tail) :])


def test_following_gives_every_byte_once_and_ends_with_the_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"before|")
    pieces = iter([b"first|", b"last"])

    def is_over() -> bool:
        piece = next(pieces, b"")
        with log.open("ab") as file:
            file.write(piece)
        return piece == b"last"

    began = time.monotonic()
    assert b"".join(follow(log, 7, is_over)) == b"first|last"
    assert time.monotonic() - began < 5


def leave(root: Path, how: str | None, returncode: int, **files: dict[str, Any]) -> None:
    """Leave an ending without a verdict, and files of ranks: `_0`, `_1_error`."""
    if how is not None:
        (root / "how-it-ended.json").write_text(json.dumps({"how": how, "returncode": returncode}))
    for name, members in files.items():
        _, rank, *kind = name.split("_")
        (root / "ranks" / ".".join([f"rank-{rank}", *kind, "json"])).write_text(json.dumps(members))


TWO = [{"rank": 0, "host": "w0"}, {"rank": 1, "host": "w1"}]
GONE: dict[str, Any] = {"zlaunch_pid": 1 << 22, "ranks": TWO}


@pytest.mark.parametrize("how", ["failed", None])
def test_a_verdict_that_was_not_written_is_found_again_with_all_that_is_known_of_deaths(
    how: str | None, tmp_path: Path
) -> None:
    root = fake_run(tmp_path, "run", **GONE)
    leave(
        root, how, 1,
        _0={"rank": 0, "host": "w0", "returncode": -15, "stopped_by": 15, "ended": 9.0},
        _1={"rank": 1, "host": "w1", "returncode": 1, "stopped_by": None, "ended": 8.0},
        _1_error={"type": "OSError", "message": "[Errno 28] No space left on device", "traceback": ""},
    )  # fmt: skip
    record = load_run(root)
    verdict = verdict_of(record)
    assert record.state is (State.LOST if how is None else State.FAILED)
    assert verdict is not None
    assert (verdict.code, verdict.rank, verdict.host) == ("disk-full", 1, "w1")
    assert record.cause == verdict.cause


def test_a_stop_without_a_verdict_names_its_signal(tmp_path: Path) -> None:
    root = fake_run(tmp_path, "run", **GONE)
    leave(root, "stopped", -2)
    assert "stopped the job with SIGINT" in str(load_run(root).cause)


def test_a_lost_run_whose_ranks_were_ended_after_it_was_killed(tmp_path: Path) -> None:
    root = fake_run(tmp_path, "run", **GONE)
    leave(root, None, 0, _0={"rank": 0, "host": "w0", "returncode": -15, "stopped_by": 15, "ended": 9.0})
    record = load_run(root)
    assert "without recording an end: it was killed" in str(record.cause)
    assert "1 of 2 ranks recorded an end" in str(verdict_of(record))


@pytest.mark.parametrize(
    ("ranks", "code"),
    [({}, "op-build-failed"), ({"_0": {"rank": 0, "host": "w0", "pid": 9}}, "lost-without-verdict")],
)
def test_a_lost_run_whose_build_had_failed_before_all_ranks_says_so(
    ranks: dict[str, Any], code: str, tmp_path: Path
) -> None:
    root = fake_run(tmp_path, "run", **GONE)
    (root / "logs" / "build-cpu_adam.log").write_text(f"[1/3] c++\n{BUILD_LED_TO}")
    leave(root, None, 0, **ranks)
    verdict = verdict_of(load_run(root))
    assert verdict is not None
    assert verdict.code == code


@pytest.mark.parametrize("odd", [{"returncode": "1"}, {"returncode": 1, "ended": "x"}, {"returncode": [1]}])
def test_ranks_that_say_what_no_rank_says_are_never_an_error(odd: dict[str, Any], tmp_path: Path) -> None:
    root = fake_run(tmp_path, "run", **GONE)
    leave(root, "failed", 1, _0={"rank": 0, **odd}, _1={"rank": 1, **odd}, _0_pulse={"step": "x"})
    assert load_run(root).cause


def test_whoever_follows_a_run_on_another_host_is_done_when_it_writes_no_more(tmp_path: Path) -> None:
    root = fake_run(tmp_path, "run", host="elsewhere")
    for path in (*root.iterdir(), *(root / "ranks").iterdir()):
        os.utime(path, (1e9, 1e9))
    (root / "how-it-ended.json").mkdir()  # a whole look is due; it cannot be read
    os.utime(root / "how-it-ended.json", (1e9, 1e9))
    assert load_run(root).state is State.UNKNOWN
    assert has_stopped(root)()


def test_a_run_that_goes_on_is_looked_at_once_a_second_until_it_writes_its_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    root = fake_run(tmp_path, "run")
    is_due = may_have_ended(root)
    asked = []
    for now[0] in (0.0, 0.2, 0.9, 1.0, 1.2, 1.9, 2.0):
        asked.append(is_due())
    assert asked == [False, False, False, True, False, False, True]
    leave(root, "finished", 0)
    assert is_due()


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_stands_in_the_place_of_a_file_of_a_run_nobody_waits_for_it(
    kind: str, tmp_path: Path
) -> None:
    root = write_run(tmp_path / "run", 5)
    (root / "logs" / "rank-0.log").write_text("x\n")
    for name in ("stop", "launcher.log"):
        (root / name).write_text("15 zlaunch")
    for file in [file for file in root.rglob("*") if file.is_file()]:
        with replaced(file, kind), within(10):
            all_runs(tmp_path)
            run = load_run(root)
            run.read_all()
            compare_with_forecast(run)
            collect_evidence(run, LauncherEnd(1))
            RunHistory(root).update()
            assert [*facts(run), *explained(run)]
