"""`zlaunch.worker.build_op BUILDER`: compile one of DeepSpeed's native ops and show the progress.

Runs in a process of its own before the ranks start, so that the compiler's output is seen and a crash of it
ends nothing else. Ninja prints `[n/m]` for each object.
"""

import sys


def main(builder_name: str) -> None:
    """Build and load an op with the builder of the accelerator DeepSpeed chose."""
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder(builder_name)
    builder.load(verbose=True)


if __name__ == "__main__":
    main(sys.argv[1])
