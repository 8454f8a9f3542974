"""`python -m zlaunch.parity.program.script ORDER FOLDER`: checks the program of an order.

ORDER is a file with a ScriptOrder; each of two ranks writes a MeasuredScript into FOLDER. Packages are
imported once, and the second rank is a fork, which the first one waits for.
"""

import contextlib
import faulthandler
import gc
import os
import signal
import sys
from pathlib import Path

from zlaunch.estimate.rehearsal.imports import import_packages
from zlaunch.hosts.adapters import adapter_of
from zlaunch.parity.script import ScriptOrder
from zlaunch.parity.trial import RANKS


def main() -> None:
    """Check a program and write the result."""
    order: ScriptOrder = adapter_of(ScriptOrder).validate_json(Path(sys.argv[1]).read_bytes())
    rank, others = 0, list[int]()
    for other in range(1, RANKS):
        if not (child := os.fork()):
            rank, others = other, []
            break
        others.append(child)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    with contextlib.suppress(OSError):  # if memory runs out, no other program is ended
        Path("/proc/self/oom_score_adj").write_text("1000", "ascii")
    gc.collect()
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(order.most_seconds)
    ScriptCheck(order, rank, Path(sys.argv[2]), others).run()


if __name__ == "__main__":
    faulthandler.enable()
    gc.disable()  # imported packages live on
    import_packages(fast=False)
    from zlaunch.parity.program.script_run import ScriptCheck, out_of_time

    main()
