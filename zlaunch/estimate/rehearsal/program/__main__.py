"""`python -m zlaunch.estimate.rehearsal.program ORDER FOLDER`: rehearses the program of an order.

ORDER is a file with a ProgramOrder; each rank writes a RehearsedProgram into FOLDER. Packages are imported
once, and each further rank is a fork, which the first one waits for.
"""

import faulthandler
import gc
import json
import os
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from zlaunch.estimate.program import ProgramOrder, RehearsedProgram, result_of
from zlaunch.estimate.rehearsal.imports import import_packages
from zlaunch.files import write_whole
from zlaunch.hosts.adapters import adapter_of


def main() -> None:
    """Rehearse a program and write the result."""
    order: ProgramOrder = adapter_of(ProgramOrder).validate_json(Path(sys.argv[1]).read_bytes())
    if order.accelerator == "cuda":
        os.environ.pop("DS_ACCELERATOR", None)  # which only kept DeepSpeed from looking for one
    rank, others = order.ranks[0], list[int]()
    for other in order.ranks[1:]:
        if not (child := os.fork()):
            rank, others = other, []
            break
        others.append(child)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank % order.ranks_per_host))
    file = result_of(Path(sys.argv[2]), rank)
    try:
        rehearsal = ProgramRehearsal(order, file, Path(tempfile.mkdtemp()), others)
    except Exception as error:  # noqa: BLE001 - a release may lack what is replaced
        write_whole(file, json.dumps(asdict(RehearsedProgram(error=f"{type(error).__name__}: {error}"))))
        return
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
