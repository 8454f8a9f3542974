"""What runs around a launcher: `python -m zlaunch.guard PID ARGV…`.

It ends the launcher and everything below it as soon as process PID, which is zlaunch, is gone:
even SIGKILL leaves nothing running, and no ssh connection open.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial

from zlaunch.process import Foreground, end_like, lifeline, outlive_parent

GRACE_SECONDS = 7.0
"""How long the launcher may take to end after a signal was passed on to it."""


def main(zlaunch_pid: int, argv: Sequence[str]) -> int:
    """Run a launcher and return what it returned."""
    outlive_parent()
    child = Foreground(argv, os.environ, sys.stdout.buffer, GRACE_SECONDS)
    return child.wait(partial(child.depend_on, lifeline(zlaunch_pid)))


if __name__ == "__main__":
    end_like(main(int(sys.argv[1]), sys.argv[2:]))
