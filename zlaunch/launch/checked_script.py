"""Check that a script trains the same as plain torch: run its first steps on two ranks on the CPU."""

import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

import psutil

from zlaunch.config.rules.known_defects import known_defects
from zlaunch.dsconfig.native_ops import BETWEEN_RANKS
from zlaunch.dsconfig.text.document import located
from zlaunch.errors import Finding, Refused, Unavailable
from zlaunch.estimate.splits import split_by_arguments, split_by_config, split_by_script
from zlaunch.estimate.temp_dirs import Scratch
from zlaunch.frozen import dataclass
from zlaunch.hosts.adapters import adapter_of
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.hosts.machine.resources import Machine
from zlaunch.job.spec import GpuChoice, JobSpec
from zlaunch.launch.estimated_script import OFFLINE, train_command
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan, refuse_without_deepspeed
from zlaunch.launch.op_build import environment_with
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.prepare import prepare
from zlaunch.launch.program_process import ProgramProcess, argv_of, refusal
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.surroundings import Imagined, Surroundings
from zlaunch.parity.script import MOST_SECONDS, NO_STEP, STEPS, MeasuredScript, ScriptOrder, result_of
from zlaunch.parity.trial import ON_CPU, RANKS
from zlaunch.parity.verdict import Comparison, ParityVerdict, judge
from zlaunch.process import signals_as_exceptions
from zlaunch.rundir.layout import RunDir
from zlaunch.units import duration, plural
from zlaunch.worker.hook.confinement import remove_empty

_PROGRAM: Final = "zlaunch.parity.program.script"
_KILLED: Final = "it was killed, as when memory runs out"
_EXTRA_SECONDS: Final = 20
"""How much longer than its own limit the process may take, which a package may keep from heeding that."""


@dataclass(frozen=True)
class CheckedScript:
    """A program, what was measured, and the verdict."""

    name: str
    measured: MeasuredScript
    comparison: Comparison
    verdict: ParityVerdict
    unchecked: tuple[str, ...] = ()
    defects: tuple[Finding, ...] = ()
    """Known defects of the releases under this ds_config."""

    @property
    def steps(self) -> int:
        """How many steps were compared."""
        return self.measured.steps


def check_script(job: JobSpec, reporter: PlanReporter, steps: int = STEPS) -> CheckedScript:
    """Run the first steps of a job on two ranks on the CPU, and compare each with plain torch.

    Raises Refused for a job that cannot work, Unavailable if nothing can be told.
    """
    facts = _facts_of_trial(job, reporter)
    refuse_without_deepspeed(facts.job, facts.script, "check")
    scratch = Scratch("check")
    try:
        plan = make_plan(replace(facts, layout=RunDir(scratch.path / "run")))
        split = split_by_config(plan.values, facts.script.interface)
        split = split or split_by_arguments(facts.trainer_flags) or split_by_script(facts.script)
        if split is not None:
            what = f"`{split.setting}` {split.does}, and only data parallelism is checked"
            raise Unavailable(f"cannot tell here: {what}", f"check it without `{split.setting}`")
        measured = _measure(plan, scratch.path, reporter, steps)
    finally:
        scratch.delete()
    if measured.is_refusal:
        raise Refused([refusal(facts, str(measured.error), measured.place)])
    if measured.comparison is None or measured.engine is None:
        raise _cannot_tell(facts, measured)
    verdict = judge(measured.comparison.distances, measured.engine.precision)
    unchecked = tuple(_unchecked(facts, measured, steps))
    context = facts.context(facts.read_args()[0]).context
    met = known_defects(plan.values.config(), context)
    defects = tuple(located(defect, facts.ds_config) for defect in met)
    return CheckedScript(facts.job.shown_name, measured, measured.comparison, verdict, unchecked, defects)


def _facts_of_trial(job: JobSpec, reporter: PlanReporter) -> JobFacts:
    """Prepare a job for two ranks on the CPU, in the format that it would have on this machine."""
    python = inspect_python(job.python)
    machine = probe_machine(os.environ, python)
    without_gpus = Machine(
        machine.hostname,
        machine.num_cores,
        machine.memory_bytes,
        cpu_fp16=True,
        cpu_bf16=machine.best_precision == "bf16",
    )
    here = Surroundings(imagined=Imagined(1, without_gpus), is_offline=True)
    options = LaunchOptions(beside=Path(tempfile.gettempdir()), dry_run=True)
    job = replace(
        job,
        gpus=GpuChoice(count=RANKS),
        hosts=None,
        hostfile=None,
        include=None,
        exclude=None,
        launcher=None,
        resume=None,
        allow_reshard=False,
        debug=None,
        profile=None,
    )
    return prepare(job, options, reporter, here)


def _measure(plan: LaunchPlan, directory: Path, reporter: PlanReporter, steps: int) -> MeasuredScript:
    environ = dict(os.environ)
    ops = [op for op in plan.ops if op.name != BETWEEN_RANKS]
    if ops:
        with signals_as_exceptions():
            environ = environment_with(ops, plan.python, plan.facts.machine, directory, reporter)
    name = plan.facts.job.shown_name
    doing = f"comparing {plural(steps, 'step')} of {name} with plain torch"
    (directory / "written").mkdir()
    free = psutil.virtual_memory().available
    order = ScriptOrder(argv_of(plan), free, steps, plan.script.local_rank_flag)
    program = ProgramProcess(plan, directory, reporter, doing, environ)
    ended = program.run(_PROGRAM, order, MOST_SECONDS + _EXTRA_SECONDS)
    files = [result_of(directory, rank) for rank in range(RANKS)]
    read = adapter_of(MeasuredScript).validate_json
    results: list[MeasuredScript] = [read(file.read_bytes()) for file in files if file.exists()]
    remove_empty(chain.from_iterable(result.made for result in results))
    failed = [result for result in results if result.error is not None]
    if failed:
        first = min(failed, key=lambda result: result.ended)
        if first.exited:
            first = replace(first, error=ended.complete(str(first.error)))
        return first
    if len(results) == RANKS:
        return results[0]
    if ended.is_late:
        return MeasuredScript(
            error=f"it did not take {plural(steps, 'step')} within {duration(MOST_SECONDS)}"
        )
    if ended.returncode == -signal.SIGKILL:
        return MeasuredScript(error=_KILLED)
    return MeasuredScript(error=ended.crash)


def _cannot_tell(facts: JobFacts, measured: MeasuredScript) -> Unavailable:
    where = f" ({measured.place})" if measured.place else ""
    hint = "check the architecture of its model: `zlaunch check MODEL`"
    if facts.model is not None:
        hint = f"check the architecture of its model: `zlaunch check {facts.model.name}`"
    if measured.error == NO_STEP:
        hint = "give it more data, or more steps"
    elif OFFLINE.search(str(measured.error)):
        hint = "a check downloads nothing: get its files first, with `hf download`"
    elif measured.place is not None or measured.exited:
        hint = f"`{train_command(facts)}` hands over the same: see whether it fails there, too"
    return Unavailable(f"cannot tell here: {facts.job.shown_name}: {measured.error}{where}", hint)


def _unchecked(facts: JobFacts, measured: MeasuredScript, steps: int) -> Iterator[str]:
    yield ON_CPU
    if measured.steps < steps:
        yield f"{plural(steps, 'step')}: it ends after {measured.steps}"
    engine = measured.engine
    if engine is not None and engine.asked > engine.accumulated:
        yield f"{engine.asked} accumulation steps: {engine.accumulated} are taken"
    if facts.resumption is not None:
        yield "the checkpoint that it resumes from"
    yield from measured.unchecked
