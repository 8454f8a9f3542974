"""Runs of tiny scripts, read back, stopped and repeated."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from tests.abilities import need_root, unable
from tests.launchers import FIRST_OF_EACH
from tests.recorded_run import write_run
from tests.running import ZLAUNCH, Program, Result, run, start, the_run, zlaunch

pytestmark = pytest.mark.job

SCRIPT = """
import os, sys, time
os.environ.get("ZLAUNCH_DS_CONFIG")
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], os.environ.get("NCCL_WORD"), flush=True)
print(os.getcwd(), [word for word in sys.argv[1:] if "runs" not in word], flush=True)
if "fail" in sys.argv and os.environ["RANK"] == "1":
    raise ValueError("no such thing")
if "sleep" in sys.argv:
    print("ready", flush=True)
    time.sleep(1000)
"""
STOPS_WITHIN_SECONDS = 12.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def running(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a run that lasts, and hand it over as soon as both ranks work."""
    job = start("train", "script.py", "sleep", cwd=folder)
    try:
        await_that(
            lambda: job.poll() is not None or all("ready" in log(folder, r) for r in (0, 1)), within=300
        )
        assert job.poll() is None
        yield job
    finally:
        job.kill()
        job.wait()
        await_that(lambda: not left_of(folder), within=15)


def runs(folder: Path, *words: object, **more: Any) -> Result:
    return zlaunch("runs", *words, cwd=folder, **more)


def told(folder: Path, *words: object) -> Any:
    result = runs(folder, *words, "--json")
    assert result.status == 0, result.err
    return json.loads(result.out)


def log(folder: Path, rank: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        return (the_run(folder) / "logs" / f"rank-{rank}.log").read_text()
    return ""


def await_that(happened: Callable[[], bool], within: float) -> None:
    deadline = time.monotonic() + within
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def left_of(folder: Path) -> list[str]:
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and Path(process.cwd()) == folder and process.status() != "zombie":
                left.append(" ".join(process.cmdline()))
    return left


def test_where_nothing_was_run_there_is_nothing_to_list(folder: Path) -> None:
    result = runs(folder, "list")
    assert (result.status, result.out, result.err) == (0, "", "no runs in `runs`\n")


def test_a_run_that_is_going_on_is_running_and_has_a_log_to_read(
    folder: Path, running: "subprocess.Popen[bytes]"
) -> None:
    (record,) = told(folder, "list")
    assert (record["state"], record["ranks"], record["script"]) == ("running", 2, "script.py")
    assert runs(folder, "logs", "--rank", 1).out == log(folder, 1)
    assert runs(folder, "logs", "--tail", 1).out == "ready\n"


def test_a_running_run_is_stopped_from_another_terminal(
    folder: Path, running: "subprocess.Popen[bytes]"
) -> None:
    began = time.monotonic()
    record = told(folder, "stop", "latest")
    assert time.monotonic() - began < STOPS_WITHIN_SECONDS + 3
    assert (record["state"], record["exit_status"], record["was_running"]) == ("stopped", 143, True)
    assert running.wait(60) == 143
    assert left_of(folder) == []


def test_a_run_that_was_stopped_by_command_says_so(folder: Path, running: "subprocess.Popen[bytes]") -> None:
    assert told(folder, "stop", "latest")["cause"] == "`zlaunch runs stop` ended the job"
    running.wait(60)


def test_stopping_a_run_that_is_over_says_so_and_is_no_failure(folder: Path) -> None:
    zlaunch("train", "script.py", "fail", cwd=folder)
    result = runs(folder, "stop", the_run(folder).name)
    assert result.status == 0
    assert "has already ended" in result.err


def test_a_process_that_only_has_the_number_of_a_runs_zlaunch_is_left_alone(folder: Path) -> None:
    zlaunch("train", "script.py", cwd=folder)
    root = the_run(folder)
    (root / "how-it-ended.json").unlink()
    job = json.loads((root / "job.json").read_text())
    with Program[bytes](["sleep", "1000"]) as bystander:
        other = {"zlaunch_pid": bystander.pid, "zlaunch_started": job["zlaunch_started"] - 60}
        (root / "job.json").write_text(json.dumps({**job, **other}))
        record = told(folder, "stop", root.name)
        assert bystander.poll() is None
        bystander.kill()
    assert record["state"] == "lost"


def test_a_run_on_another_host_is_told_through_its_stop_file(
    folder: Path, running: "subprocess.Popen[bytes]"
) -> None:
    root = the_run(folder)
    job = json.loads((root / "job.json").read_text())
    (root / "job.json").write_text(json.dumps({**job, "host": "elsewhere"}))
    result = runs(folder, "stop", root.name)
    assert "its ranks, through runs/" in result.err
    assert (root / "stop").read_text() == f"{int(signal.SIGTERM)} zlaunch runs stop"
    running.wait(15)


def test_a_run_whose_zlaunch_was_killed_is_lost(folder: Path, running: "subprocess.Popen[bytes]") -> None:
    running.kill()
    running.wait()
    (record,) = told(folder, "list")
    assert record["state"] == "lost"
    assert "killed" in runs(folder, "why").out
    await_that(lambda: not left_of(folder), within=15)
    assert told(folder, "why")["state"] == "lost"


def test_the_reason_of_a_failure_is_read_back_in_ten_lines(folder: Path) -> None:
    failed = zlaunch("train", "script.py", "fail", cwd=folder)
    why = runs(folder, "why")
    assert (failed.status, why.status) == (1, 0)
    assert "rank 1" in why.out
    assert len(why.out.splitlines()) <= 10
    assert told(folder, "why")["verdict"]["cause"] in " ".join(why.out.split())


def test_a_run_is_shown_with_what_was_not_measured(folder: Path) -> None:
    zlaunch("train", "script.py", "--stage", "3", "--offload", "cpu", cwd=folder)
    state = folder / "state"
    (state / "zlaunch").mkdir(parents=True)
    (state / "zlaunch" / "forecasts.jsonl").write_text('{"percent": {"GPU, reserved": 2}}\n')
    out = runs(folder, "show", env={"XDG_STATE_HOME": str(state)}).out
    for part in (
        "finished, exit status 0",
        "zlaunch train script.py --stage 3",
        "optimizer on cpu, param on cpu",
    ):
        assert part in out
    assert "no GPU memory was measured" in out
    assert "accuracy of" not in out  # which is that of other runs: this one has no prediction
    memory = told(folder, "show")["memory"]["pools"]
    assert [pool["measured"] > 1 << 20 for pool in memory if pool["name"] == "host, resident"] == [True]


def test_runs_that_only_their_users_may_read_keep_nobody_from_the_others() -> None:
    need_root("be another user")
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    if run(*nobody, *ZLAUNCH, "--version", cwd=Path("/")).status:
        unable("nobody else can start the Python of the tests")
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name, mode in (("closed", 0o700), ("shared", 0o755)):
            write_run(root := Path(folder, "runs", name), 2)
            root.chmod(mode)
        listed, closed = (
            run(*nobody, *ZLAUNCH, "runs", *words, cwd=Path(folder))
            for words in (["list"], ["show", "closed"])
        )
    assert (listed.status, "shared" in listed.out, "closed" in listed.out) == (0, True, False)
    assert "1 run not listed: only their users may read them" in listed.err
    assert (closed.status, "`zlaunch train --share` lets others read" in closed.err) == (69, True)


@pytest.mark.parametrize(("option", "mode"), [((), 0o700), (("--share",), 0o755)])
def test_nobody_else_enters_a_run_directory_unless_it_is_shared(
    folder: Path, option: tuple[str, ...], mode: int
) -> None:
    zlaunch("train", "script.py", *option, cwd=folder)
    assert stat.S_IMODE(the_run(folder).stat().st_mode) == mode


def test_a_half_written_run_is_a_line_of_the_list(folder: Path) -> None:
    zlaunch("train", "script.py", cwd=folder)
    root = the_run(folder)
    (folder / "runs" / "half" / "logs").mkdir(parents=True)
    (root / "job.json").write_text((root / "job.json").read_text()[:100])
    result = runs(folder, "list")
    assert result.status == 0
    assert result.out.count("broken") == 3  # two states, and a file
    assert all(len(line) <= 80 for line in result.out.splitlines())


@pytest.mark.parametrize(("member", "status"), [("working_directory", 69), ("script", 66)])
def test_a_record_that_is_no_text_is_shown_and_not_repeated(member: str, status: int, folder: Path) -> None:
    zlaunch("train", "script.py", cwd=folder)
    file = the_run(folder) / "job.json"
    record = json.loads(file.read_text())
    record[member] = ["\ud800"] if member == "script" else "\ud800"
    file.write_text(json.dumps(record))
    shown, again = runs(folder, "show"), runs(folder, "rerun", "latest", "--dry-run")
    assert (shown.status, again.status) == (0, status), again.err
    assert "Traceback" not in again.err


def test_a_log_that_is_followed_ends_with_its_run(folder: Path, running: "subprocess.Popen[bytes]") -> None:
    with looking_on(folder) as reader:
        running.send_signal(signal.SIGTERM)
        out, err = reader.communicate(timeout=60)
    assert (reader.returncode, out.decode(), err) == (0, log(folder, 0), b"")


def test_ctrl_c_ends_the_looking_on_and_not_the_run(folder: Path, running: "subprocess.Popen[bytes]") -> None:
    with looking_on(folder) as reader:
        assert reader.stdout is not None
        await_that(lambda: b"ready" in reader.stdout.readline(), within=20)  # type: ignore[union-attr]
        time.sleep(0.5)
        reader.send_signal(signal.SIGINT)
        _, err = reader.communicate(timeout=60)
    assert (reader.returncode, err) == (130, b"")
    assert running.poll() is None


@contextlib.contextmanager
def looking_on(folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with Program[bytes](
        [*ZLAUNCH, "runs", "logs", "--follow"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        try:
            yield reader
        finally:
            reader.kill()


def test_a_log_that_is_not_there_names_those_that_are(folder: Path) -> None:
    zlaunch("train", "script.py", cwd=folder)
    result = runs(folder, "logs", "--rank", 7)
    assert result.status == 66
    assert "launcher.log, rank-0.log, rank-1.log" in result.err


@pytest.mark.parametrize("launcher", FIRST_OF_EACH)
def test_a_repetition_does_what_the_run_did(launcher: str, folder: Path) -> None:
    words = ["--launcher", launcher, "--stage", "3", "--", "two  words", "$HOME"]
    then = {"NCCL_WORD": "as it was"}
    zlaunch("train", "script.py", *words, cwd=folder, env=then)
    first = the_run(folder)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    result = zlaunch(
        "runs", "rerun", first, "--json", cwd=elsewhere, env={"NCCL_WORD": "another", "NCCL_MORE": "1"}
    )
    record = json.loads(result.out.splitlines()[-1])
    second = Path(record["directory"])
    assert (result.status, record["state"], record["repeats"]) == (0, "finished", first.name)
    assert second.parent == first.parent
    for rank in (0, 1):
        logs = [(root / "logs" / f"rank-{rank}.log").read_text() for root in (first, second)]
        assert logs[0] == logs[1]
    assert (first / "ds_config.json").read_text() == (second / "ds_config.json").read_text()
    assert [one["what"] for one in record["changed"]] == ["NCCL_MORE", "NCCL_WORD"]


@pytest.mark.full
def test_a_repetition_of_a_failure_fails_again(folder: Path) -> None:
    zlaunch("train", "script.py", "fail", cwd=folder)
    assert runs(folder, "rerun", "latest").status == 1
    assert [one["exit_status"] for one in told(folder, "list")] == [1, 1]


def test_a_script_that_is_not_what_it_was_is_not_repeated_unless_forced(folder: Path) -> None:
    zlaunch("train", "script.py", cwd=folder)
    name = the_run(folder).name
    (folder / "script.py").write_text(f"{SCRIPT}\nprint('more')\n")
    refused = runs(folder, "rerun", name)
    assert refused.status == 65
    assert "script.py [not-as-it-was]\n  differs from the run: was sha256 " in refused.err
    assert the_run(folder).name == name
    forced = runs(folder, "rerun", name, "--force")
    assert forced.status == 0
    assert "differs    script.py: was sha256 " in forced.err


def test_a_run_with_a_forecast_is_rehearsed_again_unless_forced(folder: Path) -> None:
    zlaunch("train", "script.py", cwd=folder)
    root = the_run(folder)
    (root / "forecast.json").write_text('{"method": "rehearsal"}')
    refused, forced = runs(folder, "rerun", root.name), runs(folder, "rerun", root.name, "--force")
    assert (refused.status, forced.status) == (69, 0)
    assert "needs to know the model" in refused.err


def test_a_new_commit_and_uncommitted_changes_are_named(folder: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)

    (folder / "model.py").write_text("size = 1\n")
    git("init", "-q")
    git("add", "script.py", "model.py")
    git("commit", "-qm", "first")
    zlaunch("train", "script.py", cwd=folder)
    name = the_run(folder).name
    (folder / "model.py").write_text("size = 2\n")
    dirty = runs(folder, "rerun", name)
    git("commit", "-qam", "second")
    moved = runs(folder, "rerun", name)
    assert (dirty.status, moved.status) == (65, 65)
    assert "uncommitted changes [not-as-it-was]" in dirty.err
    assert "git commit [not-as-it-was]" in moved.err


DIES_ONCE = """
import os, pathlib, signal
print("this is rank", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "1" and pathlib.Path("dies").exists():
    pathlib.Path("dies").unlink()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_repetition_is_watched_and_tried_again_as_the_run_was(folder: Path) -> None:
    (folder / "script.py").write_text(DIES_ONCE)
    zlaunch("train", "script.py", "--max-restarts", 1, "--show-ranks", 1, cwd=folder)
    name = the_run(folder).name
    (folder / "dies").touch()
    shown = runs(folder, "rerun", name, "--dry-run")
    assert (shown.status, the_run(folder).name) == (0, name)
    assert "command for torchrun" in shown.out
    again = runs(folder, "rerun", name, "--json")
    assert again.status == 0, again.err
    assert "attempt 2, restart 1 of 1" in again.err
    assert ("rank 0" in again.out, again.out.count("this is rank 1")) == (False, 2)
    assert json.loads(again.out[again.out.index("\n{") :])["state"] == "finished"
    assert len(told(folder, "list")) == 3


def test_what_keeps_a_run_from_starting_keeps_its_repetition_too(folder: Path) -> None:
    words = ["train", "script.py", "--set", "wandb.enabled=true"]
    zlaunch(*words, "--force", cwd=folder)
    name = the_run(folder).name
    first = zlaunch(*words, cwd=folder)
    for again in (runs(folder, "rerun", name), runs(folder, "rerun", name, "--dry-run")):
        assert (again.status, first.status, the_run(folder).name) == (65, 65, name)
        assert set(first.err.splitlines()) <= set(again.err.splitlines())


def test_a_run_that_is_going_on_is_not_repeated_whatever_became_of_its_script(
    folder: Path, running: "subprocess.Popen[bytes]"
) -> None:
    (folder / "script.py").unlink()
    result = runs(folder, "rerun", "latest")
    assert result.status == 69
    assert "zlaunch runs stop" in result.err
