"""Estimate a training script: as it is, or by its model if it cannot be rehearsed."""

import re
import shlex
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from zlaunch.console import shell_line
from zlaunch.errors import Finding, Severity, Unavailable
from zlaunch.estimate.changes import Options
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Cluster
from zlaunch.estimate.program import ENDED_EARLY, RehearsedProgram
from zlaunch.estimate.query import USUAL_SEQ_LEN, Estimate, Rejected
from zlaunch.estimate.uncounted import Effect, Uncounted
from zlaunch.files import argument
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.resources import Machine
from zlaunch.job.spec import JobSpec
from zlaunch.job.train_command import train_words
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import refuse_without_deepspeed
from zlaunch.launch.memory import query_for
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.prepare import prepare
from zlaunch.launch.rehearsed_program import estimate_of, rehearse_job, sequence_length, why_not
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.surroundings import Imagined, Surroundings

OFFLINE: Final = re.compile(
    r"offline|LocalEntryNotFound|connect to|cached files|Hub|connects to no other", re.IGNORECASE
)
"""What a package says of a file that is not here."""


@dataclass(frozen=True)
class ProgramEstimate:
    """The estimate of a program, and what to say with it."""

    estimate: Estimate
    remarks: tuple[Finding, ...] = ()


def estimate_program(
    job: JobSpec, cluster: Cluster, machine: Machine, reporter: PlanReporter
) -> ProgramEstimate:
    """Rehearse a program on hosts that are like this machine.

    A program that cannot be rehearsed is estimated by its model. Raises Refused for a job that cannot work,
    Unavailable for a program that ends with an error, and where nothing is known of the model.
    """
    imagined = Surroundings(imagined=Imagined(cluster.num_hosts, machine), is_offline=True)
    options = LaunchOptions(beside=Path(tempfile.gettempdir()), dry_run=True)
    facts = prepare(job, options, reporter, imagined)
    refuse_without_deepspeed(facts.job, facts.script, "estimate")
    plan, result = rehearse_job(facts, cluster, reporter)
    if result.forecast is None:
        return _by_model(facts, cluster, result)
    return ProgramEstimate(estimate_of(plan, cluster, result, result.forecast), tuple(plan.warnings))


def train_command(facts: JobFacts) -> str:
    """Write the command that starts the same program, with the same ds_config."""
    job, options = facts.job, []
    if job.ds_config is not None:
        options += ["--ds-config", argument(job.ds_config)]
    chosen = Options(job.stage, job.offload, job.precision, job.overrides)
    options += shlex.split(chosen.for_train() or "")
    if "--nvme" in options:
        options[options.index("--nvme") + 1] = str(job.nvme_dir)
    return shell_line(train_words(job, job.program, options, job.args.words))


def _by_model(facts: JobFacts, cluster: Cluster, result: RehearsedProgram) -> ProgramEstimate:
    """Estimate a program that could not be rehearsed by what is known of its model."""
    why = why_not(facts, result)
    if result.is_own_error:
        hint = f"`{train_command(facts)}` hands over the same: see whether it fails there, too"
        if result.error == ENDED_EARLY:
            hint = "let it take at least two optimizer steps: give it more data, or more steps"
        if OFFLINE.search(str(result.error)):
            hint = "a rehearsal downloads nothing: get its files first, with `hf download`"
        raise Unavailable(why, hint)
    query = query_for(facts, sequence_length(result), USUAL_SEQ_LEN)
    if query is None:
        raise Unavailable(why, "estimate its model: `zlaunch estimate MODEL`")
    alone = Uncounted("the script", "may do more or less than train its model", Effect.EITHER)
    training = replace(query.training, uncounted=(*query.training.uncounted, alone))
    query = replace(query, cluster=cluster, training=training)
    with Estimator(python=facts.job.python) as estimator:
        (estimate,) = estimator.rehearse([query])
    if isinstance(estimate, Rejected):
        raise Unavailable(f"{why}; {estimate.findings[0].message}", estimate.findings[0].hint)
    finding = Finding(
        "not-rehearsed", f"{why}; this is an estimate of its model alone", severity=Severity.ADVICE
    )
    return ProgramEstimate(estimate, (finding,))
