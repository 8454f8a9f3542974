"""A log that is read through a pipe."""

import json
import os
import subprocess
import time
from pathlib import Path

from tests.running import ZLAUNCH, Program


def test_following_a_log_ends_when_its_reader_has_gone(tmp_path: Path) -> None:
    """`zlaunch runs logs --follow | head -1`; a run on another host that writes is taken for running."""
    root = tmp_path / "runs" / "one"
    log = root / "logs" / "rank-0.log"
    log.parent.mkdir(parents=True)
    (root / "job.json").write_text(json.dumps({"host": "elsewhere", "started": time.time()}))
    log.write_text("first\n")
    with Program[bytes](
        [*ZLAUNCH, "runs", "logs", "--follow"], cwd=tmp_path, stdout=-1, stderr=-1
    ) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert follower.stdout.readline() == b"first\n"
        follower.stdout.close()
        with log.open("a") as file:
            file.write("second\n")
        assert (follower.wait(10), follower.stderr.read()) == (141, b"")


def test_a_page_that_nobody_reads_on_ends_as_by_the_signal_for_that(tmp_path: Path) -> None:
    reader, pipe = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*ZLAUNCH, "config", "schema"], cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE, check=False
    )
    os.close(pipe)
    assert (done.returncode, done.stderr) == (141, b"")
