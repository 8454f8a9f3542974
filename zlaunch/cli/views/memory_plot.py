"""Pictures of an estimate: one job in its phases, or a job under every strategy."""

from collections.abc import Iterator
from dataclasses import replace

from zlaunch.cli.views.estimate_text import origin, trained
from zlaunch.cli.views.picture import CACHE, CONTEXT, Bar, Panel, Picture, times
from zlaunch.cli.views.settings_text import is_offloaded, zero_words
from zlaunch.config.resolve.autos import ACCUMULATION, MICRO
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.forecast import ACTIVATIONS, HOST_POOLS, STATES, Phase
from zlaunch.estimate.query import Estimate, Rejected
from zlaunch.estimate.strategies import Strategy, StrategyTable
from zlaunch.units import memory, plural, whole

SMALL = 0.25
"""If everything but activations is a smaller share than this of the longest bar, it gets its own panel."""
DOMINANT = 2
"""The whole process is drawn unless it takes more than so many times its tensors."""
VERDICTS = {Fit.YES: "fits", Fit.NO: "does not fit", Fit.TIGHT: "too close to tell", Fit.UNKNOWN: ""}


def phases_picture(estimate: Estimate) -> Picture:
    """Show what one job holds in each phase."""
    forecast, phases = estimate.forecast, list(estimate.forecast.phases)
    if forecast.resume is not None and forecast.resume.phase is not None:
        phases.append(forecast.resume.phase)
    where = "GPU memory" if forecast.on_gpu else "host memory"
    bars = [_phase_bar(estimate, phase) for phase in phases]
    names, process = [phase.name for phase in phases], _process(estimate)
    is_whole = forecast.on_gpu and process.total <= DOMINANT * max(bar.total for bar in bars)
    if is_whole:
        bars, names = [*bars, process], [*names, "whole process"]
    panel = Panel(f"{where} of one rank", bars, *_limit(estimate))
    panels = [panel, *_without_activations(panel, len(phases)), *_host_of_phases(estimate, phases, len(bars))]
    return Picture(
        f"Most {where} of one rank in each phase of training",
        [
            _about(estimate, with_stage=True),
            " ".join([*_verdict_sentence(estimate), *_distance(panel, estimate)]),
        ],
        names,
        panels,
        forecast.curve,
    )


def _phase_bar(estimate: Estimate, phase: Phase) -> Bar:
    pool = estimate.forecast.tensor_pool
    total = phase.peak.get(pool, 0)
    return Bar(phase.parts.get(pool) or {"tensors": total}, memory(total))


def _process(estimate: Estimate, *, with_rest: bool = True) -> Bar:
    """Show what fills a GPU at the peak, with everything besides tensors if asked."""
    need, forecast = estimate.need, estimate.forecast
    parts = forecast.parts.get(forecast.tensor_pool) or {"tensors": need.allocated}
    if not (with_rest and forecast.on_gpu):
        return Bar(parts, memory(sum(parts.values())))
    cache = max(0, need.reserved - sum(parts.values()))
    context = need.process[1] - need.reserved
    return Bar({**parts, CACHE: cache, CONTEXT: context}, memory(need.process[1]))


def _without_activations(panel: Panel, phases: int) -> Iterator[Panel]:
    rest = [
        {part: size for part, size in bar.parts.items() if part not in ACTIVATIONS}
        for bar in panel.bars[:phases]
    ]
    bars = [Bar(parts, memory(sum(parts.values()))) for parts in rest]
    enlarged = Panel("Enlarged: without activations", [*bars, *[Bar({})] * (len(panel.bars) - phases)])
    if 0 < enlarged.longest < SMALL * panel.longest:
        yield enlarged


def _host_of_phases(estimate: Estimate, phases: list[Phase], rows: int) -> Iterator[Panel]:
    if not (estimate.forecast.on_gpu and is_offloaded(estimate.resolved.values)):
        return
    bars = []
    for phase in phases:
        parts: dict[str, int] = {pool: phase.peak.get(pool, 0) for pool in HOST_POOLS}
        bars.append(Bar(parts, _host_note(sum(parts.values()), phase.peak.get("nvme", 0))))
    yield Panel("Host tensors of one rank", [*bars, *[Bar({})] * (rows - len(bars))])


def _host_note(host: int, nvme: int) -> str:
    if not nvme:
        return memory(host)
    return f"{memory(host)}, {memory(nvme)} on NVMe"


def strategies_picture(table: StrategyTable) -> Picture:
    """Compare the strategies: what ZeRO partitions, the whole GPU, and the host."""
    _, first = table.estimates[0]
    chosen = None if table.chosen is None else table.chosen[0]
    largest = max(
        (estimate for _, estimate in table.estimates), key=lambda estimate: estimate.need.process[1]
    )
    device = "GPU" if first.forecast.on_gpu else "Host"
    is_whole = largest.need.process[1] <= DOMINANT * largest.need.allocated
    gpu = [_gpu_bar(result, is_whole, is_chosen=strategy == chosen) for strategy, result in table.rows]
    title = "All tensors at the peak"
    if is_whole and first.forecast.on_gpu:
        title = "Does it fit? The whole process"
    whole = Panel(title, gpu, *_limit(first))
    ranks = plural(first.query.cluster.ranks_per_host, "rank")
    return Picture(
        f"{device} memory of one rank with each ZeRO stage and offload",
        [_about(first, with_stage=False), " ".join([*_fastest(table), *_distance(whole, largest)])],
        [_strategy_name(strategy, is_chosen=strategy == chosen) for strategy, _ in table.rows],
        [
            Panel("What ZeRO partitions: model states", [_states_bar(result) for _, result in table.rows]),
            whole,
            Panel(f"Memory of a host with {ranks}", [_host_bar(result) for _, result in table.rows]),
        ],
    )


def _strategy_name(strategy: Strategy, *, is_chosen: bool) -> str:
    name = f"stage {strategy.stage}"
    if strategy.label != "-":
        name += f", {strategy.label}"
    return f"> {name}" if is_chosen else name


def _states_bar(result: Estimate | Rejected) -> Bar:
    if isinstance(result, Rejected):
        return Bar({}, "cannot work")
    forecast = result.forecast
    states: dict[str, int] = {}
    for phase in forecast.phases:
        if phase.name == "step":
            parts = phase.parts.get(forecast.tensor_pool, {})
            states = {part: parts[part] for part in STATES if part in parts}
    return Bar(states, memory(sum(states.values())))


def _gpu_bar(result: Estimate | Rejected, is_whole: bool, *, is_chosen: bool) -> Bar:
    if isinstance(result, Rejected):
        return Bar({}, "cannot work")
    bar = _process(result, with_rest=is_whole)
    words = [bar.note, VERDICTS[result.fit]]
    if is_chosen:
        words.append("fastest")
    return Bar(bar.parts, ", ".join(filter(None, words)))


def _host_bar(result: Estimate | Rejected) -> Bar:
    if isinstance(result, Rejected):
        return Bar({}, "cannot work")
    need = result.need
    pinned, shm = min(need.pinned, need.host), min(need.shm, need.host)
    pageable = max(0, need.host - pinned - shm)
    return Bar({"pageable": pageable, "pinned": pinned, "shm": shm}, _host_note(need.host, need.nvme))


def _limit(estimate: Estimate) -> tuple[int | None, str]:
    gpu = estimate.query.cluster.gpu
    if gpu is None or not estimate.forecast.on_gpu:
        return None, ""
    return gpu.total_bytes, f"{gpu.name}: {memory(gpu.total_bytes)}"


def _about(estimate: Estimate, *, with_stage: bool) -> str:
    query, values = estimate.query, estimate.resolved.values
    cluster = query.cluster
    micro, accumulated = whole(values[MICRO]) or 1, whole(values[ACCUMULATION]) or 1
    words = [query.model.name]
    if with_stage:
        words.append(zero_words(values))
    words += [
        *trained(query),
        estimate.resolved.precision or "fp32",
        f"{plural(cluster.world_size, 'rank')} on {plural(cluster.num_hosts, 'host')}",
        f"{plural(micro, 'sequence')} of {query.training.seq_len.value} tokens in a micro-batch",
    ]
    if accumulated > 1:
        words.append(f"{accumulated} accumulated")
    forecast = replace(estimate.forecast, kept=False)  # the picture is the same if it comes from the cache
    return f"{', '.join(words)} ({origin(forecast).partition(':')[0]})."


def _verdict_sentence(estimate: Estimate) -> Iterator[str]:
    if estimate.fit is Fit.YES:
        yield "It fits."
    elif estimate.doubts or estimate.fit is not Fit.UNKNOWN:
        reasons = "; ".join(estimate.verdict.reasons)
        yield f"{estimate.fit.words.capitalize()}: {reasons}."


def _fastest(table: StrategyTable) -> Iterator[str]:
    if table.chosen is not None:
        yield f"The fastest that fits (>): {table.chosen[0].options}."
    elif table.fit is Fit.NO:
        yield "None fits."


def _distance(panel: Panel, estimate: Estimate) -> Iterator[str]:
    gpu, need = estimate.query.cluster.gpu, estimate.need
    if panel.is_limit_near or not estimate.forecast.on_gpu:
        return
    overhead = memory(need.process[1] - need.reserved)
    process = f"{memory(need.process[1])}, with {overhead} for CUDA and NCCL"
    if gpu is None:
        yield f"The whole process takes up to {process}."
    else:
        distance = times(gpu.total_bytes, need.process[1])
        yield f"The {gpu.name} has {memory(gpu.total_bytes)}: {distance} the whole process ({process})."
