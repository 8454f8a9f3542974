"""Which ops are ready, against torch: one is ready exactly if torch only loads it."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.running import ACTIVATED, run
from zlaunch.dsconfig.native_ops import NativeOp
from zlaunch.hosts.machine.compiled_ops import CompiledOps
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.op_cache import find_op_cache
from zlaunch.hosts.machine.probe import probe_machine

pytestmark = pytest.mark.job

LOAD = """
import sys
from torch.utils.cpp_extension import load
for name in sys.argv[2:]:
    folder = f"{sys.argv[1]}/{name}"
    load(name, [f"{folder}/one.cpp", f"{folder}/two.cpp"], is_python_module=False)
"""

HARMS: dict[str, Callable[[Path, Path], object]] = {
    "nothing": lambda *_: None,
    "object": lambda _, built: (built / "one.o").unlink(),
    "library": lambda _, built: (built / "library.so").unlink(),
    "source": lambda source, _: (source / "two.cpp").write_text("int two() { return 3; }\n"),
    "header": lambda source, _: (source / "one.h").touch(),
    "log": lambda _, built: (built / ".ninja_log").unlink(),
    "dependencies": lambda _, built: (built / ".ninja_deps").unlink(),
    "folder": lambda _, built: shutil.rmtree(built),
    "compiler": lambda *_: None,
}
"""What happens to a library between two loads; at "compiler" the second one is with another."""


def test_an_op_is_ready_exactly_if_torch_only_loads_it(tmp_path: Path) -> None:
    for name in HARMS:
        source = tmp_path / "src" / name
        source.mkdir(parents=True)
        (source / "one.h").write_text("#define ONE 1\n")
        (source / "one.cpp").write_text('#include "one.h"\nint one() { return ONE; }\n')
        (source / "two.cpp").write_text("int two() { return 2; }\n")
    load(tmp_path, *HARMS)
    ops = {name: NativeOp(name, "", "") for name in HARMS}
    for op in ops.values():
        seen(tmp_path).mark(op)
    for name, harm in HARMS.items():
        harm(tmp_path / "src" / name, tmp_path / "ops" / name)
    before = {name: made(tmp_path, name) for name in HARMS}
    other = {"CXX": "g++"}
    expected = {
        name: seen(tmp_path, other if name == "compiler" else {}).why_not_ready(ops[name]) is None
        for name in HARMS
    }
    load(tmp_path, *(name for name in HARMS if name != "compiler"))
    load(tmp_path, "compiler", env=other)
    assert {name: made(tmp_path, name) == before[name] for name in HARMS} == expected
    assert [name for name in HARMS if expected[name]] == ["nothing"]


def load(folder: Path, *names: str, env: Mapping[str, str] | None = None) -> None:
    """Load libraries in a process of their own, as a rank does."""
    variables = {**ACTIVATED, "TORCH_EXTENSIONS_DIR": str(folder / "ops"), **(env or {})}
    done = run(sys.executable, "-c", LOAD, folder / "src", *names, cwd=folder, env=variables)
    assert done.status == 0, done.err


def made(folder: Path, name: str) -> int:
    library = folder / "ops" / name / f"{name}.so"
    return library.stat().st_mtime_ns if library.exists() else 0


def seen(folder: Path, environ: Mapping[str, str] | None = None) -> CompiledOps:
    python = inspect_python(None)
    machine = probe_machine({"DS_ACCELERATOR": "cpu"}, python)
    key = find_op_cache(python, machine, {**os.environ, **(environ or {})}).key
    return CompiledOps(folder / "ops", python, key, ACTIVATED["PATH"])
