"""A plan as zlaunch makes it, for two GPUs and a script that has nothing of its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.facts import facts_of
from tests.making import PYTHON
from tests.making import script as made
from zlaunch.config.resolve.compose import to_json
from zlaunch.dsconfig.text.parser import parse
from zlaunch.hosts.cluster.topology import Host, Topology
from zlaunch.hosts.machine.resources import Gpu, Machine
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import JobSpec
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.plan import LaunchPlan
from zlaunch.rundir.layout import RunDir


def planned(
    config: dict[str, Any], line: str, interface: ConfigInterface = ConfigInterface.TRAINER
) -> LaunchPlan:
    """Plan a job with a ds_config of the user's and a line of arguments; raise Refused as zlaunch does."""
    script = Path("train.py")
    gpus = tuple(Gpu(index, "A100", f"GPU-{index}", 80 << 30, (8, 0)) for index in range(2))
    return make_plan(
        facts_of(
            job=JobSpec(script=script, args=ScriptArgs.of(tuple(line.split()))),
            script=replace(made(interface=interface), path=script),
            ds_config=parse(to_json({"zero_optimization": {"stage": 2}, **config}), "ds_config.json"),
            model=ModelConfig({"hidden_size": 256}, "", "config.json"),
            machine=Machine("here", 8, 64 << 30, gpus),
            topology=Topology((Host("localhost", (0, 1)),)),
            layout=RunDir(Path("run")),
            environ={},
            python=PYTHON,
        )
    )
