"""What a run has left, however little of it there is."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.deaths import GLOO_CLOSED
from zlaunch.diagnosis.collect import LauncherEnd, collect_evidence, tail
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.evidence import Evidence
from zlaunch.diagnosis.outcome import judge_outcome
from zlaunch.rundir.printed_records import printed_line
from zlaunch.rundir.read import conform, read_record
from zlaunch.rundir.record import HeartbeatRecord, RankRecord
from zlaunch.rundir.run_files import RunFiles

FILES = ("job.json", "forecast.json", "ds_config.json", "ranks/rank-0.json", "ranks/rank-0.pulse.json",
         "ranks/rank-0.error.json", "ranks/rank-0.sample.json", "logs/rank-0.log", "logs/launcher.log",
         "ranks/rank-0.stacks")  # fmt: skip
JOB = {"ranks": [{"rank": 0, "host": "w0"}, {"rank": 1, "host": "w1"}], "stage": 2, "script": ["x.py"]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "ranks").mkdir()
    (folder / "logs").mkdir()
    return folder


@given(st.dictionaries(st.sampled_from(FILES[1:]), st.binary(max_size=40)))
def test_files_that_are_missing_or_half_written_leave_the_rest_known(
    root: Path, found: dict[str, bytes]
) -> None:
    for name in FILES:
        (root / name).unlink(missing_ok=True)
    (root / "job.json").write_text(json.dumps(JOB))
    for name, data in found.items():
        (root / name).write_bytes(data)
    evidence = collect_evidence(RunFiles(root), LauncherEnd(1))
    assert [rank.rank for rank in evidence.ranks] == [0, 1]
    assert [*evidence.machines] == ["w0", "w1"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", "\0" * 1024])
def test_a_run_without_a_readable_record_has_no_ranks(text: str, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(text)
    assert collect_evidence(RunFiles(tmp_path), LauncherEnd(1)).ranks == ()


@pytest.mark.parametrize("name", ["pulse", "sample", "error"])
@pytest.mark.parametrize(
    "value", [{"step": None, "machine": None}, {"machine": {}, "phase": None}, {"type": None}]
)
def test_facts_may_be_null(name: str, value: dict[str, None], tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    (tmp_path / "ranks" / f"rank-0.{name}.json").write_text(json.dumps(value))
    assert collect_evidence(RunFiles(tmp_path), LauncherEnd(1)).ranks[0].step == 0


@pytest.mark.parametrize(
    ("argv", "is_on"),
    [
        (["--activation_checkpointing"], True),
        (["--gradient_checkpointing"], True),
        (["--activation_checkpointing", "False"], False),
        ([], False),
    ],
)
def test_activation_checkpointing_is_known_by_both_its_names(
    argv: list[str], is_on: bool, tmp_path: Path
) -> None:
    (tmp_path / "x.py").write_text("from transformers import Trainer\n")
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "script": [str(tmp_path / "x.py"), *argv]}))
    assert collect_evidence(RunFiles(tmp_path), LauncherEnd(1)).job.gradient_checkpointing is is_on


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_model_of_transformers_says_itself_whether_it_recomputes(recomputes: bool, tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "x.py").write_text("net.gradient_checkpointing_enable()\n")
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "script": [str(tmp_path / "x.py")]}))
    engine = {"engine": {"gradient_checkpointing": recomputes}}
    (tmp_path / "ranks" / "rank-0.program.json").write_text(json.dumps(engine))
    assert collect_evidence(RunFiles(tmp_path), LauncherEnd(1)).job.gradient_checkpointing is recomputes


@pytest.mark.parametrize(("host", "is_measured"), [(socket.gethostname(), True), ("elsewhere", False)])
def test_the_disk_of_the_checkpoints_is_measured_on_the_host_of_the_ranks(
    host: str, is_measured: bool, tmp_path: Path
) -> None:
    words = ["train.py", "--output_dir", str(tmp_path)]
    (tmp_path / "job.json").write_text(json.dumps({"ranks": [{"rank": 0, "host": host}], "script": words}))
    disk = collect_evidence(RunFiles(tmp_path), LauncherEnd(1)).save_disk
    assert (disk is not None and disk.directory == tmp_path) == is_measured


def test_spaces_after_a_pulse_are_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "pulse").write_text('{"step": 3, "loss": NaN}' + " " * 900)
    assert read_record(tmp_path / "pulse", HeartbeatRecord)["step"] == 3


def test_the_end_of_a_log_is_read_and_never_what_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes("µ".encode() * 1000 + b"end")
    assert tail(tmp_path / "log", 5).endswith("µend")
    assert tail(tmp_path / "log", 500, after=2000) == "end"
    assert tail(tmp_path / "log", 500, after=4000) == ""
    assert tail(tmp_path / "none") == tail(tmp_path) == ""


SIGNALLED = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15\n"
FAILED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"


@pytest.mark.parametrize(
    ("stops", "returncode", "said", "number"),
    [
        ((15, 15), 1, SIGNALLED, 15),
        ((15, 15), 1, FAILED, 15),
        ((2, 15), 1, FAILED, 2),
        ((15, 15), -15, "", 15),
        ((15, 15), 241, "", 15),
        ((15, 15), 1, "RuntimeError: the rendezvous failed\n", None),
        ((15, 15), -9, "", None),
        ((15, None), 1, FAILED, None),
        ((15, 15), 1, "[INFO] [launch.py:290:sigkill_handler] Main process received SIGINT, exiting\n", 2),
        ((), -15, "", 15),
        ((), 143, "", None),
        ((), 255, "", None),
    ],
)
def test_a_signal_to_the_launcher_or_a_rank_stopped_the_job_unless_a_rank_ended_by_itself(
    stops: tuple[int | None, ...], returncode: int, said: str, number: int | None, tmp_path: Path
) -> None:
    for folder in ("ranks", "logs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    (tmp_path / "logs" / "launcher.log").write_text(said)
    for rank, stopped_by in enumerate(stops):
        record = {"rank": rank, "returncode": -15 if stopped_by else 1, "stopped_by": stopped_by}
        (tmp_path / "ranks" / f"rank-{rank}.json").write_text(json.dumps(record))
    assert collect_evidence(RunFiles(tmp_path), LauncherEnd(returncode)).stopped_by == number


def test_the_ranks_of_a_lost_host_are_known_by_its_number_whatever_it_calls_itself(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    for rank in (0, 1):
        (tmp_path / "ranks" / f"rank-{rank}.json").write_text('{"host": "localhost"}')
    lost = {"node": 1, "host": "w1", "lost": "`ssh` killed by SIGKILL", "ended": 1.0}
    (tmp_path / "ranks" / "node-1.json").write_text(json.dumps(lost))
    verdict = diagnose(collect_evidence(RunFiles(tmp_path), LauncherEnd(1)))
    assert (verdict.code, verdict.rank, verdict.host) == ("host-lost", 1, "w1")


def test_of_several_lost_hosts_the_one_that_went_first_is_named(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    for node, ended in ((0, 3.0), (1, 1.0), (2, 2.0)):
        lost = {"node": node, "host": f"w{node}", "lost": "`ssh` ended with status 255", "ended": ended}
        (tmp_path / "ranks" / f"node-{node}.json").write_text(json.dumps(lost))
    verdict = diagnose(collect_evidence(RunFiles(tmp_path), LauncherEnd(1)))
    assert verdict.cause == "w1 was lost: `ssh` ended with status 255"
    assert "also lost: w0, w2" in verdict.facts


@pytest.mark.parametrize("reach", ["joined", "ssh"])
def test_only_a_node_with_a_zlaunch_of_its_own_is_asked_what_ended_it(reach: str, tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "reach": reach}))
    lost = {"node": 1, "host": "w1", "lost": "it closed the connection", "ended": 1.0}
    (tmp_path / "ranks" / "node-1.json").write_text(json.dumps(lost))
    advice = " ".join(diagnose(collect_evidence(RunFiles(tmp_path), LauncherEnd(1))).advice)
    assert ("on w1, or the log of its pod or Slurm step, may say" in advice) == (reach == "joined")


def after_the_directory_is_gone(
    root: Path, launcher: str, returncode: int, said: str, hosts: tuple[str, ...] = ("w0", "w1")
) -> Evidence:
    """Collect what a zlaunch knows that has read the plan, and holds the launcher's log open."""
    ranks = [{"rank": rank, "host": host} for rank, host in enumerate(hosts)]
    (root / "job.json").write_text(json.dumps({**JOB, "launcher": launcher, "ranks": ranks}))
    run = RunFiles(root)
    run.read_plan()
    (root / "job.json").unlink()
    return collect_evidence(run, LauncherEnd(returncode, log=said))


SUCCEEDS = "[INFO] [launch.py:351:main] Process 7 exits successfully.\n"


@pytest.mark.parametrize(
    ("launcher", "returncode", "said", "how"),
    [
        ("torchrun", 0, "", "finished"),
        ("deepspeed", 0, SUCCEEDS, "finished"),
        ("deepspeed", 0, "", "failed"),
        ("torchrun", 1, "", "failed"),
    ],
)
def test_without_a_run_directory_the_launcher_says_whether_the_job_has_finished(
    launcher: str, returncode: int, said: str, how: str, tmp_path: Path
) -> None:
    evidence = after_the_directory_is_gone(tmp_path, launcher, returncode, said)
    outcome = judge_outcome(evidence, diagnose(evidence))
    assert (outcome.how, outcome.exit_status) == (how, int(how == "failed"))


def test_a_rank_prints_the_record_that_it_cannot_write_and_the_exception_of_its_script(
    tmp_path: Path,
) -> None:
    log = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nValueError: no\n'
    said = f"w1: {printed_line({'rank': 1, 'returncode': 1, 'stopped_by': None}, log)}\nother words\n"
    evidence = after_the_directory_is_gone(tmp_path, "torchrun", 1, said)
    verdict = diagnose(evidence)
    assert (verdict.code, verdict.rank, evidence.launcher_log) == ("script-exception", 1, "other words\n")


@pytest.mark.parametrize(("host", "code"), [("w0", "rank-lost"), ("w1", "launcher-failed")])
def test_a_rank_that_printed_no_record_where_another_one_did_is_lost(
    host: str, code: str, tmp_path: Path
) -> None:
    """The directory is gone, and from other hosts comes only a part of what is printed."""
    ranks = [{"rank": 0, "host": "w0"}, {"rank": 1, "host": host}]
    (tmp_path / "job.json").write_text(json.dumps({**JOB, "ranks": ranks, "launcher": "torchrun"}))
    said = printed_line({"rank": 0, "returncode": -15, "stopped_by": 15}, "")
    started: dict[int, RankRecord] = {rank: {"rank": rank, "host": "w0", "pid": 7} for rank in (0, 1)}
    evidence = collect_evidence(RunFiles(tmp_path), LauncherEnd(1, log=f"{said}\n", started=started))
    assert diagnose(evidence).code == code


def test_a_rank_that_prints_that_it_was_stopped_did_not_finish(tmp_path: Path) -> None:
    said = f"{printed_line({'rank': 1, 'returncode': -15, 'stopped_by': 15}, '')}\n{SUCCEEDS}"
    evidence = after_the_directory_is_gone(tmp_path, "deepspeed", 0, said)
    assert judge_outcome(evidence, diagnose(evidence)).how != "finished"


CUT_OFF = (
    f'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\nRuntimeError: {GLOO_CLOSED}\n'
)
ENDS = "[ERROR] [launch.py:259:sigkill_handler] ['python'] exits with return code = 1\n"


def stop_of(root: Path, said: str, *records: dict[str, Any], returncode: int = 1) -> int | None:
    """Return the signal that stopped a job whose ranks have left these records."""
    for folder in ("ranks", "logs"):
        (root / folder).mkdir()
    (root / "job.json").write_text(json.dumps(JOB))
    (root / "logs" / "launcher.log").write_text(said)
    for rank, record in enumerate(records):
        (root / "ranks" / f"rank-{rank}.json").write_text(json.dumps({"rank": rank, **record}))
        (root / "logs" / f"rank-{rank}.log").write_text(
            CUT_OFF if record.get("returncode") == 1 else "step 1"
        )
    return collect_evidence(RunFiles(root), LauncherEnd(returncode)).stopped_by


STOPPED = {
    "host": "w0",
    "returncode": -15,
    "stopped_by": 15,
    "stopped_at": 5.0,
    "signalled": True,
    "ended": 6.0,
}


@pytest.mark.parametrize("said", [FAILED, ENDS])
@pytest.mark.parametrize(
    ("other", "number"),
    [
        ({"host": "w0", "ended": 5.5}, 15),
        ({"host": "w1", "ended": 2.0}, 15),
        ({"host": "w0", "ended": 4.5}, None),
    ],
)
def test_a_signal_to_one_rank_stopped_the_job_if_others_then_lost_their_connection(
    said: str, other: dict[str, Any], number: int | None, tmp_path: Path
) -> None:
    assert stop_of(tmp_path, said, {**STOPPED}, {"returncode": 1, **other}) == number


def test_a_rank_that_zlaunch_stopped_itself_was_not_stopped_by_somebody(tmp_path: Path) -> None:
    cut_off = {"host": "w1", "returncode": 1, "ended": 2.0}
    assert stop_of(tmp_path, FAILED, {**STOPPED, "signalled": False}, cut_off) is None


def test_a_rank_that_left_no_record_failed_and_the_launcher_stopped_the_others(tmp_path: Path) -> None:
    assert stop_of(tmp_path, FAILED, {**STOPPED}) is None


@pytest.mark.parametrize("ranks", [[{**STOPPED}, {**STOPPED}], []])
def test_the_signal_that_ended_the_launcher_came_before_those_of_its_programs(
    ranks: list[dict[str, Any]], tmp_path: Path
) -> None:
    said = f"{ENDS}[INFO] [launch.py:262:sigkill_handler] Main process received SIGTERM, exiting\n"
    assert stop_of(tmp_path, said, *ranks, returncode=-2) == 2


RECEIVED = "[INFO] [launch.py:262:sigkill_handler] Main process received SIGTERM, exiting\n"


@pytest.mark.parametrize(("ended", "number"), [(5.5, 15), (4.5, None)])
def test_a_launcher_that_got_a_signal_stopped_the_job_if_a_rank_then_lost_another_one(
    ended: float, number: int | None, tmp_path: Path
) -> None:
    cut_off = {"host": "w0", "returncode": 1, "ended": ended}
    assert stop_of(tmp_path, RECEIVED, {**STOPPED, "signalled": False}, cut_off) == number


@pytest.mark.parametrize(("returncode", "number"), [(-2, 2), (-9, None), (1, None)])
def test_a_launcher_that_a_signal_ended_took_ranks_without_an_end_with_it(
    returncode: int, number: int | None, tmp_path: Path
) -> None:
    started = {"host": "w0", "pid": 7}
    assert stop_of(tmp_path, "", started, started, returncode=returncode) == number


def test_a_rank_that_could_not_record_its_exception_and_was_ended_while_exiting_lost_another(
    tmp_path: Path,
) -> None:
    (tmp_path / "ranks").mkdir()
    exiting = {"phase": "exiting", "since": 5.5}
    (tmp_path / "ranks" / "rank-1.pulse.json").write_text(json.dumps(exiting))
    told = conform({**STOPPED, "rank": 0, "signalled": False}, RankRecord)
    killed = conform({**STOPPED, "rank": 1, "stopped_at": 5.6}, RankRecord)
    said = f"{printed_line(told, '')}\n{printed_line(killed, CUT_OFF)}\n{RECEIVED}"
    evidence = after_the_directory_is_gone(tmp_path, "deepspeed", 1, said)
    assert diagnose(evidence).code == "stopped"


@pytest.mark.parametrize("hosts", [("w0",), ("w0", "w0")])
@pytest.mark.parametrize(("status", "code"), [(-9, "rank-lost"), (66, "launcher-failed")])
def test_a_rank_of_which_the_launcher_alone_says_that_it_was_killed_is_lost(
    status: int, code: str, hosts: tuple[str, ...], tmp_path: Path
) -> None:
    """The directory went before zlaunch had read that the rank has started."""
    said = (
        f"E1126 api.py:1002] failed (exitcode: {status}) local_rank: 0 (pid: 7) of binary: python\n{FAILED}"
    )
    for rank in range(1, len(hosts)):
        said += f"{printed_line({'rank': rank, 'returncode': -15, 'stopped_by': 15}, '')}\n"
    evidence = after_the_directory_is_gone(tmp_path, "torchrun", 1, said, hosts)
    verdict = diagnose(evidence)
    assert (verdict.code, judge_outcome(evidence, verdict).exit_status == 137) == (code, status == -9)


def test_a_runner_that_returned_0_is_believed_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "launcher.log").touch()
    monkeypatch.setattr(
        os, "access", lambda *_: False
    )  # as of an immutable file, which is not so for all users
    evidence = after_the_directory_is_gone(tmp_path, "deepspeed", 0, "")
    assert judge_outcome(evidence, diagnose(evidence)).how == "finished"
