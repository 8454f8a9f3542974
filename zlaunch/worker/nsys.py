"""Run the script of a rank under Nsight Systems, which writes its report when the script has ended."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from zlaunch.process import Child
from zlaunch.rundir.record import ProfileRecord

PROGRAM: Final = "nsys"
REPORT_SECONDS: Final = 25.0
"""How much longer than other jobs a stopped one may take to end; torchrun kills its ranks after 30 s."""
_SHIELD: Final = ("/bin/sh", "-c", 'trap "" TERM; exec "$@"', "sh")
"""DeepSpeed's launcher sends SIGTERM to all processes; the hook has the script heed it again."""
_OPTIONS: Final = (
    *("--force-overwrite=true", "--wait=primary"),
    *("--trace=cuda,nvtx,osrt", "--sample=none", "--cpuctxsw=none"),
)
_SOME_STEPS: Final = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none")


def words_before(profile: ProfileRecord | None, rank: int, report: Path) -> list[str]:
    """Return the words in front of the command of a rank; none if nsys does not profile it."""
    if not profile or not profile.get("with_nsys") or not profiles(profile, rank):
        return []
    output = str(report.with_suffix("")).replace("%", "%%")  # where nsys fills in names
    words = [*_SHIELD, PROGRAM, "profile", f"--output={output}", *_OPTIONS]
    if profile.get("first") is not None:
        words += _SOME_STEPS
    return words


def profiles(profile: ProfileRecord, rank: int) -> bool:
    """Whether a rank is profiled."""
    ranks = profile.get("ranks")
    return ranks is None or rank in ranks


def report_seconds(profile: ProfileRecord | None) -> float:
    """Return how much longer a stopped job may take to end."""
    if profile and profile.get("with_nsys"):
        return REPORT_SECONDS
    return 0.0


class ScriptBelow(Child):
    """A script that nsys has started: signals are for the script alone, so that nsys can write its report."""

    words: Sequence[str] = ()
    """The command line of the script."""

    @property
    def script(self) -> int | None:
        """The process id of the script; None until it has started, and once it has ended."""
        import psutil

        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if process.cmdline() == [*self.words]:
                        return process.pid
        return None

    def _send(self, number: int) -> None:
        script = self.script
        if script is None:
            super()._send(number)
        else:
            os.kill(script, number)
