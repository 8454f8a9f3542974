"""Estimate the memory of a program as it is: start one process of it, in which all models are fake.

It gets what `zlaunch train` would hand over, and is left when it has taken two steps.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Final

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL
from zlaunch.config.resolve.compose import to_json
from zlaunch.config.resolve.job import resolve_config
from zlaunch.config.resolve.values import Sourced, Values
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.evidence import ErrorEvidence, Evidence, JobEvidence, RankEvidence
from zlaunch.diagnosis.signatures.script import OTHER_EXCEPTION
from zlaunch.dsconfig.batch import RankGroups, rank_groups
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.schema_check import check
from zlaunch.errors import Finding, Refused, Severity
from zlaunch.estimate.estimator import speed_of
from zlaunch.estimate.fit import Cluster
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.program import MOST_SECONDS, ProgramOrder, RehearsedProgram, result_of
from zlaunch.estimate.query import (
    Estimate,
    EstimateQuery,
    Training,
    remarks_on,
)
from zlaunch.estimate.rehearse import ENVIRONMENT, Rehearser
from zlaunch.estimate.splits import split_by_arguments, split_by_config, split_by_script
from zlaunch.estimate.temp_dirs import Scratch
from zlaunch.estimate.uncounted import GENERATES, RECOMPUTES, Effect, Uncounted, in_arguments
from zlaunch.estimate.workload import Accelerator, Workload
from zlaunch.hosts.adapters import adapter_of
from zlaunch.hosts.machine.ports import LOOPBACK, free_port
from zlaunch.job.model import ModelConfig
from zlaunch.job.source import Source
from zlaunch.launch.asked_program import ended_by_itself, error_of, first_rank, last_lines
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.reporter import PlanReporter
from zlaunch.process import Child, ours
from zlaunch.rundir.layout import RunDir
from zlaunch.units import duration, plural

_PROGRAM: Final = "zlaunch.estimate.rehearsal.program"
_GRACE_SECONDS: Final = 2.0
_EXTRA_SECONDS: Final = 20
"""How much longer than its own limit the process may take, which a package may keep from heeding that."""
_USUAL_GPU_BYTES: Final = 80 << 30
"""What a program is told of a GPU that nobody named; a rehearsal has no limit."""
_QUIET: Final = {
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONFAULTHANDLER": "1",
}
"""Trackers are off, nothing is downloaded, and no thread of a tokenizer is there to fork."""
_OF_VALUES: Final = {
    "compares": (Effect.EITHER, "compares a value, which is only known in training, and counts as false"),
    "reads": (Effect.EITHER, "reads values, which are only known in training, and count as 0"),
    "selects": (Effect.LESS, "selects by a mask, which counts as true everywhere"),
    "autocasts": (Effect.EITHER, "computes in another precision than that of the weights"),
    "compiles": (Effect.EITHER, "compiles, which changes what is kept"),
}


def rehearse_job(
    facts: JobFacts, cluster: Cluster, reporter: PlanReporter
) -> tuple[LaunchPlan, RehearsedProgram]:
    """Rehearse the program of a job with a run directory of its own; return the plan that it got, too.

    Raise Unavailable for a job with stages or experts on other ranks, Refused for what DeepSpeed refuses.
    """
    scratch = Scratch("program")
    try:
        plan = make_plan(replace(facts, layout=RunDir(scratch.path / "run")))
        split = split_by_config(plan.values, facts.script.interface)
        split = split or split_by_arguments(facts.trainer_flags) or split_by_script(facts.script)
        if split is not None and not split.runs_in_rehearsals:
            raise split.unavailable()
        with Rehearser(python=Path(plan.python.executable)) as rehearser:
            doubt = rehearser.doubt()
        if doubt is not None:
            return plan, RehearsedProgram(error=doubt)
        result = _rehearse(plan, cluster, scratch.path, reporter)
        if result.is_refusal:
            raise Refused([_refusal(facts, result)])
        return plan, result
    finally:
        scratch.delete()


def why_not(facts: JobFacts, result: RehearsedProgram) -> str:
    """Say where and why a program cannot be rehearsed."""
    where = f" ({result.place})" if result.place else ""
    return f"{facts.job.shown_name} cannot be rehearsed: {result.error}{where}"


def _refusal(facts: JobFacts, result: RehearsedProgram) -> Finding:
    """Explain what DeepSpeed raised, as at the end of a run."""
    kind, _, message = str(result.error).partition(": ")
    script = facts.script
    evidence = Evidence(
        JobEvidence(interface=script.interface, handover=script.handover),
        (RankEvidence(0, has_started=True, returncode=1, error=ErrorEvidence(kind, message)),),
    )
    verdict, text = diagnose(evidence), f"DeepSpeed fails: {result.error}"
    if verdict.code != OTHER_EXCEPTION:
        text = verdict.cause
    if result.place is not None:
        text += f" ({result.place})"
    hint = "; or ".join(verdict.advice) or None
    return Finding("deepspeed-gives-up", text, hint, severity=Severity.FAILS_LATER)


def _rehearse(
    plan: LaunchPlan, cluster: Cluster, directory: Path, reporter: PlanReporter
) -> RehearsedProgram:
    plan.layout.root.mkdir()
    if plan.ds_config.leaves:
        plan.layout.ds_config.write_text(to_json(plan.ds_config.config()), "utf-8")
    program = [str(plan.script.path)] if plan.module is None else ["-m", plan.module]
    gpu_bytes = _USUAL_GPU_BYTES
    if cluster.gpu is not None:
        gpu_bytes = cluster.gpu.total_bytes
    words = plan.args.words
    if plan.script.local_rank_flag:
        words = (f"{plan.script.local_rank_flag}=0", *words)
    accelerator: Accelerator = "cpu"
    if plan.facts.machine.gpus:
        accelerator = "cuda"
    sizes = (cluster.world_size, cluster.ranks_per_host)
    ranks = tuple(dict.fromkeys((0, cluster.world_size - 1)))
    memory = (gpu_bytes, cluster.cublas_bytes)
    order = ProgramOrder((*program, *words), *sizes, *memory, accelerator, ranks)
    order_file, log = directory / "order.json", directory / "log"
    order_file.write_text(json.dumps(asdict(order)), "utf-8")
    argv = ours(_PROGRAM, str(order_file), str(directory), python=str(plan.python.executable))
    returncode, is_late = _run(argv, _environment(plan, directory), log, plan, reporter)
    files = [result_of(directory, rank) for rank in ranks]
    read = adapter_of(RehearsedProgram).validate_json
    results = [read(file.read_bytes()) for file in files if file.exists()]
    _remove(result.made for result in results)
    if files[0].exists():
        result = _fuller(*results)
        if result.exited:
            result = replace(result, error=f"{result.error}: {error_of(last_lines(log))}")
        return result
    if is_late:
        return RehearsedProgram(error=f"it did not take two steps within {duration(MOST_SECONDS)}")
    return _crash(returncode, log)


def _remove(made: Iterable[Sequence[str]]) -> None:
    """Remove directories that ranks made; the job may fail where they exist already."""
    for directory in sorted(set(chain.from_iterable(made)), key=len, reverse=True):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()


def _fuller(first: RehearsedProgram, last: RehearsedProgram | None = None) -> RehearsedProgram:
    """Return the rank that holds more; the first alone saves the model."""
    if first.forecast is None or last is None or last.forecast is None:
        return first
    pool = first.forecast.tensor_pool
    if last.forecast.peak(pool) <= first.forecast.peak(pool):
        return first
    saving = [phase for phase in first.forecast.phases if phase.name == "save"]
    training = [phase for phase in last.forecast.phases if phase.name != "save"]
    return replace(last, forecast=replace(last.forecast, phases=(*training, *saving)))


def _run(
    argv: list[str], environment: Mapping[str, str], log: Path, plan: LaunchPlan, reporter: PlanReporter
) -> tuple[int, bool]:
    started = time.monotonic()
    is_late = False
    with log.open("wb") as output:
        child = Child(argv, environment, output, _GRACE_SECONDS)

        def follow() -> None:
            nonlocal is_late
            took = time.monotonic() - started
            reporter.busy(f"rehearsing {plan.facts.job.shown_name} on fake tensors", duration(took))
            if took > MOST_SECONDS + _EXTRA_SECONDS:
                is_late = True
                child.end_within(0.0)

        returncode = ended_by_itself(child, follow)
    return returncode, is_late


def _environment(plan: LaunchPlan, directory: Path) -> dict[str, str]:
    """Give the process what the first rank would get; it uses no accelerator, and no other machine."""
    given = {name: variable.value for name, variable in plan.environment.items()}
    temporary = directory / "tmp"
    temporary.mkdir()
    return {
        **os.environ,
        **given,
        **first_rank(plan.topology),
        **ENVIRONMENT,
        **_QUIET,
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(free_port()),
        "TMPDIR": str(temporary),
    }


def _crash(returncode: int, log: Path) -> RehearsedProgram:
    """Tell of a process that left no result: an error in a package that ends Python itself."""
    lines = last_lines(log)
    error = error_of(lines) or f"its process ended with {returncode}"
    if returncode < 0:
        stack = [line for line in lines if line.lstrip().startswith('File "')]
        error = f"its process ended with signal {-returncode}"
        if stack:
            error += f" in {stack[0].strip()}"
    return RehearsedProgram(error=error)


def estimate_of(plan: LaunchPlan, cluster: Cluster, result: RehearsedProgram, forecast: Forecast) -> Estimate:
    """Estimate a job from the rehearsal of its program."""
    facts = plan.facts
    args, _ = facts.read_args()
    given = facts.context(args)
    resolved = resolve_config(facts.job, given)
    groups = rank_groups(result.ds_config, cluster.world_size)
    values = _with_own_batch(_with_own_settings(resolved.values, result), result, groups)
    config = check(dict(result.ds_config), given.context.release).config or resolved.config
    resolved = replace(resolved, values=values, config=config)
    name, length = facts.job.shown_name, sequence_length(result)
    trained = next(engine for engine in result.engines if engine.steps)
    model = ModelConfig(result.model, json.dumps(result.model), f"{trained.model} of {name}")
    training = Training(
        seq_len=Sourced(length or 1, Source.computed(_compared(result))),
        uncounted=(*_undecided(result), *_uncounted(facts, result)),
        batch=_batch_words(result),
    )
    query = EstimateQuery(facts.job, given, model, training, cluster)
    workload = Workload(
        result.model,
        {**result.ds_config, "gradient_accumulation_steps": result.accumulated},
        cluster.world_size,
        cluster.ranks_per_host,
        length or 1,
    )
    forecast = replace(forecast, notes=tuple(_notes(result)))
    speed = None
    if length is not None:  # the formulas know language models alone
        speed = speed_of(workload, cluster, forecast)
    return Estimate(query, resolved, workload, forecast, speed, tuple(remarks_on(forecast, query)))


def _with_own_settings(values: Values, result: RehearsedProgram) -> Values:
    """Show the stage, the offload and the precision that the engine was really created with."""
    for section in (ZERO, "bf16", "fp16"):
        if isinstance(own := result.ds_config.get(section), Mapping):
            values = values.put((section,), own, Source.computed("the program's own"))
    return values


def _with_own_batch(values: Values, result: RehearsedProgram, groups: RankGroups) -> Values:
    """Show the batch that the engine was really created with."""
    micro = result.ds_config.get("train_micro_batch_size_per_gpu")
    if not isinstance(micro, int):
        return values
    factors = f"{micro} per rank x {result.accumulated} accumulated x {plural(groups.batch, 'rank')}"
    own = Source.computed("the program's own")
    values = values.put(MICRO, micro, own).put(ACCUMULATION, result.accumulated, own)
    total = micro * result.accumulated * groups.batch
    return values.put(TOTAL, total, Source.computed(factors))


def _undecided(result: RehearsedProgram) -> Iterator[Uncounted]:
    for read in result.values:
        effect, text = _OF_VALUES[read.kind]
        is_value = read.kind in ("compares", "reads", "selects")
        yield Uncounted(read.place, f"{text}: `{read.code}`", effect, is_undecided=is_value)


def _uncounted(facts: JobFacts, result: RehearsedProgram) -> Iterator[Uncounted]:
    """Find what was not rehearsed: in its evaluation, and what fake tensors do not do."""
    for what, why in result.uncounted.items():
        yield Uncounted(what, why, Effect.MORE)
    for one in in_arguments(facts.trainer_flags):
        if one.does in (GENERATES, RECOMPUTES):
            yield one


def _notes(result: RehearsedProgram) -> Iterator[str]:
    for engine in result.engines:
        if not engine.steps:
            yield f"counted with a second engine, whose {engine.model} has {engine.parameters:,} parameters"


def sequence_length(result: RehearsedProgram) -> int | None:
    """Return the number of tokens in a sequence; None if the batches have none."""
    if result.batches is None:
        return None
    shapes = result.batches.shapes
    for name, shape in shapes.items():
        if re.search(r"input_ids|tokens|^batch$", name) and len(shape) == 2:
            return shape[1]
    return None


def _compared(result: RehearsedProgram) -> str:
    if result.batches is None:
        return "no batches"
    if result.batches.read == 1:
        return "the only batch"
    return f"the longest of the first {result.batches.read} batches"


def _batch_words(result: RehearsedProgram) -> str:
    """Write the shapes of the longest batch."""
    if result.batches is None:
        return "made by the program itself, without a data loader"
    grouped: dict[tuple[int, ...], list[str]] = {}
    for name, shape in result.batches.shapes.items():
        grouped.setdefault(shape, []).append(name.replace("[", "input ").replace("]", ""))
    shapes = [
        f"{' x '.join(map(str, shape)) or '1'} ({', '.join(names)})" for shape, names in grouped.items()
    ]
    return f"{'; '.join(shapes)}: {_compared(result)}"
