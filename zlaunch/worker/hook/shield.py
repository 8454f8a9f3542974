"""End programs that were started with SIGTERM blocked, as the script was.

Slurm sends SIGTERM to all processes of a job, so zlaunch starts the script with that signal blocked. Its own
processes inherit this: data loaders must not end before their rank has saved. But a script that ends one of
them with SIGTERM, as `Process.terminate()` of multiprocessing does, would wait for it forever. So SIGHUP
follows, which ends such a process.
"""

import contextlib
import functools
import os
import signal
from collections.abc import Callable

from zlaunch.worker.hook.imports import unseen

Send = Callable[[int, int], None]


def shield_children() -> None:
    """Have `os.kill` and `os.killpg` end processes that block SIGTERM, if this process blocks it."""
    if signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        for name in ("kill", "killpg"):
            setattr(os, name, _also_hanging_up(getattr(os, name)))


def _also_hanging_up(send: Send) -> Send:
    @functools.wraps(send)
    def sent(pid: int, number: int, /) -> None:
        send(pid, number)
        if number == signal.SIGTERM and _blocks_sigterm(pid):
            with contextlib.suppress(ProcessLookupError):
                send(pid, signal.SIGHUP)

    return unseen(sent)


def _blocks_sigterm(pid: int) -> bool:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status", "rb") as status:  # noqa: PTH123
        for line in status:
            if line.startswith(b"SigBlk:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False
