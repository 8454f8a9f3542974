"""Facts about jobs on machines that are made up."""

from dataclasses import replace
from typing import Any

from tests.making import CPU_MACHINE, LAYOUT, PYTHON, local
from zlaunch.hosts.machine.facts import MachineFacts, Ports
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.op_cache import OpCache
from zlaunch.hosts.machine.resources import Machine
from zlaunch.job.script import Script
from zlaunch.job.spec import JobSpec
from zlaunch.launch.facts import JobFacts


def facts_of(
    job: JobSpec,
    script: Script,
    *,
    machine: Machine = CPU_MACHINE,
    python: Interpreter = PYTHON,
    op_cache: OpCache | None = None,
    **known: Any,
) -> JobFacts:
    """The facts about a job, all of whose hosts are like this one."""
    unknown: dict[str, Any] = {
        "ds_config": None,
        "model": None,
        "topology": local(0),
        "layout": LAYOUT,
        "environ": {},
    }
    here = MachineFacts(python, machine, op_cache=op_cache, ports=Ports(2950))
    return JobFacts(job=job, script=script, here=here, **{**unknown, **known})


def on_machine(facts: JobFacts, machine: Machine) -> JobFacts:
    """The same with another machine."""
    return replace(facts, here=replace(facts.here, hardware=machine))
