"""The reaper between zlaunch and a program that it starts: `reaper PROGRAM ZLAUNCH`, with two process ids.

It is the parent of the program, and of all its descendants whose own parent has ended. It lets no process
remain, also if zlaunch and the program are killed at the same time: then it kills what is left, daemons
too, and cleans up in place of zlaunch. So that it does not share their end, its command line has no
`zlaunch` that `pkill -f` would find. Python runs it with the standard library alone.
"""

import json
import os
import resource
import signal
import sys
import time
from pathlib import Path

GRACE_SECONDS = 8.5
"""How long the program may take to end after zlaunch was killed, and ranks after the program was.

`grace` has the times of the others.
"""

POLL_SECONDS = 0.1
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RANK_PROGRAM = b"zlaunch.worker.rank"


def main(program: int, zlaunch: int) -> None:
    """Wait for the program, end what is left of it, and end like the program itself."""
    status = _wait(program, zlaunch)
    _end_children()
    is_killed = os.getppid() != zlaunch
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)  # those that came too late
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if is_killed and (words := json.loads(os.environ.pop("ZLAUNCH_IF_KILLED"))):
        os.execvp(words[0], words)
    _end_like(status)


def _wait(program: int, zlaunch: int) -> int:
    """Return the wait status of the program, which gets every signal, and SIGTERM if zlaunch is gone.

    All these signals are blocked since before this process was started.
    """
    relayed = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    deadline = float("inf")
    while os.waitid(os.P_PID, program, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        received = signal.sigtimedwait([signal.SIGCHLD, *relayed], POLL_SECONDS)
        if received is not None and received.si_signo in relayed:
            os.kill(program, received.si_signo)
        if os.getppid() != zlaunch and deadline == float("inf"):
            deadline = time.monotonic() + GRACE_SECONDS
            os.kill(program, signal.SIGTERM)
        if time.monotonic() > deadline:
            os.kill(program, signal.SIGKILL)
    return os.waitpid(program, 0)[1]


def _end_children() -> None:
    """Kill all processes that are left, as soon as no rank is among them that ends its script itself."""
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        children = _children()
        if time.monotonic() > deadline or not any(RANK_PROGRAM in _file(pid, "cmdline") for pid in children):
            for pid in children:
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def _children() -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if _parent(pid) == os.getpid()]


def _parent(pid: int) -> int | None:
    """Read the fourth field of `stat`; the second is a name that may hold spaces and parentheses."""
    fields = _file(pid, "stat").rpartition(b")")[2].split()
    if not fields:
        return None
    return int(fields[1])


def _file(pid: int, name: str) -> bytes:
    try:
        return Path("/proc", str(pid), name).read_bytes()
    except OSError:
        return b""


def _end_like(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
