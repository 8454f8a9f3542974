"""A process that has imported zlaunch and forks for every start, which takes 20 ms instead of 300.

`python -m tests.fork_server FD` serves the client at the other end of a Unix socket. A fork is what a
new process would be: it gets the client's files, directory, environment and arguments, goes through `runpy` as
`python -m zlaunch` does, and ends as the interpreter ends. Its parent, another fork, tells the client its pid and
its exit status.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OTHER_PROGRAMS = (
    *("zlaunch.__main__.", "zlaunch.checkpoint.in_order.", "zlaunch.estimate.rehearsal."),
    *("zlaunch.parity.program.", "zlaunch.recipes.", "zlaunch.worker."),
)
NUMBER_BYTES = 8
STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


@dataclass(frozen=True)
class Request:
    """A start; its three files and the pipe to the client travel beside it."""

    module: str
    args: list[str]
    cwd: str
    env: dict[str, str]


def preload() -> set[str]:
    """Import the modules that a start may import; return the environment variables that were read meanwhile."""
    import zlaunch
    from zlaunch.dsconfig.schema.root import DsConfig

    with variables_read() as read:
        for found in pkgutil.walk_packages(zlaunch.__path__, "zlaunch."):
            if not f"{found.name}.".startswith(OTHER_PROGRAMS):
                importlib.import_module(found.name)
        DsConfig.model_rebuild()
    assert not filled_caches()
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()  # what no fork looks at is never copied
    return read


def filled_caches() -> list[str]:
    """Name the functions of zlaunch that remember something already; a fork would not ask again."""
    return [
        one.__qualname__
        for one in gc.get_objects()
        if isinstance(one, functools._lru_cache_wrapper)
        and one.__module__.startswith("zlaunch")
        and one.cache_info().currsize
    ]


@contextlib.contextmanager
def variables_read() -> Iterator[set[str]]:
    """Collect the names of environment variables that are read."""
    read: set[str] = set()
    kind: Any = type(os.environ)
    plain = kind.__getitem__

    def recorded(self: Any, name: str) -> Any:
        read.add(name)
        return plain(self, name)

    kind.__getitem__ = recorded
    try:
        yield read
    finally:
        kind.__getitem__ = plain


def serve(client: socket.socket) -> Request | None:
    """Fork for each request. Return the request in a fork, and nothing in the server once its client has gone."""
    while True:
        message, files, _, _ = socket.recv_fds(client, 1 << 20, 4)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        if not message:
            return None
        if os.fork() == 0:
            client.close()
            request = Request(**json.loads(message))
            run_once(request, files)
            return request
        for file in files:
            os.close(file)


def run_once(request: Request, files: list[int]) -> None:
    """Fork; return in the fork, as what was requested. The parent tells the client the pid and the wait status."""
    *standard, client = files
    pid = os.fork()
    if pid == 0:
        os.close(client)
        become(request, standard)
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    for file in (0, 1, 2, *standard):
        os.close(file)
    os.write(client, pid.to_bytes(NUMBER_BYTES, "big"))
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(client, status.to_bytes(NUMBER_BYTES, "big"))
    os._exit(0)


def become(request: Request, files: list[int]) -> None:
    """Take on what a new process starts with."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    time.tzset()
    for number, (name, mode) in enumerate(STREAMS):
        stream = opened(number, mode, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv = ["-m", *request.args]
    sys.orig_argv = [sys.executable, "-m", request.module, *request.args]
    sys.path[0] = str(Path.cwd())
    sys.path_importer_cache.clear()


def opened(number: int, mode: str, like: io.TextIOWrapper) -> Any:
    """Open a standard stream as the interpreter does when it starts."""
    unbuffered = like.write_through  # PYTHONUNBUFFERED is set
    buffering = 0 if unbuffered and mode == "w" else -1
    binary: Any = open(number, f"{mode}b", buffering=buffering, closefd=False)  # noqa: SIM115
    getattr(binary, "raw", binary).name = like.name
    text: Any = io.TextIOWrapper(
        binary,
        encoding=like.encoding,
        errors=like.errors,
        newline="\n",
        line_buffering=not unbuffered and (number == 2 or binary.isatty()),
        write_through=unbuffered,
    )
    text.mode = mode
    return text


def run_module(name: str) -> None:
    """Run a module as `python -m` does, and end without taking the interpreter apart, which copies all its pages.

    What ends otherwise than by `sys.exit`, or cannot flush its output, ends as the interpreter ends.
    """
    status: Any = 0
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = 0 if end.code is None else end.code
        if not isinstance(status, int):
            raise
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        sys.exit(status)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as its_client:
        its_client.send(json.dumps(sorted(preload())).encode())
        requested = serve(its_client)
    if requested is not None:
        run_module(requested.module)
