"""The program around a script, whatever becomes of its run directory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import ROOT
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.printed_records import printed_records

SCRIPT = """
import os, shutil
if os.environ["GONE"] == "yes":
    shutil.rmtree(os.environ["RUN"])
raise ValueError("no")
"""


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_rank_prints_how_it_ended_only_if_it_cannot_record_that(is_gone: bool, tmp_path: Path) -> None:
    root, script = tmp_path / "run", tmp_path / "x.py"
    script.write_text(SCRIPT)
    for folder in ("ranks", "logs"):
        (root / folder).mkdir(parents=True)
    job = {"zlaunch_pid": os.getpid(), "over_ssh": False, "script": [str(script)], "environment": {}}
    (root / "job.json").write_text(json.dumps(job))
    env = {**os.environ, "RANK": "0", "RUN": str(root), "GONE": "yes" if is_gone else "no"}
    program = [sys.executable, "-m", "zlaunch.worker.rank", str(root)]
    ended = subprocess.run(program, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    printed = printed_records(ended.stdout).get(0, {})
    ends = (ended.returncode, printed.get("record", {}).get("returncode"))
    assert (*ends, "ValueError: no" in printed.get("log", "")) == (1, 1 if is_gone else None, is_gone)


def test_a_script_that_cannot_be_started_leaves_a_record_and_the_reason(tmp_path: Path) -> None:
    for folder in ("ranks", "logs"):
        (tmp_path / folder).mkdir()
    job = {"zlaunch_pid": os.getpid(), "over_ssh": False, "script": ["x.py"], "environment": {}}
    (tmp_path / "job.json").write_text(json.dumps({**job, "python": str(tmp_path / "no-python")}))
    program = [sys.executable, "-m", "zlaunch.worker.rank", str(tmp_path)]
    ended = subprocess.run(program, cwd=ROOT, env={**os.environ, "RANK": "0"}, check=False)
    record = json.loads((tmp_path / "ranks" / "rank-0.json").read_text())
    reason = "zlaunch could not start the script: FileNotFoundError: [Errno 2] No such file or directory"
    assert (ended.returncode, record["returncode"]) == (1, 1)
    assert (tmp_path / "logs" / "rank-0.log").read_text().startswith(reason)


def test_a_rank_of_torchrun_knows_its_host_by_the_names_of_deepspeeds_launcher(tmp_path: Path) -> None:
    script = tmp_path / "x.py"
    script.write_text("import os\nprint(os.environ['CROSS_SIZE'], os.environ['CROSS_RANK'])\n")
    for folder in ("ranks", "logs"):
        (tmp_path / folder).mkdir()
    job = {"zlaunch_pid": os.getpid(), "over_ssh": False, "script": [str(script)], "environment": {}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    of_torchrun = {"RANK": "0", "GROUP_WORLD_SIZE": "3", "GROUP_RANK": "2"}
    program = [sys.executable, "-m", "zlaunch.worker.rank", str(tmp_path)]
    subprocess.run(program, cwd=ROOT, env={**os.environ, **of_torchrun}, check=True)
    assert (tmp_path / "logs" / "rank-0.log").read_text() == "3 2\n"


@pytest.mark.parametrize(("local_rank", "samples"), [("0", True), ("1", False)])
def test_one_rank_of_each_host_samples_it(local_rank: str, samples: bool, tmp_path: Path) -> None:
    (script := tmp_path / "x.py").write_text("")
    for folder in ("ranks", "logs"):
        (tmp_path / folder).mkdir()
    job = {"zlaunch_pid": os.getpid(), "over_ssh": False, "script": [str(script)], "environment": {}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    program = [sys.executable, "-m", "zlaunch.worker.rank", str(tmp_path)]
    env = {**os.environ, "RANK": "3", "LOCAL_RANK": local_rank}
    subprocess.run(program, cwd=ROOT, env=env, check=True)
    sample = json.loads(RunDir(tmp_path).rank_sample(3).read_text())
    assert (sample["machine"] is not None) is samples
