"""`python -m tests.estimate.slow_rehearsal WORKLOAD`: a rehearsal without the patches that only save time."""

import json
import os
import sys
import tempfile
from pathlib import Path

from pydantic import TypeAdapter

from zlaunch.estimate.workload import Workload


def main() -> None:
    """Print pool and bytes of all allocations. The fast way must not have imported torch's compiler or sympy."""
    from zlaunch.estimate.rehearsal.imports import import_packages

    workload = TypeAdapter(Workload).validate_json(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    fast = len(sys.argv) > 2
    import_packages(fast=fast)
    from zlaunch.estimate.rehearsal import steps

    rehearsal = steps.Rehearsal()
    steps.prepare(workload, fast=fast)
    with tempfile.TemporaryDirectory() as checkpoint:
        steps.train(workload, rehearsal, Path(checkpoint))
    assert not fast or not {"torch._dynamo.eval_frame", "sympy.core"} & set(sys.modules)
    print(json.dumps([(pool, nbytes) for pool, _, nbytes in rehearsal.log.entries]), file=out, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
