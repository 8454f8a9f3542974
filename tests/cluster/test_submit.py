"""`zlaunch train --submit slurm` with a real Slurm: from the queue to the verdict."""

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.slurm_bed import URGENT, Slurm
from tests.cluster.test_hosts import wait_until
from tests.making import ODD_NAME
from tests.running import Result, start, zlaunch

pytestmark = pytest.mark.hosts

ON_ONE = ("--submit", "slurm", "--nodes", "1", "--gpus", "1")


def submitted(slurm: Slurm, folder: Path, source: str, *words: object) -> Result:
    """Submit a script that does not train, and wait for its end."""
    (folder / "script.py").write_text(source)
    return zlaunch("train", "script.py", *ON_ONE, *words, cwd=folder, env=slurm.environment())


@contextlib.contextmanager
def following(slurm: Slurm, folder: Path, source: str, *words: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Submit a script, and go on while it is followed; what is said is in the file `said`."""
    (folder / "script.py").write_text(source)
    with (folder / "said").open("wb") as said:
        argv = ("train", "script.py", *ON_ONE, *words)
        program = start(*argv, cwd=folder, env=slurm.environment(), stdout=said, stderr=said)
    try:
        yield program
    finally:
        program.kill()
        program.wait()


def said_in(folder: Path) -> str:
    return " ".join((folder / "said").read_text().split())


def number_in(text: str) -> str:
    found = re.search(r"submitted as (\d+)", text)
    assert found, text
    return found[1]


def test_a_job_is_followed_from_the_queue_to_its_end(slurm: Slurm, tmp_path: Path) -> None:
    (folder := tmp_path / ODD_NAME).mkdir()
    result = submitted(
        slurm,
        folder,
        "import os, sys\nprint('said', os.uname().nodename, sys.argv[1:])",
        "--",
        "a b",
        "$HOME",
    )
    assert (result.status, f"said {slurm.nodes[0]} ['a b', '$HOME']" in result.out) == (0, True), result
    job = number_in(result.err)
    assert f"running on {slurm.nodes[0]}" in result.err
    assert f"job {job}: completed, exit status 0" in result.err
    assert (folder / "runs" / f"script-{job}" / "job.json").exists()


def test_a_job_that_fails_gives_its_verdict_and_its_status(slurm: Slurm, tmp_path: Path) -> None:
    result = submitted(slurm, tmp_path, "import sys\nsys.exit(7)")
    assert result.status == 7, result
    assert f"job {number_in(result.err)}: failed, exit status 7" in result.err
    assert re.search(r"^script-\d+ failed after", result.err, re.MULTILINE)


def test_a_job_that_waits_shows_its_reason_and_one_that_is_cancelled_says_so(
    slurm: Slurm, tmp_path: Path
) -> None:
    for node in slurm.nodes:
        slurm.set_node(node, "drain")
    with following(slurm, tmp_path, "") as program:
        wait_until(lambda: "pending: nodes it needs are down, drained or reserved" in said_in(tmp_path), 30)
        job = number_in(said_in(tmp_path))
        slurm.ask("scancel", job)
        assert program.wait(30) == 143
    assert f"job {job}: cancelled, exit status 143" in said_in(tmp_path)


def test_ctrl_c_stops_watching_and_not_the_job(slurm: Slurm, tmp_path: Path) -> None:
    wait = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.1)"
    with following(slurm, tmp_path, wait) as program:
        wait_until(lambda: "running on" in said_in(tmp_path), 60)
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 130
    job = number_in(said_in(tmp_path))
    assert f"the job {job} keeps running; `scancel {job}` cancels it" in said_in(tmp_path)
    (tmp_path / "go").touch()
    assert slurm.wait(job, "COMPLETED", "FAILED")["JobState"] == "COMPLETED"


def test_a_detached_job_goes_on_alone(slurm: Slurm, tmp_path: Path) -> None:
    result = submitted(slurm, tmp_path, "print('done')", "--detach")
    job = number_in(result.err)
    assert (result.status, slurm.wait(job, "COMPLETED", "FAILED")["JobState"]) == (0, "COMPLETED")
    assert "done" in (tmp_path / "runs" / f"slurm-{job}.log").read_text()


def test_a_job_that_slurm_refuses_says_what_slurm_said(slurm: Slurm, tmp_path: Path) -> None:
    result = submitted(slurm, tmp_path, "", "--partition", "nowhere")
    assert (result.status, "invalid partition specified: nowhere" in result.err) == (69, True), result.err


def test_a_preempted_job_is_followed_through_its_second_start(slurm: Slurm, tmp_path: Path) -> None:
    source = """import os, pathlib, time
print("start", os.environ.get("SLURM_RESTART_COUNT", 0), flush=True)
while "SLURM_RESTART_COUNT" not in os.environ or not pathlib.Path("go").exists():
    time.sleep(0.1)
"""
    with following(slurm, tmp_path, source) as program:
        wait_until(lambda: "start 0" in said_in(tmp_path), 60)
        slurm.ask("sbatch", f"--partition={URGENT}", "--nodes=2", "--output=/dev/null", "--wrap", "true")
        wait_until(lambda: "running again on" in said_in(tmp_path), 120)
        (tmp_path / "go").touch()
        assert program.wait(120) == 0, said_in(tmp_path)
    said, job = said_in(tmp_path), number_in(said_in(tmp_path))
    assert re.search(rf"pending again.*start 1.*script-{job}-attempt-2 finished", said), said


def test_values_with_spaces_and_quotes_reach_slurm_as_they_are(slurm: Slurm, tmp_path: Path) -> None:
    name = """a 'b' "c" \\d #e $HOME `f` %j"""
    (folder := tmp_path / 'it\'s "a" \\ # $HOME').mkdir()
    result = submitted(slurm, folder, "", "--detach", "--job-name", name)
    shown = slurm.ask("scontrol", "show", "job", number_in(result.err))
    assert (f"JobName={name}\n" in shown, f"WorkDir={folder}\n" in shown) == (True, True), shown
