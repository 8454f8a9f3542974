"""`zlaunch.worker.build_op BUILDER`: compile one of DeepSpeed's native ops and show the progress.

Runs in a process of its own before the ranks start, so that the compiler's output is seen and a crash of it
ends nothing else. Ninja prints `[n/m]` for each object.
"""

import signal
import sys
from pathlib import Path

from zlaunch.whereabouts import whereabouts


def main(builder_name: str) -> None:
    """Build and load an op with the builder of the accelerator DeepSpeed chose."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))  # torch then deletes its lock
    from deepspeed.accelerator import get_accelerator

    _sign_locks()
    builder = get_accelerator().create_op_builder(builder_name)
    builder.load(verbose=True)


def _sign_locks() -> None:
    """Have the lock files of torch up to 2.13 name the machine, for others that share the directory."""
    try:
        from torch.utils.file_baton import FileBaton
    except ImportError:
        return

    acquire = FileBaton.try_acquire

    def acquire_and_sign(self: FileBaton) -> bool | None:
        is_acquired: bool | None = acquire(self)
        if is_acquired:
            Path(self.lock_file_path).write_text(" ".join(whereabouts()))
        return is_acquired

    FileBaton.try_acquire = acquire_and_sign


if __name__ == "__main__":
    main(sys.argv[1])
