"""Show the configuration that a search found, and write it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from zlaunch import console
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.estimate_json import of_search
from zlaunch.cli.views.estimate_report import RehearsalLine
from zlaunch.cli.views.estimate_strategies import refused_lines
from zlaunch.cli.views.estimate_text import host_text, job_rows, method, unchecked_host
from zlaunch.cli.views.settings_text import process_text
from zlaunch.cli.views.training_command import training_command
from zlaunch.config.resolve.autos import MICRO, equal_samples
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import ExitStatus
from zlaunch.estimate.changes import CHECKPOINTING_FLAGS, Options
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected, Training, is_fit, not_counted
from zlaunch.estimate.search import NothingFits, SearchResult, plan
from zlaunch.estimate.strategies import STRATEGIES, is_as_fast
from zlaunch.files import check_new, write_new
from zlaunch.units import brief, count, memory, plural, whole

MOST_MISSES: Final = 3
"""Configurations to name as too large, or perhaps too large; and as many that fit."""
_NOT_REHEARSED: Final = "not rehearsed"
_CONSIDERED: Final = ("each GPU", "step", "", "considered")
"""The configuration is last: its options may be longer than a terminal is wide."""

_UNKNOWN_SPEED: Final = (
    "unknown without a GPU whose speed is known: the choice is the lowest stage and least offload that fits, "
    "not the fastest; name the GPU, as in `--on 2xRTX-4090`"
)


def report(
    query: EstimateQuery, global_batch: int | None, output: Path | None, *, as_json: bool
) -> ExitStatus:
    """Search, explain what was found, write it, and return the exit status."""
    if output is not None:
        check_new(output)
    doing = RehearsalLine("rehearsing the fastest candidates")
    with (
        doing as line,
        line.showing(_Candidates()),
        Estimator(line, python=query.job.python) as estimator,
    ):
        estimator.start()  # the closed form of a hundred candidates takes as long as the imports
        result = plan(query, global_batch, estimator)
    if as_json:
        console.data(to_json(of_search(result, query)))
    if isinstance(result, NothingFits):
        if not as_json:
            show_nothing(result, query)
        return result.fit.status
    if not as_json:
        console.data(*console.table([*job_rows(result.estimate), *plan_rows(result)], indent=""))
        console.data("", *console.table([_CONSIDERED, *_considered(result)], indent=""))
        console.data(*stages_on_one_gpu(result))
        console.say_findings([*result.estimate.findings, *not_counted(result.uncounted)])
    if output is not None or not as_json:
        _write_config(result, output)
    return ExitStatus.OK


class _Candidates:
    """The candidates that were rehearsed so far, in rows."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, ...]] = {}

    def __call__(self, known: Mapping[int, Estimate | Rejected]) -> list[str]:
        for estimate in known.values():
            if isinstance(estimate, Estimate):
                options = _options_of(estimate)
                why = UNFIT.get(estimate.fit, str(estimate.fit.value))
                self._rows[options] = (_gpu_text(estimate), _step_text(estimate.seconds), why, options)
        if not self._rows:
            return []
        return console.table([_CONSIDERED, *self._rows.values()], indent="")


def _options_of(estimate: Estimate) -> str:
    """Write a candidate as the table of all does."""
    job = estimate.query.job
    options = Options(
        stage=job.stage,
        offload=job.offload,
        activation_checkpointing=estimate.query.training.activation_checkpointing or None,
        micro_batch=whole(estimate.resolved.values[MICRO]),
    )
    return str(options)


def show_nothing(result: NothingFits, query: EstimateQuery) -> None:
    """Say that nothing fits, and what came closest."""
    candidate, estimate = result.closest
    close = _CLOSE[result.fit]
    console.say(
        *console.paragraph(f"{close} with a micro-batch of 1 and activation checkpointing; {_tried(result)}"),
        *console.paragraph(f"the closest is `{candidate.options}`: {'; '.join(estimate.verdict.reasons)}"),
        *refused_lines(result.refused),
    )
    console.say_findings([*estimate.findings, *not_counted(result.uncounted)])
    if query.job.nvme_dir is None:
        console.say("hint: `--nvme DIR` also allows offload to a drive")


_CLOSE: Final = {
    Fit.TIGHT: "too close to tell, even",
    Fit.UNKNOWN: "cannot tell what fits, even",
    Fit.NO: "nothing fits, not even",
}


def _tried(result: NothingFits) -> str:
    methods = [estimate.forecast.method for _, estimate in result.smallest]
    counts = {"rehearsed": methods.count("rehearsal"), "by the closed form": methods.count("closed form")}
    counted = ", ".join(f"{number} {how}" for how, number in counts.items() if number)
    return f"combinations of stage and offload tried: {counted}"


def plan_rows(result: SearchResult) -> Iterator[tuple[str, str]]:
    """List the choice, and what it takes."""
    chosen, estimate = result.candidate, result.estimate
    ranks = estimate.query.groups.batch
    yield "choice", f"`{chosen.options}`"
    total = chosen.micro_batch * chosen.accumulation * ranks
    equation = f"{chosen.micro_batch} per rank x {chosen.accumulation} accumulated"
    same = equal_samples(estimate.resolved.values, total)
    yield "batch", f"{total} = {equation} x {plural(ranks, 'rank')}{same}"
    yield "process", process_text(estimate)
    yield "host", unchecked_host(estimate) or host_text(estimate)
    bucket = estimate.resolved.values[ZERO, "reduce_bucket_size"]
    if bucket is not None:
        yield "buckets", f"{count(bucket)} elements"
    if estimate.seconds is not None:
        yield "step", f"about {brief(estimate.seconds)}"
    elif (gpu := estimate.query.cluster.gpu) is not None and not gpu.half_flops:
        yield "step", _UNKNOWN_SPEED
    yield "method", method(estimate.forecast)


def _considered(result: SearchResult) -> Iterator[tuple[str, ...]]:
    """List the choice, and why others were not taken."""
    chosen, best = result.estimate.seconds, result.estimate
    yield _gpu_text(best), _step_text(chosen), "chosen", str(result.candidate.options)
    for other in not_taken(result):
        if other.fit is not None:
            why = UNFIT.get(other.fit, "cannot tell")
        elif other.seconds is None or chosen is None:
            why = "fits"
        else:
            why = _how_much_slower(other.seconds, chosen)
        yield other.memory or _NOT_REHEARSED, _step_text(other.seconds), why, other.options


def _how_much_slower(seconds: float, chosen: float) -> str:
    if is_as_fast(seconds, chosen):
        return "no faster"
    return f"{seconds / chosen - 1:.0%} slower"


UNFIT: Final = {Fit.TIGHT: "may not fit", Fit.NO: "too large"}


class NotTaken(NamedTuple):
    """A configuration that was considered."""

    options: str
    fit: Fit | None
    """None for one that is only slower."""
    memory: str = ""
    """Of each GPU; empty if it was not rehearsed."""
    seconds: float | None = None
    """The time of a step."""


def not_taken(result: SearchResult) -> Iterator[NotTaken]:
    """List what is larger than the choice, the fastest other, and what no closed form lets fit."""
    for candidate, estimate in list(result.misses())[:MOST_MISSES]:
        yield NotTaken(str(candidate.options), estimate.fit, _gpu_text(estimate), estimate.seconds)
    fitting = {
        str(candidate.options): estimate
        for candidate, estimate in result.tried
        if isinstance(estimate, Estimate) and is_fit(estimate)
    }
    fitting.pop(str(result.candidate.options), None)  # the choice may have been tried with another bucket
    for options, estimate in list(fitting.items())[:MOST_MISSES]:
        yield NotTaken(options, None, _gpu_text(estimate), estimate.seconds)
    chosen = result.estimate.seconds
    if result.other is not None and chosen and result.other[1] > chosen:
        other, seconds = result.other
        if str(other.options) not in fitting:
            yield NotTaken(str(other.options), None, seconds=seconds)
    preferred = STRATEGIES[: STRATEGIES.index(result.candidate.strategy)]
    for strategy in preferred:
        if strategy in result.hopeless:
            yield NotTaken(str(strategy.options), Fit.NO)


def stages_on_one_gpu(result: SearchResult) -> Iterator[str]:
    """Say why a higher stage needs less on one GPU, where it partitions nothing."""
    chosen, estimate = result.candidate, result.estimate
    if estimate.query.cluster.world_size != 1:
        return
    for other, miss in result.misses():
        alike = replace(chosen, strategy=other.strategy, query=other.query, bucket=other.bucket)
        same_offload = other.strategy.offload == chosen.strategy.offload
        if alike == other and same_offload and other.strategy.stage < chosen.strategy.stage:
            yield ""
            yield from console.paragraph(
                "on one GPU, no stage partitions anything; stages differ in their buffers and in what the "
                f"allocator keeps for later: `--stage {chosen.strategy.stage}` takes {_held(estimate)}; "
                f"`--stage {other.strategy.stage}` takes {_held(miss)}"
            )
            return


def _held(estimate: Estimate) -> str:
    need = estimate.need
    return f"{memory(need.allocated)} for tensors and {memory(need.reserved - need.allocated)} more"


def _gpu_text(estimate: Estimate) -> str:
    return memory(estimate.need.process[1])


def _step_text(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"about {brief(seconds)}"


def _write_config(result: SearchResult, output: Path | None) -> None:
    if output is None:
        console.say("add `-o FILE` to write the ds_config")
        return
    write_new(output, result.ds_config())
    script_args = []
    if result.candidate.checkpointing:
        script_args.append(f"--{CHECKPOINTING_FLAGS[0]}")
    command = training_command(result.candidate.query.job, ["SCRIPT"], output, script_args)
    console.say(f"wrote {output}; to train with it:", *command)
    for what in _left_to_script(result.candidate.query.training):
        console.say(*console.paragraph(f"note: SCRIPT itself has to {what}: the plan counts on it"))


def _left_to_script(training: Training) -> Iterator[str]:
    """Name what an option of a plan assumes, and none of `zlaunch train` asks for."""
    if training.lora is not None:
        rank = training.lora.rank
        yield f"train LoRA adapters of rank {rank} (with TRL: `--use_peft --lora_r {rank}`)"
    if training.frozen is not None:
        yield f"freeze the parameters that match {training.frozen}"
