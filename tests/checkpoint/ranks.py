"""Run a program of these tests in ranks on the CPU."""

import sys

from tests.running import ACTIVATED, ROOT, run


def run_ranks(count: int, module: str, *args: object) -> None:
    """Run `module` in so many ranks to their end; to load an op, torch needs ninja, which is beside this Python."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count)
    environment = {"DS_ACCELERATOR": "cpu", **ACTIVATED}
    result = run(*launcher, "-m", module, *args, cwd=ROOT, env=environment)
    assert result.status == 0, result.err
