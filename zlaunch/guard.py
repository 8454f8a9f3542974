"""What runs around a launcher: `python -m zlaunch.guard PID STOP_FILE ARGV…`.

It ends the launcher and everything below it as soon as process PID, which is zlaunch, is gone:
even SIGKILL leaves nothing running, and no ssh connection open. With a STOP_FILE other than `-`,
ranks on other hosts are told through that file, and the launcher itself gets no signal.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from zlaunch.layout import write_whole
from zlaunch.process import Launcher, end_like, lifeline, outlive_parent

GRACE_SECONDS = 7.0
"""How long the launcher may take to end after a signal was passed on to it."""


def main(zlaunch_pid: int, stop_file: str, argv: Sequence[str]) -> int:
    """Run a launcher and return what it returned."""
    outlive_parent()
    tell = None if stop_file == "-" else lambda number: write_whole(Path(stop_file), str(number))
    child = Launcher(argv, os.environ, sys.stdout.buffer, GRACE_SECONDS, tell)
    return child.wait(partial(child.depend_on, lifeline(zlaunch_pid)))


if __name__ == "__main__":
    end_like(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
