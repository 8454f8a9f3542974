"""Compile the native ops of DeepSpeed that tests need: `python -m tools.build_ops`.

Compiling them in a test would count against its timeout. If they are compiled already, this takes seconds.
"""

import os
import sys
from pathlib import Path

BUILDERS = ("ShareMemCommBuilder", "CPUAdamBuilder", "FusedAdamBuilder", "CPULionBuilder", "AsyncIOBuilder")


def main() -> None:
    """Load each op once; print those that cannot be compiled, and whose tests will fail."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    programs = Path(sys.executable).parent  # the ninja of the ranks: another version compiles all again
    os.environ["PATH"] = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    from deepspeed.accelerator import get_accelerator

    for name in BUILDERS:
        builder = get_accelerator().create_op_builder(name)
        if not builder.is_compatible(verbose=True):
            print(f"{builder.name}: cannot be compiled here")
            continue
        print(f"{builder.name}: loading, compiling if necessary", flush=True)
        builder.load(verbose=False)


if __name__ == "__main__":
    main()
