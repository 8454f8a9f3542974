"""A script under zlaunch is what it is without: the same words, the same status, the same world around it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT, the_run, zlaunch
from zlaunch.rundir.layout import STACKS_SIGNAL
from zlaunch.worker.hook import hook_environment

WORLD = """
import json, os, subprocess, sys
spec = None if __spec__ is None else __spec__.name
child = "import json, os, sys; print(json.dumps([sys.path, sorted(os.environ.items())]))"
print(json.dumps({
    "name": __name__, "file": __file__, "spec": spec, "builtins": repr(__builtins__), "package": __package__,
    "loader": type(__loader__).__name__, "names": sorted(globals()),
    "main": sys.modules["__main__"].__dict__ is globals(),
    "argv": sys.argv, "path": sys.path, "flags": str(sys.flags), "orig_argv": sys.orig_argv,
    "executable": sys.executable, "prefix": sys.prefix, "warnoptions": sys.warnoptions,
    "environ": sorted(os.environ.items()),
    "finders": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path if "zlaunch" not in repr(f)],
    "path_hooks": len(sys.path_hooks), "hook": repr(sys.excepthook), "cwd": os.getcwd(),
    "sitecustomize": "sitecustomize" in sys.modules, "cached": [p for p in sys.path_importer_cache if p.endswith("hook/site")],
    "descriptor": os.open(os.devnull, os.O_RDONLY), "trace": repr(sys.gettrace()), "profile": repr(sys.getprofile()),
    "displayhook": repr(sys.displayhook), "recursion": sys.getrecursionlimit(),
    "child": subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout,
    "grandchild": sorted(subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()),
}, indent=1))
"""

SAME = {
    "the world around it": WORLD,
    "sys.exit with a number": "import sys; sys.exit(3)",
    "sys.exit with a text": "import sys; sys.exit('that was it')",
    "sys.exit with nothing": "import sys; sys.exit()",
    "os._exit": "import os; os._exit(9)",
    "an exception": "def f():\n    return 1 / 0\nf()",
    "a chain of exceptions": "try:\n    {}['a']\nexcept KeyError as e:\n    raise ValueError('b') from e",
    "a group of exceptions": "raise ExceptionGroup('g', [ValueError(1), ExceptionGroup('h', [KeyError(2)])])"
    if sys.version_info >= (3, 11)
    else "",
    "an exception with notes and no text": "class E(Exception):\n    def __str__(self): raise TypeError\nraise E",
    "a syntax error": "x = (",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "a crash": "import ctypes; ctypes.string_at(0)",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "a thread that raises": (
        "import threading\ndef f(): raise ValueError('in a thread')\n"
        "t = threading.Thread(target=f, name='t'); t.start(); t.join(); print('after')"
    ),
    "an excepthook of its own": "import sys\nsys.excepthook = lambda *args: print('mine', args[1])\nraise ValueError(7)",
    "an excepthook that raises": "import sys\ndef f(*_): raise TypeError\nsys.excepthook = f\nraise ValueError(7)",
    "an excepthook that exits": "import os, sys\nsys.excepthook = lambda *_: os._exit(5)\nraise ValueError(7)",
    "handlers at exit": "import atexit\natexit.register(print, 'bye')\natexit.register(lambda: 1 / 0)",
    "a fork that raises": "import os\nif os.fork() == 0:\n    raise ValueError('child')\nprint(os.wait()[1])",
    "workers that are spawned and raise": (
        "import multiprocessing as m\ndef f(n):\n    return 10 // n\n"
        "if __name__ == '__main__':\n    with m.get_context('spawn').Pool(1) as p:\n        p.map(f, [1, 0])"
    ),
    "workers that are forked and raise": (
        "import multiprocessing as m\ndef f(n):\n    return 10 // n\n"
        "if __name__ == '__main__':\n    with m.get_context('fork').Pool(1) as p:\n        p.map(f, [1, 0])"
    ),
    "functions of __main__ pickled": (
        "import pickle\ndef f(): return 5\nclass C: pass\nprint(pickle.dumps(f), pickle.loads(pickle.dumps(C)) is C)"
    ),
    "breakpoints switched off": "breakpoint()\nprint('went on')",
    "a debugger on nothing": "import pdb, sys\nsys.argv\npdb.set_trace()\nprint('never')",
    "its own faulthandler": "import faulthandler, os\nfaulthandler.enable()\nos.abort()",
    "its own dump": "import faulthandler\nfaulthandler.dump_traceback()",
    "from __future__": "from __future__ import annotations\ndef f(x: Nothing): pass\nprint(f.__annotations__)",
    "a warning": "import warnings\nwarnings.warn('careful')\nwarnings.warn('old', DeprecationWarning)",
    "an open file": "import sys\nf = open(sys.argv[0])\ndel f\ng = open(sys.argv[0])",
    "all files closed, and its own opened": (
        "import os\nos.closerange(3, 1000)\nfd = [os.open('mine', os.O_RDWR | os.O_CREAT) for _ in range(300)]\n"
        "import sys; sys.exit(open('mine').read())"
    ),
    "a program in place of itself": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'import sys; print(sys.path)'])",
    "a module that is not there": "import nothing_of_this_name",
    "sitecustomize imported": "import sitecustomize",
    "a program that reads its input": "print(repr(input()))",
}


def plain(folder: Path, *argv: str, env: Mapping[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-u", *argv],
        cwd=folder,
        env=dict(env),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    out, err = (re.sub("0x[0-9a-f]{6,}", "0x", text.decode()) for text in (done.stdout, done.stderr))
    return done.returncode, out, err


def hooked(folder: Path, *argv: str, env: Mapping[str, str]) -> tuple[int, str, str]:
    (folder / "r" / "ranks").mkdir(parents=True, exist_ok=True)
    return plain(folder, *argv, env={**env, **hook_environment(folder / "r", env)})


def environment(**more: str) -> dict[str, str]:
    named = ("PATH", "HOME", "LANG", "VIRTUAL_ENV")
    base = {name: os.environ[name] for name in named if name in os.environ}
    return {
        **base,
        "RANK": "0",
        "ZLAUNCH_TESTS_EXEC": "1",
        "PYTHONBREAKPOINT": "0",
        "PYTHONHASHSEED": "0",
        **more,
    }


def noted(folder: Path, name: str = "pulse") -> dict[str, Any]:
    found = json.loads((folder / "r" / "ranks" / f"rank-0.{name}.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("text", SAME.values(), ids=SAME.keys())
def test_a_script_does_exactly_what_it_does_without(text: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(text)
    argv, env = ("script.py", "--flag", "two words"), environment()
    assert hooked(tmp_path, *argv, env=env) == plain(tmp_path, *argv, env=env)
    assert noted(tmp_path)["time"]


# Not `-E` nor `-I`: with them Python does not look for the hook, and nothing is watched.
@pytest.mark.parametrize("switch", ["-Werror", "-Xdev", "-O", "-s", "-P"])
def test_switches_of_python_mean_the_same(switch: str, tmp_path: Path) -> None:
    if switch == "-P" and sys.version_info < (3, 11):
        pytest.skip("not known to this Python")
    (tmp_path / "script.py").write_text(WORLD)
    was, is_ = (run(tmp_path, switch, "script.py", env=environment()) for run in (plain, hooked))
    assert is_ == was


@pytest.mark.parametrize("value", ["", ":", "lib", "lib:", ":lib", "lib:lib:other", "/nowhere"])
def test_pythonpath_is_what_it_was(value: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WORLD)
    env = environment(PYTHONPATH=value)
    assert hooked(tmp_path, "script.py", env=env) == plain(tmp_path, "script.py", env=env)


@pytest.mark.parametrize(
    "text",
    ["print('theirs', __name__)", "import nothing_there", "1 / 0", "import sys\nsys.excepthook = print"],
)
@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_customizations_of_the_user_run_as_they_do_without(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / f"{name}.py").write_text(text)
    (tmp_path / "script.py").write_text(
        f"import sys\nprint(sys.modules.get({name!r}), sys.excepthook)\nraise ValueError(3)"
    )
    env = environment(PYTHONPATH="lib")
    assert hooked(tmp_path, "script.py", env=env) == plain(tmp_path, "script.py", env=env)


def test_a_package_run_with_m_is_itself(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(WORLD)
    argv = ("-m", "package", "--flag")
    assert hooked(tmp_path, *argv, env=environment()) == plain(tmp_path, *argv, env=environment())


PACKAGE = """
import warnings
warnings.warn("this package is old", DeprecationWarning, stacklevel=2)
class PreTrainedModel:
    @classmethod
    def from_pretrained(cls, name, *, revision="main"):
        \"\"\"Load it.\"\"\"
        warnings.warn("loaded", DeprecationWarning, stacklevel=2)
        if name == "bad":
            raise OSError("no such model")
        return cls
"""
WRAPPED = """
import inspect, pickle, sys, traceback
from transformers.modeling_utils import PreTrainedModel
class Mine(PreTrainedModel): pass
load = Mine.from_pretrained
print(inspect.signature(load), inspect.getsource(load), load.__name__, load.__qualname__, load.__module__, load.__doc__)
print(pickle.dumps(load), Mine.from_pretrained("good") is Mine, len(inspect.stack()))
print(type(sys.modules["transformers.modeling_utils"].__loader__), vars(sys.modules["transformers.modeling_utils"].__loader__))
try:
    load("bad")
except OSError as error:
    traceback.print_exc()
    caught = error
try:
    load()
except TypeError:
    traceback.print_exc()
import transformers.trainer
"""


@pytest.mark.parametrize("end", ["load('bad')", "load(1, 2)", "raise ValueError from caught", "import torch"])
def test_wrapped_functions_look_and_fail_as_they_do_without(end: str, tmp_path: Path) -> None:
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("")
    (tmp_path / "transformers" / "modeling_utils.py").write_text(PACKAGE)
    (tmp_path / "transformers" / "trainer.py").write_text("DEFAULT_CALLBACKS = []")  # no TrainerCallback
    (tmp_path / "torch.py").write_text("def f():\n    raise RuntimeError('broken')\nf()")
    (tmp_path / "script.py").write_text(WRAPPED + end)
    argv, env = ("-Wd", "script.py"), environment()
    assert hooked(tmp_path, *argv, env=env) == plain(tmp_path, *argv, env=env)
    assert noted(tmp_path, "error")["phase"] == ("loading the model" if "load" in end else "starting")


SUCCEEDED = """
from transformers.modeling_utils import PreTrainedModel
try:
    PreTrainedModel.from_pretrained("bad")
except OSError as error:
    caught = id(error)
kept = [OSError("another") for _ in range(100)]
raise next(error for error in kept if id(error) == caught)
"""


def test_an_exception_in_the_place_of_one_that_was_freed_has_a_phase_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text("")
    (tmp_path / "transformers" / "modeling_utils.py").write_text(PACKAGE)
    (tmp_path / "script.py").write_text(SUCCEEDED)
    hooked(tmp_path, "script.py", env=environment())
    assert (noted(tmp_path, "error")["type"], noted(tmp_path, "error")["phase"]) == ("OSError", "starting")


def test_what_was_to_be_done_at_exit_is_no_training_for_a_script_that_reports(tmp_path: Path) -> None:
    text = "import atexit, os\natexit.register(os.abort)\nfrom zlaunch.worker.report import report\nreport(1, steps=1)"
    (tmp_path / "script.py").write_text(text)
    status, _, _ = hooked(tmp_path, "script.py", env=environment(PYTHONPATH=str(ROOT)))
    assert (status, noted(tmp_path)["phase"]) == (-signal.SIGABRT, "exiting")


def test_an_exception_is_written_down_with_the_users_deepest_line(tmp_path: Path) -> None:
    text = "import json, sys\nsys.excepthook = lambda *_: None\ndef read():\n    json.loads('{')\nread()"
    (tmp_path / "script.py").write_text(text)
    assert hooked(tmp_path, "script.py", env=environment())[0] == 1
    error = noted(tmp_path, "error")
    assert error["type"] == "JSONDecodeError"
    assert error["frame"] == {"file": str(tmp_path / "script.py"), "line": 4, "function": "read"}
    assert error["traceback"].startswith("Traceback (most recent call last):\n")


@pytest.mark.parametrize(
    "text", ["import sys; sys.exit(1)", "print(1)", "import os\nif os.fork() == 0: 1 / 0\nos.wait()"]
)
def test_what_is_no_exception_of_the_script_is_not_written_as_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(text)
    hooked(tmp_path, "script.py", env=environment())
    assert not (tmp_path / "r" / "ranks" / "rank-0.error.json").exists()


def test_the_stacks_come_when_they_are_asked_for(tmp_path: Path) -> None:
    text = f"import os\ndef here():\n    os.kill(os.getpid(), {int(STACKS_SIGNAL)})\nhere()\nprint('went on')"
    (tmp_path / "script.py").write_text(text)
    assert hooked(tmp_path, "script.py", env=environment())[:2] == (0, "went on\n")
    assert "line 3 in here" in (tmp_path / "r" / "ranks" / "rank-0.stacks").read_text()


def test_the_stacks_of_a_crash_are_kept_beside_what_the_user_sees(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os\nos.abort()")
    assert hooked(tmp_path, "script.py", env=environment()) == (-signal.SIGABRT, "", "")
    assert "Fatal Python error: Aborted" in (tmp_path / "r" / "ranks" / "rank-0.stacks").read_text()


def test_a_user_who_wants_crashes_on_the_screen_sees_them_there(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os\nos.abort()")
    env = environment(PYTHONFAULTHANDLER="1")
    assert hooked(tmp_path, "script.py", env=env) == plain(tmp_path, "script.py", env=env)


@pytest.mark.parametrize("missing", ["RANK", "the run directory", "room", "files"])
def test_a_script_runs_even_if_nobody_can_watch_it(missing: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import resource, sys; print(len(sys.path)); sys.exit(4)")
    env = environment()
    (tmp_path / "r" / "ranks").mkdir(parents=True)
    if missing == "RANK":
        del env["RANK"]
    if missing == "the run directory":
        (tmp_path / "r" / "ranks").rmdir()
    if missing == "room":
        (tmp_path / "r" / "ranks" / "rank-0.pulse.json").symlink_to("/dev/full")
        (tmp_path / "r" / "ranks" / "rank-0.stacks").symlink_to("/dev/full")
    watched = {**env, **hook_environment(tmp_path / "r", env)}
    limit = "ulimit -n 30; " if missing == "files" else ""
    argv = ["sh", "-c", f'{limit}exec "$0" "$@"', sys.executable, "script.py"]
    done = subprocess.run(argv, cwd=tmp_path, env=watched, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (4, "")
    assert done.stdout == plain(tmp_path, "script.py", env=env)[1]


@pytest.mark.job
def test_a_script_under_zlaunch_sees_the_world_it_sees_under_the_bare_launcher(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WORLD)
    result = zlaunch("train", "script.py", "--gpus", "1", "--", "--flag", "two words", cwd=tmp_path)
    assert result.status == 0, result.err
    seen = json.loads((the_run(tmp_path) / "logs" / "rank-0.log").read_text())
    env = dict(seen["environ"])
    added = env.keys() - os.environ.keys()
    assert not [name for name in added if name.startswith("ZLAUNCH") and name != "ZLAUNCH_DS_CONFIG"]
    assert not [name for name in env if "zlaunch/worker/hook" in env[name]]
    argv = [word for word in seen["argv"] if word]
    assert json.loads(plain(tmp_path, *argv, env=env)[1]) == seen
