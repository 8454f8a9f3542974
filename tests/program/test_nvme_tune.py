"""`zlaunch nvme tune` on a real drive, small."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.running import ACTIVATED, start, zlaunch

pytestmark = pytest.mark.job

CONFIG = '{\n  // offload\n  "train_batch_size": 4\n}\n'


def test_a_drive_is_measured_and_its_section_written(libaio: None, tmp_path: Path) -> None:
    (drive := tmp_path / "drive").mkdir()
    (config := tmp_path / "ds.json").write_text(CONFIG)
    words = ["--size", "16M", "--seconds", "1", "-o", config, "--json"]
    result = zlaunch("nvme", "tune", drive, *words, cwd=tmp_path, env=ACTIVATED)
    assert result.status == 0, result.err
    found = json.loads(result.out)
    best = found["measured"][0]
    assert best["read"] > 0
    assert best["write"] > 0
    assert set(found["aio"]) < set(best)
    text = config.read_text()
    assert text.startswith(CONFIG.removesuffix("\n}\n"))
    assert f'"block_size": {found["aio"]["block_size"]}' in text
    assert [*drive.iterdir()] == []


def test_ctrl_c_leaves_no_file_on_the_drive(libaio: None, tmp_path: Path) -> None:
    (drive := tmp_path / "drive").mkdir()
    with (tmp_path / "err").open("wb") as err:
        program = start("nvme", "tune", drive, cwd=tmp_path, env=ACTIVATED, stderr=err)
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


def test_an_empty_name_is_not_the_current_directory(tmp_path: Path) -> None:
    result = zlaunch("nvme", "tune", "", cwd=tmp_path, env=ACTIVATED)
    assert (result.status, "name a directory" in result.err, [*tmp_path.iterdir()]) == (2, True, [])
