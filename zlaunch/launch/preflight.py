"""Check a job before its start: choose its stage, estimate its memory, find missing resources."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.dsconfig.schema.storage import LOAD_UNIVERSAL
from zlaunch.dsconfig.text.document import dotted
from zlaunch.errors import FATAL, Finding, InputMissing, Refused, Severity, Unavailable
from zlaunch.files import nearest
from zlaunch.hosts.agent.python_of_host import python_here
from zlaunch.job.script import ConfigInterface
from zlaunch.launch.all_hosts import check_all_hosts
from zlaunch.launch.plan import LaunchPlan, PlanInputs
from zlaunch.launch.prepare import Prepared
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.requirements import likely_checkpoint_bytes
from zlaunch.resume.check_resume import check_resume
from zlaunch.resume.check_saves import check_saves
from zlaunch.resume.reshard import universal_resumption
from zlaunch.resume.training import PlannedTraining
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.record import FIRST, Lineage

if TYPE_CHECKING:  # often nothing is estimated
    from zlaunch.estimate.estimator import Estimator


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How to launch a job."""

    interactive: bool
    """Whether the output goes to a terminal."""
    rehearse: bool = False
    force: bool = False
    dry_run: bool = False
    auto_stage: bool = False
    """Choose the stage and the offload."""
    origin: Lineage = FIRST


@dataclass(frozen=True, slots=True)
class Preflight:
    """The checks before each attempt."""

    options: LaunchOptions
    reporter: Reporter

    def complete(self, prepared: Prepared, auto_stage: bool = False) -> Prepared:
        """Add the memory estimate, and the conversion of the checkpoint; refuse a job that cannot fit."""
        prepared = self._estimate(prepared, auto_stage)
        if not prepared.inputs.job.allow_reshard:
            return prepared
        return replace(prepared, inputs=with_conversion(prepared.inputs, prepared.plan().training))

    def _estimate(self, prepared: Prepared, auto_stage: bool) -> Prepared:
        """Choose a stage and estimate the memory in one rehearsal process; refuse a job that cannot fit."""
        if prepared.facts.model_error is not None:
            self.reporter.note(f"{prepared.facts.model_error.message}{_instead(prepared)}", "model")
        if not (auto_stage or self._must_fit(prepared)):
            return prepared
        from zlaunch.estimate.estimator import Estimator
        from zlaunch.launch.memory import choose_stage

        python = python_here(prepared.facts.sources.hostfile, prepared.inputs.job.python)
        with Estimator(python=python) as estimator:
            if auto_stage:
                job, why = choose_stage(prepared, estimator)
                self.reporter.note(why, "stage")
                prepared = replace(prepared, inputs=replace(prepared.inputs, job=job))
            return self._with_memory(prepared, estimator) if self._must_fit(prepared) else prepared

    def _must_fit(self, prepared: Prepared) -> bool:
        """Whether to estimate a job: if that was asked for, or if there are GPUs it must fit."""
        has_gpus, has_model = bool(prepared.inputs.machine.gpus), prepared.facts.model is not None
        return self.options.rehearse or (has_gpus and has_model and not self.options.force)

    def _with_memory(self, prepared: Prepared, estimator: "Estimator") -> Prepared:
        from zlaunch.launch.memory import check_memory

        try:
            estimate = check_memory(prepared, estimator)
        except Unavailable as error:
            if self.options.rehearse:
                raise
            self.reporter.note(error.message)  # the job may well work: it starts
            return prepared
        self.reporter.warn(estimate.remarks)
        return replace(prepared, estimate=estimate)

    def plan(self, prepared: Prepared, layout: RunDir | None = None) -> LaunchPlan:
        """Plan a job, and estimate the disk that its checkpoints take."""
        plan = prepared.plan(layout)
        if plan.saves is None:
            return plan
        forecast = None if prepared.estimate is None else prepared.estimate.forecast
        each = likely_checkpoint_bytes(plan, prepared.inputs, prepared.facts.model, forecast)
        return replace(plan, saves=replace(plan.saves, each=each, free=_free_bytes(plan.saves.directory)))

    def check(self, prepared: Prepared, plan: LaunchPlan) -> list[Finding]:
        """Report what is short; raise Refused if the job cannot work, or return why if it starts anyway."""
        of_job = [*_check_access(prepared), *check_resume(plan.training)]
        findings = [*of_job, *check_all_hosts(prepared, plan), *check_saves(plan.training)]
        wrong = [finding for finding in findings if finding.severity in FATAL]
        is_refused = wrong and not self.options.force
        self.reporter.warn([one for one in findings if not (is_refused and one in wrong)])
        if is_refused:
            raise Refused(wrong, "`--force` starts it anyway")
        return wrong


def with_conversion(inputs: PlanInputs, training: PlannedTraining) -> PlanInputs:
    """Let a job load a universal checkpoint, one that has to be made first, if no other fits it."""
    resumption = universal_resumption(training)
    if resumption is None:
        return inputs
    job = inputs.job
    if not training.loads_universal:
        job = replace(job, overrides=(*job.overrides, (dotted(LOAD_UNIVERSAL), True)))
    return replace(inputs, job=job, resume=resumption)


def why_unchecked(prepared: Prepared) -> str | None:
    """Say why it is unknown whether a job fits on its GPUs, unless a note has said so."""
    uses_deepspeed = prepared.inputs.script.interface is not ConfigInterface.NONE
    if prepared.facts.model is not None or not (prepared.inputs.machine.gpus and uses_deepspeed):
        return None
    if prepared.facts.model_error is not None:
        return "the config.json of the model is unknown"
    return "the model is unknown; see `zlaunch estimate MODEL`"


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(nearest(path)).free
    except OSError:
        return None


def _instead(prepared: Prepared) -> str:
    """Say what is used instead of the config.json on the hub."""
    if prepared.facts.model is not None:
        return "; config.json as bundled with zlaunch"
    is_trainer = prepared.inputs.script.interface is ConfigInterface.TRAINER
    return "; the Trainer fills in the keys that depend on the model" if is_trainer else ""


def _check_access(prepared: Prepared) -> Iterator[Finding]:
    """Find out that the hub does not give the script its model."""
    error = prepared.facts.model_error
    if isinstance(error, InputMissing):
        yield Finding("no-access", error.message, error.hint, severity=Severity.FAILS_LATER)
