"""Compile the native ops of DeepSpeed that tests need: `python -m tools.build_ops`.

Compiling them in a test would count against its timeout. They are compiled for torch's own directory, for
tests without zlaunch, and copied and checked for that of this environment, as zlaunch does it. If they are
there already, this takes seconds.
"""

import multiprocessing
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from itertools import compress
from pathlib import Path

from tools import compile_op
from zlaunch.dsconfig.native_ops import OPS
from zlaunch.hosts.machine.build_lock import lock_state
from zlaunch.hosts.machine.compiled_ops import CompiledOps
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.op_cache import VARIABLE, OpCache, find_op_cache
from zlaunch.hosts.machine.probe import probe_machine

NAMES = ("async_io", "cpu_adam", "fused_adam", "deepspeed_shm_comm")
"""What takes longest comes first."""


def op_cache() -> OpCache:
    """Where CPU ranks of this environment find their ops."""
    environ = {**os.environ, "DS_ACCELERATOR": "cpu"}
    python = inspect_python(None)
    return find_op_cache(python, probe_machine(environ, python), environ)


def build(name: str, folder: Path) -> bool:
    """Load an op once; one that this machine cannot compile is named, and tests that need it fail."""
    from deepspeed.accelerator import get_accelerator

    os.environ[VARIABLE] = str(folder)
    builder = get_accelerator().create_op_builder(OPS[name].builder)
    if not builder.is_compatible(verbose=True):
        print(f"{name}: cannot be compiled here", flush=True)
        return False
    print(f"{name}: compiling for {folder}, unless it is there", flush=True)
    lock = folder / name / "lock"
    if lock_state(lock, inspect_python(None)) == "left":
        lock.unlink()
    builder.load(verbose=False)
    return True


def build_all(names: Sequence[str], folder: Path) -> list[str]:
    """Build as many ops at once as there are cores; return those that were built.

    Some ops have two files and some ten, so each may use all cores: the last one is alone.
    """
    cores = len(os.sched_getaffinity(0))
    os.environ["MAX_JOBS"] = str(cores)
    with multiprocessing.get_context("fork").Pool(min(cores, len(NAMES))) as builds:
        is_built = builds.starmap(build, [(name, folder) for name in names], chunksize=1)
    return list(compress(names, is_built))


def quicker_compiler(folder: Path, real: str) -> None:
    """Write a compiler for tests. Its name is the usual one: ninja compiles again when a command changes."""
    compiler = folder / "c++"
    words = (sys.executable, compile_op.__file__, real, str(folder))
    compiler.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    compiler.chmod(0o755)


def main() -> None:
    """Build what is missing."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    programs = Path(sys.executable).parent  # the ninja of the ranks: another version compiles all again
    os.environ["PATH"] = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    with tempfile.TemporaryDirectory() as folder:
        if (compiler := shutil.which("c++")) is not None:
            quicker_compiler(Path(folder), compiler)
            os.environ["PATH"] = os.pathsep.join([folder, os.environ["PATH"]])
        build_missing()


def build_missing() -> None:
    """Build the ops that are not in the caches yet."""
    cache = op_cache()
    import deepspeed  # noqa: F401 - before the forks

    built = build_all(NAMES, cache.standard)
    ops = CompiledOps(cache.folder, inspect_python(None), cache.key, os.environ["PATH"])
    if cache.folder != cache.standard:
        ops.adopt(cache.standard)
        built = build_all([name for name in built if ops.why_not_ready(OPS[name]) is not None], cache.folder)
    for name in built:
        ops.mark(OPS[name])


if __name__ == "__main__":
    main()
