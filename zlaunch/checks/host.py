"""The table of all checks of one host. `doctor` shows each result, `train` the findings among them.

An error means that no job, or not the one at hand, can train; a warning, that some jobs fail or are slow.
"""

from collections.abc import Callable, Iterator, Mapping

from zlaunch.checks import disks, gpus, memory, network, software, tracking
from zlaunch.checks.requirements import Requirements
from zlaunch.checks.result import CheckResult, Status
from zlaunch.hosts.machine.facts import Failure, MachineFacts

Check = Callable[[MachineFacts, Requirements], Iterator[CheckResult]]

CHECKS: tuple[Check, ...] = (
    software.python,
    software.packages,
    gpus.gpus,
    gpus.cuda,
    gpus.links,
    software.compilers,
    software.ds_config,
    software.ops,
    memory.host_memory,
    memory.shared_memory,
    memory.locked_memory,
    disks.disks,
    network.interfaces,
    network.own_name,
    network.model_hub,
    tracking.monitors,
)
"""In the order of the table. What is not known of a host is not judged."""

_NAMES = {"hardware": "GPUs", "ops": "native ops", "free": "memory", "hub": "model hub"}
"""Topic → the row of an error about it."""


def check_host(facts: MachineFacts, needs: Requirements) -> list[CheckResult]:
    """Judge a host; a topic that could not be found out is a warning, and without its hardware an error."""
    results = []
    for topic, failure in _distinct(facts.failures).items():
        name, status = _NAMES.get(topic, topic), Status.WARNING
        if topic == "hardware":
            status = Status.ERROR
        results.append(CheckResult(name, status, failure.message, failure.hint))
    for check in CHECKS:
        results += check(facts, needs)
    return results


def _distinct(failures: Mapping[str, Failure]) -> dict[str, Failure]:
    """Leave out topics that failed for the same reason as an earlier one."""
    first = {failure: topic for topic, failure in reversed([*failures.items()])}
    return {topic: failure for topic, failure in failures.items() if first[failure] == topic}
