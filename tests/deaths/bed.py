"""Jobs that are going to die: each in a folder of its own, marked, so that whatever it leaves behind is found."""

import contextlib
import fcntl
import json
import os
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.deaths.script import BUFFERS, MARK
from tests.running import ZLAUNCH
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import read_record
from zlaunch.rundir.record import HeartbeatRecord

HERE = Path(__file__).parent
IS_BUILT_WITHIN_SECONDS = 900
WITHIN_SECONDS = 20.0 if "PYTEST_XDIST_WORKER" in os.environ else 10.0
"""Until nothing is left of a job that died; while two die at a time, each has half of the machine."""


@dataclass(frozen=True)
class Bed:
    """What a job is given."""

    before: tuple[str, ...] = ()
    """The program that starts zlaunch."""
    options: tuple[object, ...] = ()
    args: tuple[object, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    enter: Callable[[], object] | None = None
    """What the process does before it becomes zlaunch."""
    alone: bool = False
    """Whether no other job may run meanwhile: the kernel counts for all whom it kills for want of memory."""
    terminal: tuple[int, int] | None = None
    """Our end of it and its own, if it is to run in a terminal."""


class Job:
    """A zlaunch that was started in a folder, and all that came of it."""

    def __init__(self, folder: Path, argv: list[str], bed: Bed, name: str = "") -> None:
        self.folder = folder
        self.name = name
        self.mark = uuid.uuid4().hex
        self.moment: float | None = None
        self.bed = bed
        its = None if bed.terminal is None else bed.terminal[1]
        out, err = ((folder / name).open("wb") if its is None else its for name in ("out", "err"))
        self._others = Path(__file__).open("rb")  # noqa: SIM115 - closed when the job has ended
        fcntl.flock(self._others, fcntl.LOCK_EX if bed.alone else fcntl.LOCK_SH)
        try:
            self.process = subprocess.Popen(
                [*bed.before, *ZLAUNCH, *argv],
                cwd=folder,
                env={**os.environ, **bed.env, MARK: self.mark},
                stdin=subprocess.DEVNULL if its is None else its,
                stdout=out,
                stderr=err,
                start_new_session=its is not None,
                preexec_fn=bed.enter,  # noqa: PLW1509 - no threads here
            )
        except BaseException:
            self._others.close()
            raise
        if its is not None:
            os.close(its)

    @property
    def run(self) -> Path:
        return next(path.parent for path in self.folder.glob(f"**/{self.name or '*'}/job.json"))

    def await_ready(self, num_ranks: int) -> None:
        self._await(lambda: self._num_ready() >= num_ranks)

    def await_file(self, file: Path) -> None:
        self._await(file.exists)

    def await_step(self, step: int) -> None:
        self._await(lambda: self.step() >= step)

    def _await(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + IS_BUILT_WITHIN_SECONDS
        while not is_so():
            assert self.process.poll() is None, self.told()
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.05)

    def step(self) -> int:
        """Say how far its first rank is."""
        return read_record(RunDir(self.run).rank_heartbeat(0), HeartbeatRecord).get("step", 0)

    def _num_ready(self) -> int:
        logs = self.folder.glob(f"**/{self.name or '*'}/logs/rank-*.log")
        return sum("ready" in log.read_text("utf-8", "replace") for log in logs)

    def dies_now(self) -> None:
        self.moment = time.time()

    def find(self, name: str, rank: int | None = None) -> psutil.Process:
        """Find the process of the job that runs a program, if need be that of a rank."""
        for process in self.left():
            with contextlib.suppress(psutil.Error):
                if runs(process, name) and rank in (None, int(process.environ().get("RANK", "-1"))):
                    return process
        raise AssertionError(f"no {name} runs")

    def left(self) -> list[psutil.Process]:
        """List what runs of the job, wherever it went."""
        found = []
        needle = f"{MARK}={self.mark}".encode()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if needle in Path(f"/proc/{process.pid}/environ").read_bytes():
                    found.append(process)
        return found

    def buffers(self) -> list[Path]:
        """List what lies of the job in shared memory."""
        found = []
        for file in Path(BUFFERS).parent.glob(f"{Path(BUFFERS).name}*"):
            with contextlib.suppress(OSError), file.open("rb") as buffer:
                if buffer.read(len(self.mark)) == self.mark.encode():
                    found.append(file)
        return found

    def await_end(self, within: float = WITHIN_SECONDS) -> tuple[int, int, float]:
        """Wait; return the exit status, how much was left after so many seconds, and when nothing was."""
        deadline = time.monotonic() + IS_BUILT_WITHIN_SECONDS
        while (died := self._died()) is None and self.process.poll() is None:
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.02)
        # What zlaunch builds itself dies when the compiler has said its last word.
        built = [file.stat().st_mtime for file in self.folder.glob("**/logs/build-*.log")]
        died = died or max(built, default=time.time())
        while (left := self._num_left()) and time.time() < died + within + 5:
            died = self._died() or died
            self.process.poll()
            time.sleep(0.05)
        seconds = max(0.0, time.time() - died)
        returncode = self.process.wait(1) if not left else self.process.poll()
        return _status(returncode), left, seconds

    def _num_left(self) -> int:
        """Count what is left; a process that becomes another program is not seen for a moment."""
        for _ in range(3):
            if left := len(self.left()) + len(self.buffers()):
                return left
            time.sleep(0.05)
        return 0

    def _died(self) -> float | None:
        if self.moment is not None:
            return self.moment
        # A stall begins when it is noticed.
        noted = [*self.folder.glob("moment-*"), *self.folder.glob("**/ask-stacks")]
        return min((file.stat().st_mtime for file in noted), default=None)

    def said(self) -> str:
        """Show what zlaunch itself has said."""
        err = self.folder / "err"
        return err.read_text("utf-8", "replace") if err.exists() else ""

    def printed(self) -> list[str]:
        """Show what each rank has printed."""
        return [log.read_text("utf-8", "replace") for log in self.folder.glob("**/logs/rank-*.log")]

    def told(self) -> str:
        """Show what a person has seen, and the logs."""
        files = [self.folder / "err", *self.folder.glob("**/logs/*.log")]
        return "\n".join(
            f"--- {file.name}\n{file.read_text('utf-8', 'replace')[-3000:]}"
            for file in files
            if file.exists()
        )

    def ending(self) -> dict[str, Any]:
        with contextlib.suppress(StopIteration, OSError):
            found: dict[str, Any] = json.loads((self.run / "how-it-ended.json").read_text())
            return found
        return {}

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        while left := self.left():
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=1)
        for file in self.buffers():
            file.unlink(missing_ok=True)
        self._others.close()


def runs(process: psutil.Process, name: str) -> bool:
    """Whether a process runs a program or a module."""
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()[:5]
        return name in words or any(word.endswith(f"/{name}") for word in words)
    return False


def _status(returncode: int | None) -> int:
    """Say what a shell says."""
    if returncode is None:
        return -1
    return 128 - returncode if returncode < 0 else returncode
