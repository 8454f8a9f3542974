"""The only door out: start a program, pass signals on, wait for it, leave nothing running.

The child leads its own session. The starting process becomes the reaper of everything below it
(`PR_SET_CHILD_SUBREAPER`), so that a process whose parent died is still found and ended, and the
kernel kills the child when the starting process dies (`PR_SET_PDEATHSIG`).

Three processes stand before a script, each in its way for as long as it imports: what only looks at
processes, psutil, is imported when there is something to look at.
"""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import psutil

TICK_SECONDS = 0.2
RANK_PROGRAM = "zlaunch.worker.rank"
OLD_RANK_PROGRAM = "zlaunch.rank"  # in run.sh files that an older release wrote
RELAYED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_OURS = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); import runpy; root, module = sys.argv[1:3]; "
    "sys.argv[1:3] = []; sys.path.insert(0, root); import zlaunch; del sys.path[0]; "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)


def output_of(argv: Sequence[str], timeout: float) -> str | None:
    """Ask a program a question; None if it is not there, fails or takes too long."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=timeout, check=True
        )
        return result.stdout.rstrip("\n")
    return None


def ours(module: str, *args: str) -> list[str]:
    """Say how to run a module of this zlaunch: like `python -m`, but without the working directory."""
    return [sys.executable, "-c", _OURS, str(Path(__file__).parents[1]), module, *args]


def with_pipes(argv: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a program that reads questions and writes answers; what else it says is lost."""
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - no threads here
    )


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when the one that started it ends; it may have ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def outlive_parent() -> None:
    """Take back `die_with_parent`, for a process that has to clean up then."""
    _prctl(_PR_SET_PDEATHSIG, 0)


class Child:
    """A running program and everything below it."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        log: IO[bytes],
        grace: float,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        """Start a program whose output goes to a log.

        `grace` is its time to end, in seconds, once it was told to; `tell` is how it is told, if
        not by a signal to its process group.
        """
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.stopped_by: signal.Signals | None = None
        self.stopped_at: float | None = None
        self._tell = tell or self._signal_group
        self._grace = grace
        self._passed_on: set[int] = set()
        self._deadline = float("inf")
        self._process: subprocess.Popen[bytes] | None = None
        self._handlers = self._relay()
        try:
            self._process = subprocess.Popen(
                argv,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - no threads here
            )
        except BaseException:
            self._unrelay()
            raise
        for number in sorted(self._passed_on):  # what came before there was anybody to tell
            self._tell(number)

    @property
    def pid(self) -> int:
        """The process id of the program, which is that of its session too."""
        assert self._process is not None
        return self._process.pid

    def wait(self, tick: Callable[[], None]) -> int:
        """Wait for the end, calling `tick` now and then; return the exit status or minus the signal."""
        try:
            while (returncode := self._poll()) is None:
                tick()
                if time.monotonic() > self._deadline:
                    self._kill()
            self._wait_for_rest(tick)
            end_descendants()
        finally:
            self._unrelay()
        tick()
        return returncode

    def end_within(self, seconds: float) -> None:
        """Wait no longer than this for an end that has begun already."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def _kill(self) -> None:
        """Kill the program, and see how it ended, before all below it are reaped: nobody could tell after."""
        assert self._process is not None
        self._process.kill()
        self._poll()
        end_descendants()

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Pass the first signal of each kind on, and give the program its time to end."""
        if number in self._passed_on:
            return
        self._passed_on.add(number)
        if self.stopped_by is None:
            self.stopped_by = signal.Signals(number)
            self.stopped_at = time.time()
            self._deadline = time.monotonic() + self._grace
        if self._process is not None:
            self._tell(number)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def depend_on(self, processes: "Sequence[psutil.Process]") -> None:
        """Tell the program to end as soon as one of these is gone."""
        if not all(is_alive(process) for process in processes):
            self.on_signal(signal.SIGTERM, None)

    def _wait_for_rest(self, tick: Callable[[], None]) -> None:
        """What a program leaves behind is ended at once."""

    def _poll(self) -> int | None:
        assert self._process is not None
        try:
            return self._process.wait(TICK_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    def _relay(self) -> dict[signal.Signals, Any]:
        heeded = [number for number in RELAYED if signal.getsignal(number) is not signal.SIG_IGN]
        return {number: signal.signal(number, self.on_signal) for number in heeded}

    def _unrelay(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)


class LauncherProcess(Child):
    """A program that starts ranks: they get their time to end, even if it ended at once or was killed."""

    def _wait_for_rest(self, tick: Callable[[], None]) -> None:
        self._deadline = min(self._deadline, time.monotonic() + self._grace)
        while time.monotonic() < self._deadline and (left := descendants()):
            if self.stopped_by is None and not any(map(_is_rank, left)):
                return
            tick()
            time.sleep(TICK_SECONDS)


class Foreground(LauncherProcess):
    """A launcher that a person waits for: the same signal a second time means at once."""

    _sent: frozenset[int] = frozenset()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Pass the first signal of each kind on; at the second, stop waiting.

        What a file says, without a frame, is no signal: whoever writes it may send one as well.
        """
        if frame is not None:
            if number in self._sent:
                self._deadline = 0.0
            self._sent |= {number}
        super().on_signal(number, frame)


def is_alive(process: "psutil.Process") -> bool:
    """Whether a process still works; one that ended and was not reaped does not."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def may_signal(pid: int) -> bool:
    """Whether this user may send a signal to a process; nobody minds one that is gone."""
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
    except PermissionError:
        return False
    return True


def _is_rank(process: "psutil.Process") -> bool:
    import psutil

    with contextlib.suppress(psutil.Error):
        return any(name in process.cmdline() for name in (RANK_PROGRAM, OLD_RANK_PROGRAM))
    return False


def descendants() -> "list[psutil.Process]":
    """List what runs below this process, and reap what has ended."""
    import psutil

    found = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(found, timeout=0)
    return alive


def end_descendants() -> None:
    """Kill and reap whatever runs below this process, however often it forked.

    One look is not enough: a process whose parent ends during it is below nobody for that look.
    """
    import psutil

    empty_looks = 0
    for _ in range(100):
        left = descendants()
        empty_looks = 0 if left else empty_looks + 1
        if empty_looks == 2:
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=0.1)


def lifeline(top: int) -> "list[psutil.Process]":
    """List the processes this one depends on: its ancestors up to `top`, or to the ssh session it came by."""
    import psutil

    line: list[psutil.Process] = []
    for process in psutil.Process().parents():
        line.append(process)
        if process.pid == top or process.name().startswith("sshd"):
            return line
    return line[:1]


def end_like(returncode: int) -> NoReturn:
    """End this process as another one ended, by the same signal if there was one, without a core dump."""
    if returncode < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -returncode)
    sys.exit(returncode)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
