"""Trying again after a failure: which job, from which checkpoint, and in which run directory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from zlaunch import console
from zlaunch.checkpoints import newest_whole
from zlaunch.errors import Refused
from zlaunch.job import JobSpec
from zlaunch.manner import Policy
from zlaunch.prepare import Prepared
from zlaunch.record import FIRST, Lineage
from zlaunch.retry import Failed, Proposal, goes_on, proposals, resumed
from zlaunch.trainer_args import flags

if TYPE_CHECKING:
    from zlaunch.conclusion import Ended

Considered = TypeVar("Considered")


@dataclass(frozen=True)
class Tried:
    """One attempt that has ended."""

    prepared: Prepared
    run: Path
    ended: "Ended"


def see_through(
    first: Considered,
    start: Callable[[Considered, Lineage], Tried],
    consider: Callable[[JobSpec, Path | None], Considered],
    policy: Policy,
) -> int:
    """Start a job, and again as long as the policy allows and it may help; return the exit status.

    `consider` looks into a job for a run directory; it raises Refused for one that cannot work.
    """
    considered, lineage = first, FIRST
    failures: list[Failed] = []
    while True:
        tried = start(considered, lineage)
        evidence, outcome = tried.ended.evidence, tried.ended.outcome
        failures.append(Failed(outcome, max((rank.step for rank in evidence.ranks), default=0)))
        following = _following(tried, failures, policy, consider)
        if following is None:
            return outcome.exit_status
        considered, lineage = following


def _following(
    tried: Tried,
    failures: Sequence[Failed],
    policy: Policy,
    consider: Callable[[JobSpec, Path | None], Considered],
) -> tuple[Considered, Lineage] | None:
    """Take the first proposal that is accepted."""
    number = len(failures) + 1
    chosen = tried.prepared.run_dir
    directory = None if chosen is None else _numbered(chosen, number)
    for proposal in proposals(tried.prepared.inputs.job, tried.ended.evidence, failures, policy):
        checkpoint = _checkpoint(tried, proposal)
        try:
            considered = consider(resumed(proposal.job, checkpoint), directory)
        except Refused:
            continue
        begins = goes_on(checkpoint, failures[-1].step)
        console.say(f"\nattempt {number}, {proposal.why}; {begins}")
        return considered, Lineage(number, continues=tried.run.name, why=proposal.why)
    return None


def _checkpoint(tried: Tried, proposal: Proposal) -> Path | None:
    """Find what a Trainer script can go on from; another may not know the flag."""
    inputs = tried.prepared.inputs
    if not proposal.resumes or not inputs.script.mentions("resume_from_checkpoint"):
        return None
    directory = dict(flags(inputs.job.script_args)).get("output_dir") or "trainer_output"
    return newest_whole(Path(directory).absolute(), tried.ended.evidence.job.world_size)


def _numbered(run_dir: Path, number: int) -> Path:
    """Put the attempts beside each other: `mine`, `mine-attempt-2`, `mine-attempt-3`."""
    stem = run_dir.name.rpartition("-attempt-")[0] or run_dir.name
    return run_dir.with_name(f"{stem}-attempt-{number}")
