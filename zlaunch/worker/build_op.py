"""`python -m zlaunch.worker.build_op BUILDER`: compile one of DeepSpeed's native ops and say how far it is.

Runs in a process of its own, before the ranks start, so that a person sees the compiler at work
and a crash of it takes nothing along. Ninja prints `[n/m]` for each object it made.
"""

import sys


def main(builder_name: str) -> None:
    """Build and load an op with the builder of the accelerator DeepSpeed chose."""
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder(builder_name)
    builder.load(verbose=True)


if __name__ == "__main__":
    main(sys.argv[1])
