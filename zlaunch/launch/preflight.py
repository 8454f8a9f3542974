"""Check a job before its start: choose its stage, estimate its memory, find missing resources."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from zlaunch.errors import FATAL, Finding, InputMissing, Refused, Severity, WrongUsage
from zlaunch.files import nearest
from zlaunch.frozen import dataclass
from zlaunch.job.script import RESUME, ConfigInterface
from zlaunch.launch.all_hosts import check_all_hosts
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.requirements import likely_checkpoint_bytes
from zlaunch.launch.shared_output import check_shared_output


@dataclass(frozen=True, slots=True)
class Preflight:
    """The checks before each attempt."""

    options: LaunchOptions
    reporter: PlanReporter

    def complete(self, facts: JobFacts) -> JobFacts:
        """Add the checkpoint, its conversion, and the memory estimate; refuse a job that cannot fit."""
        if facts.job.resume is None:
            if facts.environ.get("SLURM_RESTART_COUNT", "0") != "0" and not facts.job.args.has(RESUME):
                text = "Slurm has requeued this job, which restarts at step 0 without `--resume latest`"
                self.reporter.note(text, "resume")
            if not facts.trainer_flags.value(RESUME):
                return self._estimate(facts)
        from zlaunch.launch import checkpoints  # few jobs resume

        if facts.job.resume is None:
            return self._estimate(checkpoints.with_named_checkpoint(facts))
        facts = self._estimate(checkpoints.with_checkpoint(facts, self.reporter))
        if facts.job.allow_reshard:
            facts = checkpoints.with_conversion(facts)
        return facts

    def _estimate(self, facts: JobFacts) -> JobFacts:
        """Choose a stage and estimate the memory; refuse a job that cannot fit."""
        if facts.model_error is not None:
            self.reporter.note(f"{facts.model_error.message}{_config_used(facts)}", "model")
        has_gpus, has_model = bool(facts.machine.gpus), facts.model is not None
        must_fit = self.options.rehearse or (has_gpus and has_model and not self.options.force)
        if not (self.options.auto_stage or must_fit):
            if self.options.seq_len is not None:
                why = "memory is checked on GPUs, or with `--rehearse`"
                if has_gpus and has_model:
                    why = "`--force` skips the memory check"
                self.reporter.note(f"`--seq-len {self.options.seq_len}` has no effect: {why}")
            return facts
        from zlaunch.launch.memory import with_memory  # often nothing is estimated

        return with_memory(facts, self.options, self.reporter, must_fit=must_fit)

    def plan(self, facts: JobFacts) -> LaunchPlan:
        """Plan a job, and estimate the disk that its checkpoints take."""
        plan = make_plan(facts)
        if facts.job.nvme_dir is not None and not plan.swap_dirs:
            raise WrongUsage(
                "`--nvme` names a directory, but nothing is offloaded to NVMe", "add `--offload nvme`"
            )
        if plan.saves is None:
            return plan
        free = None
        if facts.surroundings.imagined is None:
            free = _free_bytes(plan.saves.directory)
        return replace(plan, saves=replace(plan.saves, each=likely_checkpoint_bytes(plan), free=free))

    def check(self, plan: LaunchPlan) -> list[Finding]:
        """Report what is short; raise Refused if the job cannot work, or return why if it starts anyway."""
        findings = list(_check_access(plan.facts))
        if plan.data_position is not None:
            from zlaunch.resume.check_resume import check_resume  # few jobs resume

            findings += check_resume(plan.training)
        findings += check_all_hosts(plan)
        if plan.saves is not None or plan.args.has("output_dir"):
            from zlaunch.resume.check_saves import check_saves  # many jobs save nothing

            findings += check_saves(plan.training)
        findings += check_shared_output(plan)
        wrong = [finding for finding in findings if finding.severity in FATAL]
        if wrong and not self.options.force:
            self.reporter.warn([finding for finding in findings if finding not in wrong])
            raise Refused(wrong, "`--force` starts it anyway")
        self.reporter.warn(findings)
        return wrong


def show_plan(facts: JobFacts, options: LaunchOptions, reporter: PlanReporter) -> None:
    """Show the plan of a job, and what is short for it; raise a ZlaunchError if it cannot work."""
    preflight = Preflight(options, reporter)
    facts = preflight.complete(facts)
    plan = preflight.plan(facts)
    reporter.dry_run(plan, _why_unchecked(facts))
    if not facts.surroundings.is_offline:
        preflight.check(plan)


def _why_unchecked(facts: JobFacts) -> str | None:
    """Say why it is unknown whether a job fits on its GPUs, unless a note has said so."""
    uses_deepspeed = facts.script.interface is not ConfigInterface.NONE
    if facts.model is not None or not (facts.machine.gpus and uses_deepspeed):
        return None
    if facts.model_error is not None:
        return "the config.json of the model is unknown"
    return "the model is unknown; see `zlaunch estimate MODEL`"


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(nearest(path)).free
    except OSError:
        return None


def _config_used(facts: JobFacts) -> str:
    """Say what is used instead of the config.json on the hub."""
    if facts.model is not None:
        return "; config.json as bundled with zlaunch"
    is_trainer = facts.script.interface is ConfigInterface.TRAINER
    return "; the Trainer fills in the keys that depend on the model" if is_trainer else ""


def _check_access(facts: JobFacts) -> Iterator[Finding]:
    """Find out that the hub does not give the script its model."""
    error = facts.model_error
    if isinstance(error, InputMissing):
        yield Finding("no-access", error.message, error.hint, severity=Severity.FAILS_LATER)
