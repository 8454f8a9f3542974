"""Start programs, pass on signals, wait, and leave no process behind. No other module starts programs.

The child leads its own session. The parent becomes the reaper of all its descendants
(`PR_SET_CHILD_SUBREAPER`), so that a process whose own parent died is still found and ended, and the
kernel kills the child when the parent dies (`PR_SET_PDEATHSIG`).

psutil is imported only when there are processes to list: three processes start before each script, and it
waits for the imports of each.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

from zlaunch.whereabouts import is_alive

if TYPE_CHECKING:
    import psutil

TICK_SECONDS = 0.2
RANK_PROGRAM = "zlaunch.worker.rank"
OLD_RANK_PROGRAM = "zlaunch.rank"  # in run.sh files that an older release wrote
RELAYED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAVES = signal.SIGUSR1
"""Asks zlaunch to save and stop. Programs below ignore it: a scheduler may send it to all of them at once."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_START = Path(__file__).absolute().with_name("worker") / "start.py"
_REAPER = _START.with_name("reaper.py")


def output_of(argv: Sequence[str], timeout: float, stdin: str = "") -> str | None:
    """The output of a program; None if it does not exist, fails or takes too long."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(
            argv, input=stdin, capture_output=True, errors="replace", timeout=timeout, check=True
        )
        return result.stdout.rstrip("\n")
    return None


def words_of(argv: Sequence[str], timeout: float) -> str | None:
    """What a program prints, on both streams and however it ends; None if it cannot run or takes too long."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        return result.stdout
    return None


class ProgramResult(NamedTuple):
    """What came of a program."""

    returncode: int
    out: str
    err: str


def answer_of(argv: Sequence[str], text: str, timeout: float) -> ProgramResult:
    """Give a program a text as its input and wait for its end.

    Raises FileNotFoundError if there is no such program, TimeoutError if it takes too long: then it and the
    programs that it has started are killed.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace"
    ) as process:
        try:
            out, err = process.communicate(text, timeout)
        except BaseException as error:
            _kill_tree(process.pid)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError from None
            raise
    return ProgramResult(process.returncode, out, err)


def _kill_tree(pid: int) -> None:
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.Error):
                each.kill()


class Printing:
    """A program that prints into a file until it ends, or is ended."""

    def __init__(self, argv: Sequence[str], file: Path) -> None:
        """Start the program; raise FileNotFoundError if there is none."""
        with file.open("wb") as out:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def end(self, patience: float = 0.0) -> None:
        """Wait for its end for some seconds, then end it."""
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()


SAFE_PATH = {"PYTHONSAFEPATH": "launcher"}
"""For launchers: DeepSpeed's runner starts `python -m`, which would import files of the working directory.

The script does not get it.
"""


def ours(module: str, *args: str, python: str | None = None) -> list[str]:
    """Command line for a module of this zlaunch, in this Python or another one that need not have zlaunch."""
    return [python or sys.executable, str(_START), module, *args]


def is_start_program(argv: Sequence[str]) -> bool:
    """Whether a command line is one of `ours`, whose program takes its directory off the path itself."""
    return [*argv[1:2]] == [str(_START)]


def start_with_pipes(
    argv: Sequence[str],
    environment: Mapping[str, str],
    errors: int | IO[bytes] = subprocess.DEVNULL,
    *,
    ends_with_stdin: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a program that reads stdin and writes stdout; its stderr is discarded, or goes to a file.

    It dies with this process, unless it ends by itself when its stdin is closed. Then nothing is run between
    fork and exec, so Python uses vfork: a child need not wait for a core first, which takes 0.1 s for each of
    many programs on busy cores.
    """
    begin = None
    if not ends_with_stdin:
        begin = partial(die_with_parent, os.getpid())
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env=dict(environment),
        preexec_fn=begin,  # noqa: PLW1509 - no threads here
    )


class PipedProgram:
    """A program that gets messages on its stdin and sends some on its stdout."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        errors: int | IO[bytes] = subprocess.DEVNULL,
        *,
        ends_with_stdin: bool = False,
    ) -> None:
        """Start it as `start_with_pipes` does."""
        self._process = start_with_pipes(argv, environment, errors, ends_with_stdin=ends_with_stdin)

    def take_streams(self) -> tuple[int, int]:
        """Return the descriptors to read its stdout and to write its stdin; the caller closes them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        taken = os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno())
        self._process.stdout.close()
        self._process.stdin.close()
        return taken

    def wait(self, seconds: float) -> int | None:
        """Return its exit status, or minus the signal; None if it has not ended by then."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; the parent may have ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def fork_under_reaper(zlaunch: int, if_killed: Sequence[str]) -> None:
    """Continue in a child of this process, which itself becomes the reaper of the child and its descendants.

    `if_killed` is run when they are gone, if `zlaunch` was killed. See `worker/reaper.py`.
    """
    reaper = os.getpid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*RELAYED, signal.SIGCHLD))
    if program := os.fork():
        source = os.open(_REAPER, os.O_RDONLY)
        os.set_inheritable(source, True)
        python = os.path.realpath(sys.executable)
        argv = [python, "-I", "-S", f"/dev/fd/{source}", str(program), str(zlaunch)]
        os.execve(python, argv, {**os.environ, "ZLAUNCH_IF_KILLED": json.dumps(if_killed)})
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    die_with_parent(reaper)


def outlive_parent() -> None:
    """Undo `die_with_parent`, for a process that has to clean up."""
    _prctl(_PR_SET_PDEATHSIG, 0)


class Stopped(KeyboardInterrupt):
    """A signal asked this process to stop, while there was no child to pass it on to."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


@contextlib.contextmanager
def signals_as_exceptions(*, is_final: bool = False) -> Iterator[None]:
    """Raise Stopped for a signal, unless it is ignored; `defer_signals` postpones that, as for all after one.

    If a result `is_final`, signals that come after it stay deferred: they would change the exit status.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handlers = _handle(_raise_stopped, (*RELAYED, SAVES))
    try:
        yield
        if is_final:
            mask = {*mask, *RELAYED, SAVES}
    finally:
        _restore(handlers)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextlib.contextmanager
def signals_told(tell: Callable[[int], None]) -> Iterator[None]:
    """Call a function for a signal that asks this process to save or stop, unless the signal is ignored."""
    handlers = _handle(lambda number, _frame: tell(number), (*RELAYED, SAVES))
    try:
        yield
    finally:
        _restore(handlers)


@contextlib.contextmanager
def signals_noted() -> Iterator[Callable[[], bool]]:
    """Note signals that ask this process to stop, whoever handles them; the value says whether one came."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    came = False

    def has_come() -> bool:
        nonlocal came
        with contextlib.suppress(BlockingIOError):
            came = bool({*os.read(reader, 1024)} & {*RELAYED}) or came
        return came

    try:
        yield has_come
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


def _raise_stopped(number: int, _frame: FrameType | None) -> NoReturn:
    defer_signals()  # a second one would come while the first is dealt with
    raise Stopped(number)


def defer_signals() -> None:
    """Deliver signals that ask this process to stop later: at `heed_signals`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*RELAYED, SAVES))


def heed_signals() -> None:
    """Deliver signals at once, and those that were deferred."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*RELAYED, SAVES} - _shielded)


_shielded: set[signal.Signals] = set()


def shield_from_sigterm() -> None:
    """Block SIGTERM in this process and in those that it starts, where it asks zlaunch to save.

    Slurm sends it to all processes of a step at once: launchers and scripts would end before they have saved.
    """
    _shielded.add(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, _shielded)


def sender_of_sigterm() -> int | None:
    """Return the process that has sent SIGTERM to this shielded one since the last call, if any has."""
    if not _shielded:
        return None
    received = signal.sigtimedwait(_shielded, 0)
    if received is None:
        return None
    return received.si_pid


def is_told_by_parent() -> bool:
    """Whether the parent of this shielded process has sent it SIGTERM since the last call.

    A launcher ends its other ranks in this way when one has failed.
    """
    return sender_of_sigterm() == os.getppid()


def ignore_request_to_save() -> None:
    """Let this process and those that it starts ignore the signal, unless they handle it themselves."""
    signal.signal(SAVES, signal.SIG_IGN)


def _handle(
    handler: Callable[[int, FrameType | None], Any], numbers: Sequence[signal.Signals]
) -> dict[signal.Signals, Any]:
    """Handle signals that ask this process to stop, unless they are ignored; return the handlers before."""
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return {number: signal.signal(number, handler) for number in numbers}


def _restore(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


class Child:
    """A running program and its descendants."""

    handled: tuple[signal.Signals, ...] = RELAYED
    """The signals that this process handles as long as the program runs."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        log: IO[bytes],
        grace: float,
        *,
        tell: Callable[[int], None] | None = None,
        if_killed: Sequence[str] | None = None,
        shielded: bool = False,
    ) -> None:
        """Start a program whose output goes to a log.

        `grace` is the time it has to end after a signal, in seconds; `tell` delivers the signal if its
        process group must not get it directly. `if_killed` starts it under a reaper, which runs these words
        after this process was killed, and the program has ended. A `shielded` program starts with SIGTERM
        blocked.
        """
        begin = partial(die_with_parent, os.getpid())
        if if_killed is not None and sys.platform == "linux":
            begin = partial(fork_under_reaper, os.getpid(), tuple(if_killed))
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self.stopped_by: signal.Signals | None = None
        self.stopped_at: float | None = None
        self.was_overdue = False
        """Whether it was killed because it had not ended in time."""
        self._tell = tell or self._signal_group
        self._is_shielded = shielded
        self._grace = grace
        self._passed_on: set[int] = set()
        self._deadline = float("inf")
        self._process: subprocess.Popen[bytes] | None = None
        self._handlers = _handle(self.on_signal, self.handled)
        heed_signals()
        try:
            self._process = subprocess.Popen(
                argv,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(_begin, begin, shielded),  # noqa: PLW1509 - no threads here
            )
        except BaseException:
            self._let_go()
            raise
        for number in sorted(self._passed_on):  # signals from before there was a process
            self._deliver(number)

    @property
    def pid(self) -> int:
        """The process id of the program and of its session."""
        assert self._process is not None
        return self._process.pid

    def wait(self, tick: Callable[[], None]) -> int:
        """Wait for the end, calling `tick` periodically; return the exit status or minus the signal.

        Later signals are deferred, so that the end can be recorded: see `heed_signals`.
        """
        try:
            while (returncode := self._poll()) is None:
                tick()
                if time.monotonic() > self._deadline:
                    self._kill()
            self._wait_for_rest(tick)
            end_descendants()
        finally:
            self._let_go()
        tick()
        return returncode

    def _let_go(self) -> None:
        defer_signals()
        _restore(self._handlers)

    def end_within(self, seconds: float) -> None:
        """Kill the program if it has not ended after this time."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def _kill(self) -> None:
        """Kill the program and read its exit status before all descendants are reaped, which loses it."""
        assert self._process is not None
        self.was_overdue = True
        self._process.kill()
        self._poll()
        end_descendants()

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Pass on the first signal of each kind, and start the grace period."""
        if number in self._passed_on:
            return
        self._passed_on.add(number)
        if self.stopped_by is None:
            self.stopped_by = signal.Signals(number)
            self.stopped_at = time.time()
            self._deadline = time.monotonic() + self._grace
        if self._process is not None:
            self._deliver(number)

    def _deliver(self, number: int) -> None:
        """Tell the program of a signal; kill it if the file that would do so cannot be written."""
        try:
            self._tell(number)
        except OSError:
            self._deadline = 0.0

    def _signal_group(self, number: int) -> None:
        """Send a signal; a program that blocks SIGTERM is ended by SIGHUP."""
        if number in _shielded:
            number = signal.SIGHUP
        with contextlib.suppress(ProcessLookupError):
            self._send(number)

    def _send(self, number: int) -> None:
        os.killpg(self.pid, number)

    def depend_on(self, processes: "Sequence[psutil.Process]") -> None:
        """End the program if one of these processes is gone."""
        if not all(is_alive(process) for process in processes):
            self.on_signal(signal.SIGTERM, None)

    def _wait_for_rest(self, tick: Callable[[], None]) -> None:
        """Descendants that outlive the program are ended at once."""

    def _poll(self) -> int | None:
        assert self._process is not None
        try:
            return self._process.wait(TICK_SECONDS)
        except subprocess.TimeoutExpired:
            return None


def _begin(begin: Callable[[], None], shielded: bool) -> None:
    ignore_request_to_save()
    if shielded:
        shield_from_sigterm()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which takes its place, but `nohup` has it ignored
    begin()


class LauncherProcess(Child):
    """A program that starts ranks: they get the grace period even if the program itself ended at once."""

    left_ranks = False
    """Whether ranks were running when the program itself had ended."""

    def _wait_for_rest(self, tick: Callable[[], None]) -> None:
        assert self._process is not None
        self.left_ranks = any(map(_is_rank, descendants()))
        self._deadline = min(self._deadline, time.monotonic() + self._grace)
        # A launcher that is killed tells nobody, and DeepSpeed's runner leaves its node launcher behind.
        are_told = self._process.returncode >= 0 or self.stopped_by is not None
        while time.monotonic() < self._deadline and (left := descendants()):
            if not any(map(self._is_awaited, left)):
                return
            if not are_told:
                self._deliver(signal.SIGTERM)
                are_told = True
            tick()
            time.sleep(TICK_SECONDS)

    def _is_awaited(self, process: "psutil.Process") -> bool:
        """Whether a process gets time to end: a rank, and of a stopped program what shares its session."""
        if _is_rank(process):
            return True
        with contextlib.suppress(ProcessLookupError):
            return self.stopped_by is not None and os.getsid(process.pid) == self.pid
        return False


class Foreground(LauncherProcess):
    """A launcher in a terminal: a second signal of the same kind kills it at once.

    SIGTERM does not do so if the launcher is shielded from it: Slurm sends it more than once.
    """

    handled = (*RELAYED, SAVES)
    _sent: frozenset[int] = frozenset()
    save_first: Callable[[int], bool] | None = None
    """Whether the program is to save first; it is then stopped by `on_signal` without a frame."""

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Pass on the first signal of each kind; at the second, stop waiting.

        A request that came through a file has no frame and does not count: its sender may send a signal too.
        """
        is_repeated = frame is not None and number in self._sent
        if frame is not None:
            self._sent |= {number} - {SAVES}
            is_repeated = is_repeated and not (self._is_shielded and number == signal.SIGTERM)
            if self.save_first is not None and not is_repeated and self.save_first(number):
                return
        if number == SAVES:
            number = signal.SIGTERM
        super().on_signal(number, frame)
        if is_repeated:
            self._deadline = 0.0


def process_started() -> float:
    """When this process was started, in seconds since 1970."""
    import psutil

    return psutil.Process().create_time()


def may_signal(pid: int) -> bool:
    """Whether this user may send a signal to a process; True if it is gone."""
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
    """The running descendants of this process; those that have ended are reaped."""
    import psutil

    children = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(children, timeout=0)
    return alive


def end_descendants() -> None:
    """Kill and reap all descendants of this process, however often they forked.

    Two empty lists in a row are needed: a process whose parent ends meanwhile is missing from one.
    """
    import psutil

    empty_lists = 0
    for _ in range(100):
        left = descendants()
        empty_lists += 1
        if left:
            empty_lists = 0
        if empty_lists == 2:
            return
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=0.1)


def lifeline(top: int) -> "list[psutil.Process]":
    """The processes this one depends on: its ancestors up to `top`, or to the ssh session it came from."""
    import psutil

    line: list[psutil.Process] = []
    for process in psutil.Process().parents():
        line.append(process)
        if process.pid == top or process.name().startswith("sshd"):
            return line
    return line[:1]


def end_like(returncode: int) -> NoReturn:
    """End this process like another one, by the same signal if there was one, without a core dump."""
    if returncode < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in RELAYED:
            signal.signal(number, signal.SIG_IGN)  # deferred ones
        with contextlib.suppress(OSError):
            signal.signal(-returncode, signal.SIG_DFL)
        _shielded.clear()
        heed_signals()
        os.kill(os.getpid(), -returncode)
    sys.exit(returncode)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
