"""What Slurm says of a job and its nodes: which they are, their CPUs, and those that are down."""

import re
from collections.abc import Mapping, Sequence

from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.hosts.cluster.hostlist import expand
from zlaunch.hosts.cluster.topology import Host
from zlaunch.process import output_of

ANSWER_SECONDS = 5.0
"""A job that Slurm ends has 30 s by default."""

_TERM = re.compile(r"(\d{1,7})(?:\(x(\d{1,6})\))?")
_STATE = re.compile(r"NodeName=(\S+) .*?\bState=(\S+)")
_REASON = re.compile(r"\bReason=(.*?)(?: \[[^\]]*\])?(?: \w+=|$)")
_DOWN = frozenset({"DOWN", "FAIL", "FAILING"})


def allocated_hosts(environ: Mapping[str, str]) -> list[Host]:
    """List the hosts of the allocation that zlaunch runs in; raise Unavailable outside of one."""
    listed = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not listed:
        raise Unavailable(
            "`--slurm` examines the hosts of an allocation, but zlaunch does not run in one",
            "`salloc --nodes=2 zlaunch doctor --slurm`, or call it in a batch script",
        )
    return [Host(name, ()) for name in expand(listed)]


def cpus_on(node: str, environ: Mapping[str, str]) -> int | None:
    """Return the CPUs of the job on a node, of which each may have another number; None if unknown."""
    try:
        names = expand(environ.get("SLURM_JOB_NODELIST", ""))
    except WrongUsage:
        return None
    counts = _counts(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    if len(counts) != len(names):
        return None
    return dict(zip(names, counts, strict=True)).get(node)


def _counts(text: str) -> list[int]:
    """Write out `16(x2),8`; empty for anything else."""
    counts: list[int] = []
    for word in text.split(","):
        term = _TERM.fullmatch(word)
        if term is None:
            return []
        counts += [int(term[1])] * int(term[2] or 1)
    return counts


def nodes_down(names: Sequence[str]) -> dict[str, str]:
    """Return those of some nodes that are down → state and reason; none if Slurm does not answer."""
    lines = output_of(["scontrol", "show", "--oneliner", "node", ",".join(names)], ANSWER_SECONDS) or ""
    down: dict[str, str] = {}
    for line in lines.splitlines():
        state, reason = _STATE.match(line), _REASON.search(line)
        if state is not None and _DOWN & {*state[2].replace("*", "").split("+")}:
            down[state[1]] = state[2]
            if reason:
                down[state[1]] = f"{state[2]}, {reason[1]}"
    return down
