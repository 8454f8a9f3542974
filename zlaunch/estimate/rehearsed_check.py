"""Check a ds_config by rehearsing two steps with it."""

from dataclasses import replace
from pathlib import Path

from zlaunch.config.report import Report
from zlaunch.errors import FATAL, Finding, Refused, Severity, WrongUsage, ZlaunchError, in_order
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.query import Rejected
from zlaunch.estimate.request import DEFAULT_RANKS, EstimateRequest, resolve_request
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import JobSpec


@dataclass(frozen=True)
class JobToRehearse:
    """What a ds_config is rehearsed with."""

    model: Path | None
    world_size: int | None
    args: ScriptArgs
    """The Trainer's arguments."""
    python: Path | None
    """The interpreter; None for the one that runs zlaunch."""


def add_rehearsal_findings(report: Report, job: JobToRehearse) -> Report:
    """Add errors that DeepSpeed raises in two steps, unless the ds_config is known to be wrong."""
    if report.trouble is not None or any(finding.severity in FATAL for finding in report.findings):
        return report
    try:
        findings = _findings_of_steps(report.name, job)
    except Refused as error:
        findings = error.findings
    except ZlaunchError as error:
        return replace(report, trouble=error)
    return replace(report, findings=tuple(sorted([*report.findings, *findings], key=in_order)))


def _findings_of_steps(file: str, job: JobToRehearse) -> tuple[Finding, ...]:
    model, world_size = job.model, job.world_size
    if model is None or world_size is None:
        raise WrongUsage(
            "`--rehearse` rehearses a job, and needs its model and its number of ranks",
            "add `--model DIR --world-size N`",
        )
    if not Path(file).is_file() or file.endswith((".yaml", ".yml")):
        raise WrongUsage(f"`--rehearse` needs a ds_config in a file, not {file}", "write it to a file first")
    ranks = next(ranks for ranks in range(min(world_size, DEFAULT_RANKS), 0, -1) if world_size % ranks == 0)
    spec = JobSpec(script=Path(), args=job.args, python=job.python, ds_config=Path(file))
    request = EstimateRequest(str(model), spec, gpus=ranks, nodes=world_size // ranks)
    with Estimator(python=job.python) as estimator:
        (result,) = estimator.rehearse([resolve_request(request)])
    if isinstance(result, Rejected):
        raise result.error
    if (why := result.forecast.why_not_rehearsed) is None:
        return ()
    message = f"two steps could not be rehearsed: {why.strip().splitlines()[-1]}"
    return (Finding("not-rehearsed", message, severity=Severity.ADVICE),)
