"""Restart a job after a failure: the same again, or one that needs less memory; and from which step."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from zlaunch.checkpoint.summary import Summary
from zlaunch.diagnosis.advice import state_of
from zlaunch.diagnosis.evidence import Evidence, JobEvidence
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.dsconfig.schema.storage import LOAD_UNIVERSAL
from zlaunch.dsconfig.text.document import dotted
from zlaunch.estimate.changes import memory_changes
from zlaunch.files import shown
from zlaunch.frozen import dataclass
from zlaunch.job.script import RESUME, Script
from zlaunch.job.spec import JobSpec, RestartPolicy
from zlaunch.resume.handover import CheckpointReading, checkpoint_handover
from zlaunch.units import plural

HEALS = frozenset(
    {
        "collective-timeout",
        "connection-lost",
        "crashed",
        "host-lost",
        "killed",
        "launcher-killed",
        "network-error",
        "port-taken",
        "rank-lost",
        "rendezvous-failed",
        "stalled",
    }
)
"""Failures that may not recur: a lost rank, a fault of the network or of a device."""

DETERMINED = frozenset({"script-exception"})
"""Failures that recur, unless a transient condition caused them: never restarted at the first step."""

_NOT_UNIVERSAL = (dotted(LOAD_UNIVERSAL), False)

DIVERGED = "loss-not-a-number"

OUT_OF_MEMORY = frozenset({"gpu-out-of-memory", "host-out-of-memory", "host-allocation-failed"})


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that failed."""

    outcome: Outcome
    step: int
    resumed_step: int = 0
    """The step of the checkpoint that it resumed from."""

    @property
    def code(self) -> str:
        """The code of its cause; empty if that is unknown."""
        return "" if self.outcome.verdict is None else self.outcome.verdict.code

    @property
    def cause(self) -> str:
        """Why it failed; empty if that is unknown."""
        return "" if self.outcome.verdict is None else self.outcome.verdict.cause


@dataclass(frozen=True, slots=True)
class Retry:
    """A job to try next, and why."""

    job: JobSpec
    why: str
    resumes: bool = True
    """Whether it can resume from a checkpoint: not at another stage."""
    needs_checkpoint: bool = False


def propose_retries(
    job: JobSpec, evidence: Evidence, failures: Sequence[FailedAttempt], policy: RestartPolicy
) -> Iterator[Retry]:
    """Propose jobs to try after the last failure, the least intrusive change first."""
    last = failures[-1]
    if last.outcome.how not in ("failed", "stalled") or not last.code:
        return
    if last.code in OUT_OF_MEMORY:
        if policy.on_oom == "retry":
            yield from smaller_jobs(job, evidence.job, last.code)
        return
    if evidence.is_diverged:
        if policy.on_nan == "rollback":
            yield from _rollback(job, failures, policy)
        return
    restarts = sum(failed.code not in OUT_OF_MEMORY for failed in failures)
    if restarts <= policy.max_restarts and can_heal(failures):
        yield Retry(job, f"restart {restarts} of {policy.max_restarts}: {last.cause}")


def _rollback(job: JobSpec, failures: Sequence[FailedAttempt], policy: RestartPolicy) -> Iterator[Retry]:
    """Propose to resume from before the last finite loss, after which the weights may have been lost.

    What a job computes from the same checkpoint and data may be lost at the same step, so once is enough
    unless more restarts are allowed.
    """
    count, most = sum(failed.code == DIVERGED for failed in failures), max(1, policy.max_restarts)
    if count <= most:
        yield Retry(job, f"rollback {count} of {most}: {failures[-1].cause}", needs_checkpoint=True)


def can_heal(failures: Sequence[FailedAttempt]) -> bool:
    """Whether the same job may work next time."""
    *others, last = failures
    if last.code in HEALS:
        return True
    is_same = any((failed.cause, failed.step) == (last.cause, last.step) for failed in others)
    return last.code in DETERMINED and last.step > last.resumed_step and not is_same


def smaller_jobs(job: JobSpec, ran: JobEvidence, code: str) -> Iterator[Retry]:
    """Propose jobs that need less memory and train the same model with the same global batch.

    Offloading helps if a GPU was full. A host that was full has no room for more. Nothing is proposed for
    a script that trains without zlaunch's ds_config.
    """
    if not ran.takes_ds_config:
        return
    for row, options in memory_changes(state_of(ran), only_first=True):
        if not row.keeps_training or (row.uses_host and code != "gpu-out-of-memory"):
            continue
        changed = options.apply(job, ran.setting)
        if changed is not None:
            why = f"{row.name}: `{options.for_train(ran.setting)}`"
            yield Retry(changed, why, resumes=options.stage is None)


def resumed(
    asked: JobSpec, proposal: Retry, checkpoint: Path | None, loads_universal: bool = False
) -> JobSpec | None:
    """Resume from a checkpoint, in Trainer scripts that know the flag; None if that is impossible.

    A checkpoint that the user asked for stays; one that an earlier attempt was given is replaced. A job that
    resumed from a universal checkpoint saves others, which DeepSpeed finds without `load_universal`.
    """
    job = proposal.job
    overrides = tuple(key for key in job.overrides if key != _NOT_UNIVERSAL or key in asked.overrides)
    if checkpoint is not None:
        if loads_universal or overrides != job.overrides:
            overrides = (*overrides, _NOT_UNIVERSAL)
        return replace(job, resume=str(checkpoint), overrides=overrides)
    was_asked = asked.resume is not None or asked.args.has(RESUME)
    if proposal.needs_checkpoint or (was_asked and not proposal.resumes):
        return None
    return replace(job, resume=asked.resume, overrides=overrides)


def restart_point(job: JobSpec, script: Script, checkpoint: Summary | None, reached: int) -> str:
    """Say where the next attempt starts, and what is lost of the steps that were reached.

    `job` is as it was asked, and `checkpoint` that of the next attempt, or else of the first one.
    """
    step: int | None = 0
    where = "restarting at step 0"
    if checkpoint is not None:
        where, step = f"resuming from {shown(checkpoint.checkpoint.folder)}", checkpoint.step
    elif job.args.has(RESUME) or checkpoint_handover(script).reading is CheckpointReading.OWN:
        return "its script chooses the checkpoint to resume from"
    lost = 0 if step is None else reached - step
    return f"{where}, {plural(lost, 'step')} lost" if lost > 0 else where
