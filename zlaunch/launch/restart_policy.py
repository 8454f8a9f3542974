"""What to try after a failure: the same once more, or a job that needs less memory; or nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.job.spec import STAGES, JobSpec, Offload, RestartPolicy
from zlaunch.units import largest_piece, plural

if TYPE_CHECKING:
    from zlaunch.diagnosis.evidence import Evidence, JobEvidence
    from zlaunch.diagnosis.outcome import Outcome
    from zlaunch.diagnosis.verdict import Verdict

HEALS = frozenset(
    {
        "collective-timeout",
        "connection-lost",
        "crashed",
        "killed",
        "launcher-killed",
        "network-error",
        "port-taken",
        "rank-lost",
        "rendezvous-failed",
        "stalled",
    }
)
"""Codes of endings that may not come again: a lost rank, a fault of the network or of a device."""

DETERMINED = frozenset({"script-exception"})
"""Codes of endings that come again unless they had to do with the moment: never healed at step 0."""

RESUME = "--resume_from_checkpoint"

OUT_OF_MEMORY = frozenset({"gpu-out-of-memory", "host-out-of-memory", "host-allocation-failed"})


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that failed."""

    outcome: "Outcome"
    step: int


@dataclass(frozen=True, slots=True)
class Retry:
    """A job to try next, and why; with the same stage it can go on from a checkpoint."""

    job: JobSpec
    why: str
    resumes: bool = True


def propose_retries(
    job: JobSpec, evidence: "Evidence", failures: Sequence[FailedAttempt], policy: RestartPolicy
) -> Iterator[Retry]:
    """Propose what may work, what changes least first; the last failure is the one to mend."""
    last = failures[-1].outcome
    if last.how not in ("failed", "stalled") or last.verdict is None:
        return
    if last.verdict.code in OUT_OF_MEMORY:
        if policy.on_oom == "retry":
            yield from smaller(job, evidence.job, last.verdict.code)
        return
    restarts = sum(1 for failed in failures if not _is_oom(failed.outcome.verdict))
    if restarts <= policy.max_restarts and can_heal(failures):
        yield Retry(job, f"restart {restarts} of {policy.max_restarts}: {last.verdict.cause}")


def can_heal(failures: Sequence[FailedAttempt]) -> bool:
    """Whether the same job may work the next time."""
    last = failures[-1]
    verdict = last.outcome.verdict
    if verdict is None:
        return False
    if verdict.code in HEALS:
        return True
    again = any(
        failed.outcome.verdict is not None
        and (failed.outcome.verdict.cause, failed.step) == (verdict.cause, last.step)
        for failed in failures[:-1]
    )
    return verdict.code in DETERMINED and last.step > 0 and not again


def _is_oom(verdict: "Verdict | None") -> bool:
    return verdict is not None and verdict.code in OUT_OF_MEMORY


def smaller(job: JobSpec, ran: "JobEvidence", code: str) -> Iterator[Retry]:
    """Walk the ladder; the global batch and the learning rate stay what they are.

    Moving states to the host helps a GPU that is full. A host that is full has no room for them.
    """
    yield from _smaller_micro_batch(job, ran)
    if ran.uses_trainer and ran.gradient_checkpointing is False:
        args = (*job.script_args, "--gradient_checkpointing")
        yield Retry(replace(job, script_args=args), "activation checkpointing: `--gradient_checkpointing`")
    if ran.stage < 3 and ran.world_size > 1:
        stage = STAGES[str(ran.stage + 1)]
        yield Retry(replace(job, stage=stage), f"the next stage: `--stage {stage}`", resumes=False)
    if code != "gpu-out-of-memory":
        return
    if "optimizer" not in ran.moved and ran.stage > 0:
        offload = Offload("cpu", "none")
        yield Retry(replace(job, offload=offload), "the optimizer on the host: `--offload optimizer:cpu`")
    if "param" not in ran.moved and ran.stage == 3:
        offload = Offload("nvme" if ran.moved.get("optimizer") == "nvme" else "cpu", "cpu")
        yield Retry(replace(job, offload=offload), "the parameters on the host, too: `--offload cpu`")


def _smaller_micro_batch(job: JobSpec, ran: "JobEvidence") -> Iterator[Retry]:
    """Cut the batch of a step into more and smaller pieces, as few as will do."""
    micro = largest_piece(ran.micro_batch)
    if micro is None:
        return
    pieces = ran.grad_accum * (ran.micro_batch // micro)
    flags = ("--per_device_train_batch_size", str(micro), "--gradient_accumulation_steps", str(pieces))
    keys = (("train_micro_batch_size_per_gpu", micro), ("gradient_accumulation_steps", pieces))
    why = f"a smaller micro-batch: {micro} x {pieces} accumulated, the same global batch"
    changed = replace(job, script_args=(*job.script_args, *flags)) if ran.uses_trainer else job
    if not ran.uses_trainer or job.ds_config is not None:
        changed = replace(changed, overrides=(*changed.overrides, *keys))
    yield Retry(changed, why)


def resumed(asked: JobSpec, proposal: Retry, checkpoint: Path | None) -> JobSpec | None:
    """Go on from a checkpoint, as Trainer scripts that know the flag do; None if that cannot be.

    What the first attempt was asked to go on from stays; what a later one went on from does not.
    """
    job = replace(proposal.job, script_args=_without(proposal.job.script_args, asked.script_args))
    if checkpoint is not None:
        return replace(job, script_args=(*job.script_args, RESUME, str(checkpoint)))
    return job if proposal.resumes or RESUME not in job.script_args else None


def _without(argv: Sequence[str], asked: Sequence[str]) -> tuple[str, ...]:
    """Take out the checkpoint that an earlier attempt was given."""
    if RESUME in asked or RESUME not in argv:
        return tuple(argv)
    at = argv.index(RESUME)
    return (*argv[:at], *argv[at + 2 :])


def resume_note(checkpoint: Path | None, step: int) -> str:
    """Say where the next attempt begins."""
    if checkpoint is not None:
        return f"it goes on from {checkpoint}"
    return f"it begins anew: {plural(step, 'step')} lost" if step else "it begins anew"
