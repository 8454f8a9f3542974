"""The whole program, as a person runs it.

`zlaunch` and `start` fork a process that has imported the package; with ZLAUNCH_TESTS_EXEC=1 they start Python, as
everything here does that names `ZLAUNCH`.
"""

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, AnyStr

from tests.commands import foreign_options
from tests.fork_server import NUMBER_BYTES, Request

ROOT = Path(__file__).resolve().parent.parent
ZLAUNCH = (sys.executable, "-m", "zlaunch")
ACTIVATED = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])}
"""The environment of an activated Python, whose ninja zlaunch gives to ranks; another compiles every op again."""
CONFIGS = ROOT / "configs"
RECIPE = ROOT / "recipes" / "causal_lm.py"
READ_BEFORE_THE_FIRST_LINE = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
"""How the variables begin that the interpreter reads before it runs any Python."""


PATIENCE = 900.0
"""Seconds for a command that has hung: one that works may take minutes where the disk is slow."""

GRACE_SECONDS = 30.0
"""How long a program may take to end its job when its test has failed."""


class Program(subprocess.Popen[AnyStr]):
    """A `Popen` that ends its program if the test in its `with` block fails; `Popen` waits for it, maybe forever."""

    def __exit__(self, kind: type[BaseException] | None, *more: Any) -> None:
        if kind is not None:
            self.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.wait(GRACE_SECONDS)
            self.kill()
        super().__exit__(kind, *more)


@dataclass(frozen=True)
class Result:
    """What came of a command."""

    status: int
    out: str
    err: str


def zlaunch(
    *args: object,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    timeout: float = PATIENCE,
    python: str = sys.executable,
) -> Result:
    """Run zlaunch to its end; whatever its hints tell to add, the command has."""
    pipe = subprocess.PIPE
    with start(*args, cwd=cwd, env=env, stdout=pipe, stderr=pipe, python=python) as program:
        try:
            out, err = program.communicate(timeout=timeout)
        except BaseException:
            program.kill()
            raise
    done = Result(program.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))
    foreign = foreign_options([str(word) for word in args], done.err)
    assert not foreign, f"a hint names options that this command does not have: {foreign}\n{done.err}"
    return done


def run(*argv: object, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = PATIENCE) -> Result:
    """Run any program to its end."""
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    return Result(
        done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
    )


def on_terminal(*argv: object, cwd: Path) -> Result:
    """Run any program on a terminal of its own, which shows both streams."""
    spawn = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    return run(sys.executable, "-c", spawn, *argv, cwd=cwd)


def start(
    *args: object,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] | None = None,
    stdout: int | IO[bytes] = subprocess.DEVNULL,
    stderr: int | IO[bytes] = subprocess.DEVNULL,
    python: str = sys.executable,
) -> Program[bytes]:
    """Start zlaunch and come back."""
    whole = {**os.environ, **(env or {})}
    kind = Forked if may_fork(whole, python) else Program
    argv = [python, *ZLAUNCH[1:], *(str(word) for word in args)]
    return kind(argv, cwd=cwd, env=whole, stdin=stdin, stdout=stdout, stderr=stderr)


def may_fork(env: Mapping[str, str], python: str = sys.executable) -> bool:
    """Say whether the variables that were read before a fork have the same values in its environment."""
    if os.environ.get("ZLAUNCH_TESTS_EXEC"):
        return False
    read = server(python).variables_read
    return all(
        env.get(name) == os.environ.get(name)
        for name in {*env, *os.environ}
        if name in read or name.startswith(READ_BEFORE_THE_FIRST_LINE)
    )


@dataclass(frozen=True)
class Server:
    """A fork server of this process."""

    process: "subprocess.Popen[bytes]"
    requests: socket.socket
    variables_read: frozenset[str]


_SERVERS: dict[str, Server] = {}


def server(python: str, module: str = "tests.fork_server") -> Server:
    """Find the fork server of an interpreter, or start it. It ends when the socket is closed."""
    if python in _SERVERS:
        return _SERVERS[python]
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        argv = [python, "-m", module, str(its.fileno())]
        process = subprocess.Popen(argv, cwd=ROOT, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
    read = ours.recv(1 << 20)
    assert read, "the fork server could not start; its stderr says why"
    return _SERVERS.setdefault(python, Server(process, ours, frozenset(json.loads(read))))


def end_servers() -> None:
    """End the servers that were started."""
    while _SERVERS:
        _, one = _SERVERS.popitem()
        one.requests.close()
        one.process.wait()


class Forked(Program[bytes]):
    """A `Popen` whose child is a fork of the server's: the same pipes, and one more for its pid and exit status."""

    def _execute_child(self, args: list[str], *more: Any) -> None:
        cwd, env, pipes = more[4], more[5], more[9:15]  # as in every Python from 3.10 on
        files = [number if file == -1 else file for number, file in enumerate(pipes[i] for i in (0, 3, 5))]
        message = json.dumps(asdict(Request(args[2], args[3:], str(cwd), env))).encode()
        self._told, told = os.pipe()
        socket.send_fds(server(args[0]).requests, [message], [*files, told])
        os.close(told)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True
        self.pid = self._number()

    def _number(self) -> int:
        read = os.read(self._told, NUMBER_BYTES)
        assert read, "the parent of a fork was killed"
        return int.from_bytes(read, "big")

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._told], [], [], 0)[0]:
            return 0, 0
        status = self._number()
        os.close(self._told)
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def the_run(cwd: Path) -> Path:
    """Find the directory of the only run that was started here."""
    (directory,) = (cwd / "runs").iterdir()
    return directory
