"""Diagnose why a run ended: evidence → verdict."""

import re
from itertools import chain
from types import ModuleType

from zlaunch.diagnosis.case import Case, Reading
from zlaunch.diagnosis.evidence import Evidence
from zlaunch.diagnosis.log_text import tidy
from zlaunch.diagnosis.render import MOST_FACTS, shorten
from zlaunch.diagnosis.root_cause import root_cause
from zlaunch.diagnosis.signature import Signature
from zlaunch.diagnosis.signatures import (
    checkpoints,
    config,
    disk,
    exits,
    memory,
    nan,
    network,
    op_build,
    script,
)
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.rundir import phases
from zlaunch.units import plural


def signatures_in(module: ModuleType) -> tuple[Signature, ...]:
    """List the signatures of a module in their order."""
    return tuple(thing for thing in vars(module).values() if isinstance(thing, Signature))


_FIRST = (
    *(exits.preempted, op_build.stale_build_lock, network.host_lost, exits.stopped),
    *(memory.host_out_of_memory, network.uneven_ranks, network.collective_timeout),
    *(exits.stalled, exits.stumbled, script.partitioned_parameter),
)
MODULES: tuple[ModuleType, ...] = (memory, disk, network, op_build, nan, config, checkpoints, script, exits)
SIGNATURES: tuple[Signature, ...] = tuple(
    dict.fromkeys((*_FIRST, *chain.from_iterable(map(signatures_in, MODULES))))
)
"""The first match wins, so the more specific signatures come first."""


_OF_DS_CONFIG = re.compile(r"`--(?:set|stage|offload|nvme|precision) ")
"""Options that are refused for a script that trains without the ds_config of zlaunch."""


def diagnose(evidence: Evidence) -> Verdict:
    """Find the first signature that matches, and make it a verdict."""
    case = Case(evidence, root_cause(evidence))
    for signature in SIGNATURES:
        if (reading := signature.read(case)) is not None:
            return shorten(_verdict(signature.code, reading, case))
    raise AssertionError("the last signature matches everything")


def _verdict(code: str, reading: Reading, case: Case) -> Verdict:
    facts = tuple(dict.fromkeys(filter(None, map(tidy, filter(None, reading.facts)))))
    if (known := case.job.forced) and case.rank is not None:
        forced = f"`--force` started it with {plural(len(known), 'known problem')}: {'; '.join(known)}"
        facts = (*facts[: MOST_FACTS - 1], tidy(forced))
    cause, advice = tidy(reading.cause), tuple(map(tidy, filter(None, reading.advice)))
    if not case.job.takes_ds_config:
        advice = tuple(text for text in advice if not _OF_DS_CONFIG.search(text))
    rank = reading.rank or case.rank
    if rank is None or not reading.is_local:
        return Verdict(code, cause, facts=facts, advice=advice)
    phase = case.phase if rank is case.rank else rank.phase
    if phase == phases.EXITING and (rank.returncode or 0) >= 0:
        phase = None  # it exited by itself, so the phase adds nothing
    host = rank.host or None
    return Verdict(code, cause, rank.rank, host, phase or None, facts, advice, rank.when)
