"""A fork of the server's cannot be told from a new Python: `tests.running` starts zlaunch in both ways."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import Forked, Program, may_fork

PROBE = """
import gc, io, json, os, resource, signal, sys, threading

def stream(one):
    names = ("encoding", "errors", "line_buffering", "write_through", "mode", "name", "newlines")
    return [type(one).__name__, type(one.buffer).__name__, *(getattr(one, name, None) for name in names)]

print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "name": __name__, "file": __file__,
    "spec": __spec__.name, "main": sys.modules["__main__"].__dict__ is globals(), "cwd": os.getcwd(),
    "environment": dict(os.environ), "umask": os.umask(0o22), "group": os.getpgrp(), "session": os.getsid(0),
    "streams": [stream(one) for one in (sys.stdin, sys.stdout, sys.stderr)],
    "files": {name: os.path.exists(f"/proc/self/fd/{name}") for name in range(64)},
    "signals": {number: str(signal.getsignal(number)).partition(" at ")[0] for number in signal.valid_signals()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), "gc": [gc.isenabled(), gc.get_threshold()],
    "limits": [resource.getrlimit(number) for number in range(16)],
    "threads": threading.active_count(), "read": sys.stdin.read(), "flags": str(sys.flags),
}, sort_keys=True))
"""
ENDS = {
    "return": "print('said')",
    "status": "import sys; sys.exit(7)",
    "message": "import sys; sys.exit('a message')",
    "exception": "raise ValueError('a reason')",
    "signal": "import os; os.kill(os.getpid(), 9)",
    "abort": "import os; os.abort()",
    "interrupt": "raise KeyboardInterrupt",
    "exit functions": "import atexit; atexit.register(print, 'at exit')",
    "full": "import sys; sys.stdout = open('/dev/full', 'w'); print('x')",
    "no flush": "import os; print('lost'); os._exit(3)",
}


def ended(kind: Any, module: str, folder: Path) -> tuple[int, str, str]:
    argv = [sys.executable, "-m", module, "a", "b c"]
    pipe = subprocess.PIPE
    env = {**os.environ, "TZ": "Asia/Tokyo"}
    with kind(argv, cwd=folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as program:
        out, err = program.communicate(b"to read\n", timeout=60)
    return program.returncode, out.decode(), err.decode()


def test_a_fork_finds_what_a_new_process_would_find(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    forked, new = (json.loads(ended(kind, "probe", tmp_path)[1]) for kind in (Forked, subprocess.Popen))
    assert forked == new


def test_a_fork_ends_as_a_new_process_would_end(tmp_path: Path) -> None:
    ends = {}
    for number, (name, text) in enumerate(ENDS.items()):
        (tmp_path / f"end{number}.py").write_text(text)
        forked, new = (ended(kind, f"end{number}", tmp_path) for kind in (Forked, subprocess.Popen))
        ends[name] = [(status, out, err.splitlines()[-1:]) for status, out, err in (forked, new)]
    assert {name for name, (forked, new) in ends.items() if forked != new} == set(), ends


def test_a_fork_can_be_signalled_waited_for_and_left(tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text("import time; print('ready', flush=True); time.sleep(60)")
    argv = [sys.executable, "-m", "sleeps"]
    with Forked(argv, cwd=tmp_path, env=os.environ.copy(), stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        assert program.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.01)
        assert Path(f"/proc/{program.pid}/cwd").readlink() == tmp_path
        program.terminate()
        assert (program.wait(60), program.poll()) == (-15, -15)


@pytest.mark.parametrize("kind", [Forked, Program])
def test_a_program_ends_with_the_test_that_fails(kind: type[Program[bytes]], tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text("import time; time.sleep(60)")
    argv = [sys.executable, "-m", "sleeps"]
    with pytest.raises(ZeroDivisionError), kind(argv, cwd=tmp_path, env=os.environ.copy()) as program:
        _ = 1 / 0
    assert program.returncode == -15


def test_what_was_read_before_a_fork_makes_a_new_process_necessary() -> None:
    changes = ("PYTHONPATH", "LC_ALL", "TYPER_USE_RICH", "ZLAUNCH_OF_NO_MEANING")
    assert [may_fork({**os.environ, name: "0"}) for name in changes] == [False, False, False, True]
