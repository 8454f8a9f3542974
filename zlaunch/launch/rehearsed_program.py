"""Estimate the memory of a program as it is: start one process of it, in which all models are fake.

It gets what `zlaunch train` would hand over, and is left when it has taken two steps.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL
from zlaunch.config.resolve.job import resolve_config
from zlaunch.config.resolve.values import Sourced, Values
from zlaunch.dsconfig.batch import RankGroups, rank_groups
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.schema_check import check
from zlaunch.errors import Refused
from zlaunch.estimate.calibration import calibrated, kept_records
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
from zlaunch.estimate.rehearse import Rehearser
from zlaunch.estimate.splits import split_by_arguments, split_by_config, split_by_script
from zlaunch.estimate.temp_dirs import Scratch
from zlaunch.estimate.uncounted import GENERATES, RECOMPUTES, Effect, Uncounted, in_arguments
from zlaunch.estimate.workload import Accelerator, Workload
from zlaunch.hosts.adapters import adapter_of
from zlaunch.job.model import ModelConfig
from zlaunch.job.source import Source
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.program_process import ProgramProcess, argv_of, refusal
from zlaunch.launch.reporter import PlanReporter
from zlaunch.rundir.layout import RunDir
from zlaunch.units import duration, plural
from zlaunch.worker.hook.confinement import remove_empty

_PROGRAM: Final = "zlaunch.estimate.rehearsal.program"
_EXTRA_SECONDS: Final = 20
"""How much longer than its own limit the process may take, which a package may keep from heeding that."""
_USUAL_GPU_BYTES: Final = 80 << 30
"""What a program is told of a GPU that nobody named; a rehearsal has no limit."""
_OF_VALUES: Final = {
    "compares": (Effect.EITHER, "compares a value, which is only known in training, and counts as false"),
    "reads": (Effect.EITHER, "reads values, which are only known in training, and count as 0"),
    "selects": (Effect.LESS, "selects by a mask, which counts as true everywhere"),
    "autocasts": (Effect.EITHER, "computes in another precision than that of the weights"),
    "starts": (Effect.EITHER, "starts another program, which a rehearsal does not"),
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
            raise Refused([refusal(facts, str(result.error), result.place)])
        return plan, result
    finally:
        scratch.delete()


def why_not(facts: JobFacts, result: RehearsedProgram) -> str:
    """Say where and why a program cannot be rehearsed."""
    where = f" ({result.place})" if result.place else ""
    return f"{facts.job.shown_name} cannot be rehearsed: {result.error}{where}"


def _rehearse(
    plan: LaunchPlan, cluster: Cluster, directory: Path, reporter: PlanReporter
) -> RehearsedProgram:
    gpu_bytes = _USUAL_GPU_BYTES
    if cluster.gpu is not None:
        gpu_bytes = cluster.gpu.total_bytes
    accelerator: Accelerator = "cpu"
    if plan.facts.machine.gpus:
        accelerator = "cuda"
    sizes = (cluster.world_size, cluster.ranks_per_host)
    ranks = tuple(dict.fromkeys((0, cluster.world_size - 1)))
    memory = (gpu_bytes, cluster.cublas_bytes)
    order = ProgramOrder(argv_of(plan), *sizes, *memory, accelerator, ranks)
    doing = f"rehearsing {plan.facts.job.shown_name} on fake tensors"
    ended = ProgramProcess(plan, directory, reporter, doing).run(
        _PROGRAM, order, MOST_SECONDS + _EXTRA_SECONDS
    )
    files = [result_of(directory, rank) for rank in ranks]
    read = adapter_of(RehearsedProgram).validate_json
    results = [read(file.read_bytes()) for file in files if file.exists()]
    remove_empty(chain.from_iterable(result.made for result in results))
    if files[0].exists():
        result = _fuller(*results)
        if result.exited:
            result = replace(result, error=ended.complete(str(result.error)))
        return result
    if ended.is_late:
        return RehearsedProgram(error=f"it did not take two steps within {duration(MOST_SECONDS)}")
    return RehearsedProgram(error=ended.crash)


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
        seq_len=Sourced(length or 1, Source.computed(_which_batch(result))),
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
    remarks = tuple(remarks_on(forecast, query))
    estimate = Estimate(query, resolved, workload, forecast, speed, remarks)
    return calibrated(estimate, kept_records())


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
        is_undecided = read.kind not in ("autocasts", "compiles")
        yield Uncounted(read.place, f"{text}: `{read.code}`", effect, is_undecided=is_undecided)


def _uncounted(facts: JobFacts, result: RehearsedProgram) -> Iterator[Uncounted]:
    """Find what was not rehearsed: in its evaluation, and what fake tensors do not do."""
    for what, why in result.uncounted.items():
        yield Uncounted(what, why, Effect.MORE)
    for one in in_arguments(facts.trainer_flags):
        if one.does in (GENERATES, RECOMPUTES):
            yield one


def _notes(result: RehearsedProgram) -> Iterator[str]:
    trained = next(engine for engine in result.engines if engine.steps)
    for engine in result.engines:
        if engine is not trained:
            yield f"counted with another engine, whose {engine.model} has {engine.parameters:,} parameters"


def sequence_length(result: RehearsedProgram) -> int | None:
    """Return the number of tokens in a sequence; None if the batches have none."""
    if result.batches is None:
        return None
    shapes = result.batches.shapes
    for name, shape in shapes.items():
        if re.search(r"input_ids|tokens|^batch$", name) and len(shape) == 2:
            return shape[1]
    return None


def _which_batch(result: RehearsedProgram) -> str:
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
    return f"{'; '.join(shapes)}: {_which_batch(result)}"
