"""`python -m zlaunch.estimate.rehearsal.program ORDER RESULT`: rehearses the program of an order.

ORDER is a file with a ProgramOrder, RESULT the file for the RehearsedProgram. The process ends as soon as
there is one.
"""

import faulthandler
import gc
import os
import signal
import sys
import tempfile
from pathlib import Path

from zlaunch.estimate.program import ProgramOrder
from zlaunch.estimate.rehearsal.imports import import_packages
from zlaunch.hosts.adapters import adapter_of


def main() -> None:
    """Rehearse a program and write the result."""
    order: ProgramOrder = adapter_of(ProgramOrder).validate_json(Path(sys.argv[1]).read_bytes())
    if order.accelerator == "cuda":
        os.environ.pop("DS_ACCELERATOR", None)  # which only kept DeepSpeed from looking for one
    rehearsal = ProgramRehearsal(order, Path(sys.argv[2]), Path(tempfile.mkdtemp()))
    gc.collect()
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(order.most_seconds)
    rehearsal.run()


if __name__ == "__main__":
    faulthandler.enable()
    gc.disable()  # imported packages live on
    import_packages(fast=False)
    from zlaunch.estimate.rehearsal.program.rehearsal import ProgramRehearsal, out_of_time

    main()
