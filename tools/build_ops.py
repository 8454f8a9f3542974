"""Compile the native ops of DeepSpeed that tests need: `python -m tools.build_ops`.

Compiling them in a test would count against its timeout. If they are compiled already, this takes seconds.
"""

import multiprocessing
import os
import sys
from pathlib import Path

from zlaunch.hosts.op_cache import extensions_dir, lock_holder

BUILDERS = ("AsyncIOBuilder", "CPUAdamBuilder", "FusedAdamBuilder", "CPULionBuilder", "ShareMemCommBuilder")
"""What takes longest comes first."""


def build(name: str) -> None:
    """Load an op once; one that this machine cannot compile is named, and tests that need it fail."""
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder(name)
    if not builder.is_compatible(verbose=True):
        print(f"{builder.name}: cannot be compiled here", flush=True)
        return
    print(f"{builder.name}: compiling, unless it is there", flush=True)
    lock = extensions_dir(os.environ) / builder.name / "lock"
    if lock.exists() and lock_holder(lock) is None:
        lock.unlink()  # left behind by a build that was killed; torch would wait for it
    builder.load(verbose=False)


def main() -> None:
    """Build an op on each core. Some ops have two files and some ten, so one alone leaves cores idle."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    programs = Path(sys.executable).parent  # the ninja of the ranks: another version compiles all again
    os.environ["PATH"] = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    import deepspeed  # noqa: F401 - before the forks

    cores = len(os.sched_getaffinity(0))
    num_builds = min(cores, len(BUILDERS))
    os.environ["MAX_JOBS"] = str(cores // num_builds)
    with multiprocessing.get_context("fork").Pool(num_builds) as builds:
        builds.map(build, BUILDERS, chunksize=1)


if __name__ == "__main__":
    main()
