"""How many CPUs a Slurm job has on each of its nodes; they need not have the same number."""

import re
from collections.abc import Mapping

from zlaunch.errors import WrongUsage
from zlaunch.hosts.hostlist import expand

_TERM = re.compile(r"(\d{1,7})(?:\(x(\d{1,6})\))?")


def cpus_on(node: str, environ: Mapping[str, str]) -> int | None:
    """Return the CPUs of the job on a node; None if its environment does not say."""
    try:
        names = expand(environ.get("SLURM_JOB_NODELIST", ""))
    except WrongUsage:
        return None
    counts = _counts(environ.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return dict(zip(names, counts, strict=False)).get(node) if len(counts) == len(names) else None


def _counts(text: str) -> list[int]:
    """Write out `16(x2),8`; empty for anything else."""
    terms = [_TERM.fullmatch(term) for term in text.split(",")]
    return [int(term[1]) for term in terms if term for _ in range(int(term[2] or 1))] if all(terms) else []
