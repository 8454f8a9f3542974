"""Trying again after a failure: which job, from which checkpoint, and in which run directory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from zlaunch import console
from zlaunch.errors import ZlaunchError
from zlaunch.job.spec import JobSpec, RestartPolicy
from zlaunch.launch.checkpoints import newest_whole
from zlaunch.launch.prepare import Prepared
from zlaunch.launch.restart_policy import FailedAttempt, Retry, propose_retries, resume_note, resumed
from zlaunch.rundir.record import FIRST, Lineage

if TYPE_CHECKING:
    from zlaunch.launch.finish import FinishedRun

Examined = TypeVar("Examined")


@dataclass(frozen=True)
class Attempt:
    """One attempt that has ended."""

    prepared: Prepared
    run: Path
    ended: "FinishedRun"


def run_with_restarts(
    first: Examined,
    start: Callable[[Examined, Lineage], Attempt],
    look_into: Callable[[JobSpec, Path | None], Examined],
    origin: Lineage = FIRST,
) -> Attempt:
    """Start a job, and again as long as its policy allows and it may help; return the last attempt.

    `look_into` looks into a job for a run directory; it raises Refused for one that cannot work.
    """
    tried = start(first, origin)
    asked = tried.prepared.inputs.job
    policy = asked.wishes.policy
    failures: list[FailedAttempt] = []
    while True:
        ended = tried.ended
        failures.append(
            FailedAttempt(ended.outcome, max((rank.step for rank in ended.evidence.ranks), default=0))
        )
        for job, lineage, words in _ways_on(asked, tried, failures, policy):
            try:
                examined = look_into(job, _directory(tried, lineage.attempt))
                _say(f"attempt {lineage.attempt}, {words}")
                tried = start(examined, lineage)
            except ZlaunchError as error:  # the failure before it is still what there is to say
                _say(f"not tried, {lineage.why}: {error.message}")
            else:
                break
        else:
            return tried


def _ways_on(
    asked: JobSpec, tried: Attempt, failures: Sequence[FailedAttempt], policy: RestartPolicy
) -> Iterator[tuple[JobSpec, Lineage, str]]:
    """Name the jobs to try next, where each comes from, and what a person is told."""
    number = len(failures) + 1
    for proposal in propose_retries(tried.prepared.inputs.job, tried.ended.evidence, failures, policy):
        checkpoint = _checkpoint(tried, proposal)
        job = resumed(asked, proposal, checkpoint)
        if job is not None:
            begins = resume_note(checkpoint, failures[-1].step)
            lineage = Lineage(number, continues=tried.run.name, why=proposal.why)
            yield job, lineage, f"{proposal.why}; {begins}"


def _say(text: str) -> None:
    """Tell what is tried next, apart from what was said of the attempt before."""
    for line in ("", *console.paragraph(text)):
        console.say(line)


def _directory(tried: Attempt, number: int) -> Path | None:
    """Put the attempts beside each other: `mine`, `mine-attempt-2`, `mine-attempt-3`."""
    run_dir = tried.prepared.run_dir
    if run_dir is None:
        return None
    stem = run_dir.name.rpartition("-attempt-")[0] or run_dir.name
    return run_dir.with_name(f"{stem}-attempt-{number}")


def _checkpoint(tried: Attempt, proposal: Retry) -> Path | None:
    """Find what a Trainer script can go on from; another may not know the flag."""
    inputs = tried.prepared.inputs
    if not proposal.resumes or not inputs.script.mentions("resume_from_checkpoint"):
        return None
    directory = inputs.script.output_dir(inputs.job.script_args)
    ran = tried.ended.evidence.job
    return newest_whole(directory.absolute(), ran.world_size, ran.stage)
