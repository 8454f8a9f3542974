"""Make the op of CPU ranks ready as a start of zlaunch does: `python -m tests.op_builder PYTHON FOLDER`.

In a process of its own: waiting for a build ends all children of the process that waits.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from tests.facts import facts_of
from tests.making import CPU_MACHINE, SHAPE, script
from zlaunch.cli.views.launch import LaunchView
from zlaunch.dsconfig.native_ops import OPS
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.op_cache import find_op_cache
from zlaunch.job.spec import JobSpec
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.op_build import build_missing
from zlaunch.rundir.layout import RunDir


def main(executable: str, folder: str) -> None:
    """Print the directory of the ops; what a user is told goes to stderr."""
    python, layout = inspect_python(Path(executable)), RunDir(Path(folder))
    layout.logs.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "DS_ACCELERATOR": "cpu"}
    cache = find_op_cache(python, CPU_MACHINE, environ)
    job = JobSpec(Path("train.py"))
    inputs = facts_of(
        job, script(), model=SHAPE, layout=layout, environ=environ, python=python, op_cache=cache
    )
    plan = replace(make_plan(inputs), ops=(OPS["deepspeed_shm_comm"],))
    variables = {name: variable.value for name, variable in plan.environment.items()}
    build_missing(plan, {**environ, **variables}, LaunchView(), if_killed=())
    print(cache.folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
