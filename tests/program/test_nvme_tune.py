"""`zlaunch nvme tune` on a real drive, small."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.running import ACTIVATED, start, zlaunch

pytestmark = pytest.mark.job

CONFIG = '{\n  // offload\n  "train_batch_size": 4\n}\n'


SWEEP = f"""#!{sys.executable}
import argparse, json, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--nvme_dir", nargs="+")
parser.add_argument("--io_size", type=int)
parser.add_argument("--log_dir")
args = parser.parse_args()
pathlib.Path(args.nvme_dir[0], "_aio_read.pt").write_bytes(bytes(8))
REST
"""
RESULT = """
print("Best performance (GB/sec): read =  0.79, write =  1.63")
aio = {"single_submit": "false", "overlap_events": "true", "num_threads": 4, "queue_depth": 32, "block_size": 9}
print(json.dumps({"aio": aio}, indent=3))
"""
FAILS = """
logs = pathlib.Path(args.log_dir, "_aio_bench_read_logs")
logs.mkdir(parents=True)
(logs / "read.txt").write_text("Traceback\\nOSError: Invalid argument\\n")
raise SystemExit(1)
"""


def sweep(folder: Path, rest: str) -> dict[str, str]:
    """The environment in which another program is found as DeepSpeed's, which takes ten minutes."""
    (program := folder / "bin" / "ds_nvme_tune").parent.mkdir()
    program.write_text(SWEEP.replace("REST", rest))
    program.chmod(0o755)
    return {**ACTIVATED, "PATH": f"{program.parent}:{ACTIVATED['PATH']}"}


def test_a_drive_is_measured_and_its_section_written(libaio: None, tmp_path: Path) -> None:
    (drive := tmp_path / "drive").mkdir()
    (config := tmp_path / "ds.json").write_text(CONFIG)
    words = ["--size", "16M", "-o", config, "--json"]
    result = zlaunch("nvme", "tune", drive, *words, cwd=tmp_path, env=sweep(tmp_path, RESULT))
    assert result.status == 0, result.err
    found = json.loads(result.out)
    assert (found["read"], found["write"], found["aio"]["intra_op_parallelism"]) == (0.79, 1.63, 4)
    text = config.read_text()
    assert text.startswith(CONFIG.removesuffix("\n}\n"))
    assert '"block_size": 9' in text
    assert [*drive.iterdir()] == []


def test_a_drive_that_cannot_be_measured_is_refused_in_deepspeeds_words(libaio: None, tmp_path: Path) -> None:
    (drive := tmp_path / "drive").mkdir()
    result = zlaunch("nvme", "tune", drive, cwd=tmp_path, env=sweep(tmp_path, FAILS))
    assert (result.status, "OSError: Invalid argument" in " ".join(result.err.split())) == (69, True), (
        result.err
    )
    assert [*drive.iterdir()] == []


def test_ctrl_c_leaves_no_file_on_the_drive(libaio: None, tmp_path: Path) -> None:
    (drive := tmp_path / "drive").mkdir()
    environment = sweep(tmp_path, "time.sleep(600)")
    with (tmp_path / "err").open("wb") as err:
        program = start("nvme", "tune", drive, cwd=tmp_path, env=environment, stderr=err)
    deadline = time.monotonic() + 300
    while not [*drive.glob(".zlaunch-nvme-*/_aio_*")] and time.monotonic() < deadline:
        assert program.poll() is None, (tmp_path / "err").read_text()
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    assert program.wait(60) == -signal.SIGINT
    assert [*drive.iterdir()] == []


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["nowhere"], 66, "there is no directory"),
        (["/dev/null"], 66, "`/dev/null` is not a directory"),
        ([".", "--size", "900000G"], 69, "to spare"),
        ([".", "--size", "3"], 2, "at least 16M"),
        ([".", "-o", "none.json"], 66, "cannot read the ds_config `none.json`"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    words: list[str], status: int, said: str, tmp_path: Path
) -> None:
    result = zlaunch("nvme", "tune", *words, cwd=tmp_path, env=os.environ)
    assert (result.status, said in " ".join(result.err.split())) == (status, True), result.err
