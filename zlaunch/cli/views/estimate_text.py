"""Format the estimate of one job as text: phases, GPU memory by part, and effects of changes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from zlaunch import console
from zlaunch.cli.views.settings_text import batch_rows, is_offloaded, precision_words, zero_words
from zlaunch.config.resolve.autos import MICRO
from zlaunch.dsconfig.batch import RankGroups
from zlaunch.errors import Finding
from zlaunch.estimate.changes import BUCKET
from zlaunch.estimate.effects import ChangeEffect, fitting, most_reduced, state_of
from zlaunch.estimate.fit import Cluster, Fit
from zlaunch.estimate.forecast import Forecast, Phase, Pool
from zlaunch.estimate.memory.settings import read_settings
from zlaunch.estimate.query import Estimate, EstimateQuery
from zlaunch.estimate.speed.communication import Collective, paper_volume
from zlaunch.estimate.speed.step_time import Speed
from zlaunch.hosts.machine.gpu_catalog import nominal_size
from zlaunch.job.script import Handover
from zlaunch.job.source import SourceKind
from zlaunch.units import brief, brief_range, count, decimal, gib, in_gib, memory, plural

BAR_COLUMNS: Final = 20
MOST_HINTS: Final = 3
POOLS: Final[Mapping[Pool, str]] = {"pageable": "pageable", "pinned": "pinned", "shm": "shm", "nvme": "NVMe"}
A_FEW_STEPS: Final = (
    "hint: a few real steps tell: after `zlaunch train`, `zlaunch runs show` has the memory of each rank"
)
FITS: Final = {Fit.YES: "yes", Fit.NO: "no", Fit.TIGHT: "close", Fit.UNKNOWN: "?"}


def estimate_lines(estimate: Estimate) -> Iterator[str]:
    """Write everything about one job."""
    yield from console.table([*job_rows(estimate), *_settings(estimate)], indent="")
    blocks = (
        _phases(estimate),
        _part_lines(estimate.forecast),
        _bucket_lines(estimate),
        _traffic_lines(estimate),
        time_lines(estimate.speed),
        _no_time_lines(estimate),
        _verdict_lines(estimate),
    )
    yield from _apart(blocks)


def change_lines(estimate: Estimate, effects: Sequence[ChangeEffect]) -> Iterator[str]:
    """Write what each change does, which parts it reduces, and which make a job fit that does not."""
    blocks = (
        _effects(effects, estimate.seconds is not None),
        _reduced(estimate.forecast, effects),
        _hint_lines(estimate, effects),
    )
    yield from _apart(blocks)


def _apart(blocks: Iterable[Iterator[str]]) -> Iterator[str]:
    for block in blocks:
        if lines := list(block):
            yield from ["", *lines]


def _verdict_lines(estimate: Estimate) -> Iterator[str]:
    if estimate.fit is Fit.YES:
        text = "it fits"
        if sequences := estimate.query.training.assumed_length:
            text += f" with {sequences}"
        if unchecked := unchecked_host(estimate):
            text += f"; it {unchecked}"
        yield from console.paragraph(text)
    elif estimate.doubts or estimate.fit is not Fit.UNKNOWN:
        yield from console.paragraph(f"{estimate.fit.words}: {'; '.join(estimate.verdict.reasons)}")
    if estimate.doubts or estimate.fit is Fit.TIGHT:
        yield from console.paragraph(A_FEW_STEPS)


def further_findings(estimate: Estimate) -> list[Finding]:
    """List its findings, without those that the verdict has as its reasons."""
    return [finding for finding in estimate.findings if finding.message not in estimate.verdict.reasons]


def _hint_lines(estimate: Estimate, effects: Sequence[ChangeEffect]) -> Iterator[str]:
    if estimate.fit in (Fit.NO, Fit.TIGHT) and (changes := fitting(effects)[:MOST_HINTS]):
        words = ", or with ".join(f"`{options}`" for options in changes)
        yield from console.paragraph(f"hint: it fits with {words}")


def unchecked_host(estimate: Estimate) -> str | None:
    """Describe the need for host memory that could not be checked; None if there is none."""
    if estimate.query.cluster.host_bytes is not None or not is_offloaded(estimate.resolved.values):
        return None
    need = f"needs {memory(estimate.need.host)} of host memory on each host"
    return f"{need} (not checked: `--host-memory SIZE` tells what they have)"


def start_lines(estimate: Estimate) -> Iterator[str]:
    """Write the memory check before a start; a job that cannot fit was refused."""
    verdict = "two steps could be rehearsed"
    if estimate.forecast.method != "rehearsal":
        verdict = "not rehearsed"
    if estimate.doubts or estimate.fit is not Fit.UNKNOWN:
        verdict = estimate.fit.words
    yield "\nmemory check before the start"
    rows = [_length_row(estimate.query)]
    rows += [("host", host_text(estimate)), ("verdict", "; ".join([verdict, *estimate.verdict.reasons]))]
    if estimate.forecast.why_not_rehearsed:
        rows.append(("method", method(estimate.forecast)))
    yield from console.table(rows)


def host_text(estimate: Estimate) -> str:
    """Write what the ranks of a host take there."""
    return f"{memory(estimate.need.host)} with its {plural(estimate.query.cluster.ranks_per_host, 'rank')}"


def job_rows(estimate: Estimate) -> list[tuple[str, str]]:
    """Write what the numbers are about: model, ranks and sequence length."""
    query = estimate.query
    rows = [("model", _model_text(query, estimate.forecast))]
    if query.model.is_bundled:
        rows.append(("", "config.json as bundled with zlaunch"))
    rows.append(("ranks", _ranks_text(query.cluster)))
    rows += [("", text) for text in _sharing(estimate.workload.groups)]
    return [*rows, _length_row(query)]


def _sharing(groups: RankGroups) -> Iterator[str]:
    """Say what groups of ranks share beside ZeRO's partitions."""
    if groups.layers > 1:
        yield f"{groups.layers} ranks share each layer (AutoTP), and ZeRO partitions across {groups.zero}"
    if groups.sequences > 1:
        yield f"{groups.sequences} ranks share each sequence (Ulysses, as with accelerate's `sp_size`)"
    if groups.secondary > 1:
        yield f"{groups.secondary} ranks keep a second copy of the parameters together (hpZ)"


def _length_row(query: EstimateQuery) -> tuple[str, str]:
    training = query.training
    if training.batch is not None:
        return "inputs", training.batch
    return "sequence", f"{training.seq_len.value} tokens ({training.seq_len.source})"


def _settings(estimate: Estimate) -> Iterator[tuple[str, str]]:
    values = estimate.resolved.values
    precision = precision_words(estimate.resolved.precision or "fp32", values)
    yield "job", ", ".join([zero_words(values), *trained(estimate.query), precision])
    yield from batch_lines(estimate)
    yield "optimizer", estimate.forecast.optimizer
    words = method(estimate.forecast)
    if estimate.forecast.method == "rehearsal" and not estimate.forecast.kept:
        words += f", in {brief(estimate.forecast.seconds)}"
    yield "method", words


def batch_lines(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Write the global batch, and that the Trainer's default is a part of it."""
    values = estimate.resolved.values
    yield from batch_rows(values)
    leaf = values.leaves.get(MICRO)
    if leaf is not None and leaf.source.kind is SourceKind.TRAINER_DEFAULT:
        yield "", f"{leaf.value} per rank is the Trainer's default; set it with `--micro-batch`"


def trained(query: EstimateQuery) -> Iterator[str]:
    """Name what is unusual about the training."""
    training = query.training
    if training.activation_checkpointing:
        yield "activation checkpointing"
    if training.attention != "sdpa":
        yield f"{training.attention} attention"
    if training.lora is not None:
        yield f"LoRA of rank {training.lora.rank}"
    if training.frozen is not None:
        yield f"`{training.frozen}` frozen"
    if training.four_bits is not None:
        yield "weights of four bits"
    if training.liger:
        yield "kernels of Liger"


def method(forecast: Forecast) -> str:
    """Write where numbers come from, and why they are not of a rehearsal."""
    if forecast.why_not_rehearsed:
        return f"{origin(forecast)}; no rehearsal: {forecast.why_not_rehearsed}"
    return origin(forecast)


def origin(forecast: Forecast) -> str:
    """Write where numbers come from, and how far off they may be."""
    if forecast.kept:
        return "rehearsed by an earlier command; `ZLAUNCH_CACHE=off` rehearses again"
    if forecast.method == "rehearsal":
        return "rehearsed: two steps of DeepSpeed on fake tensors"
    if forecast.error < 1:
        return f"closed form, up to {forecast.error:.0%} off"
    return f"closed form, up to a factor of {1 + forecast.error:g} off"


def _model_text(query: EstimateQuery, forecast: Forecast) -> str:
    trained = "all trained"
    if forecast.trainable != forecast.parameters:
        trained = f"{count(forecast.trainable)} trained"
    return f"{query.model.name}: {count(forecast.parameters)} parameters, {trained}"


def _ranks_text(cluster: Cluster) -> str:
    text = f"{plural(cluster.world_size, 'rank')} on {plural(cluster.num_hosts, 'host')}"
    if cluster.gpu is None:
        return f"{text}; no GPU named or found"
    gpu = f"{cluster.gpu.name}, {gib(cluster.gpu.total_bytes)} GiB each"
    if size := nominal_size(cluster.gpu):
        gpu += f" ({size})"
    return f"{text} of {cluster.ranks_per_host} x {gpu}"


def _phases(estimate: Estimate) -> Iterator[str]:
    forecast, need, gpu = estimate.forecast, estimate.need, estimate.query.cluster.gpu
    pools = [pool for pool in POOLS if forecast.peak(pool) or pool == "pageable"]
    header = ("GiB per rank", "used", "reserved", "process", *(POOLS[pool] for pool in pools))
    overhead = need.process[1] - need.reserved
    phases = list(forecast.phases)
    if forecast.resume is not None and forecast.resume.phase is not None:
        phases.append(forecast.resume.phase)
    rows = [header, *(_phase_row(phase, overhead, pools) for phase in phases)]
    full = need.process[1]
    if gpu is not None:
        full = max(full, gpu.total_bytes)
    lines = console.figures(rows)
    width = max(map(len, lines)) + 2
    yield lines[0]
    for line, phase in zip(lines[1:], phases, strict=True):
        used = min(BAR_COLUMNS, round((phase.peak.get("reserved", 0) + overhead) / full * BAR_COLUMNS))
        if width + BAR_COLUMNS <= 80:
            line = f"{line:<{width}}{'#' * used}{'.' * (BAR_COLUMNS - used)}"  # noqa: PLW2901 - the same line
        yield line
    yield _host(estimate)
    if estimate.query.training.batch is not None:
        yield "resuming from a checkpoint is not rehearsed for scripts"


def _phase_row(phase: Phase, overhead: int, pools: Sequence[Pool]) -> tuple[str, ...]:
    reserved = phase.peak.get("reserved", 0)
    amounts = (phase.peak.get("gpu", 0), reserved, reserved + overhead)
    return (phase.name, *map(in_gib, amounts), *(in_gib(phase.peak.get(pool, 0)) for pool in pools))


def _host(estimate: Estimate) -> str:
    need, ranks = estimate.need, plural(estimate.query.cluster.ranks_per_host, "rank")
    text = f"a host with its {ranks}: {memory(need.host)} of memory"
    if need.pinned:
        text += f", {memory(need.pinned)} pinned"
    if need.nvme:
        text += f", and {memory(need.nvme)} on NVMe"
    return text


def _bucket_lines(estimate: Estimate) -> Iterator[str]:
    """Say how to shrink buckets that are larger than the model, where they fill much of the memory."""
    forecast, query = estimate.forecast, estimate.query
    parts = forecast.parts.get("gpu", {})
    size, bucket = parts.get("buckets", 0), state_of(query, estimate.resolved).bucket
    if 4 * size < sum(parts.values()) or bucket <= forecast.trainable:
        return
    enough = f"`--set {BUCKET}={forecast.trainable}`"
    if query.given.handover is Handover.NOT:
        enough = f"a `reduce_bucket_size` of {forecast.trainable} in the script's ds_config"
    yield from console.paragraph(
        f"hint: {enough} is enough for this model; its buckets have room for {count(bucket)} elements"
    )


def _no_time_lines(estimate: Estimate) -> Iterator[str]:
    gpu = estimate.query.cluster.gpu
    if estimate.speed is not None or gpu is None:
        return
    why = "they are computed for language models that train on token ids"
    if not gpu.half_flops:
        why = f"the speed of {gpu.name} is unknown"
    yield from console.paragraph(f"no traffic and no step time: {why}")


def _traffic_lines(estimate: Estimate) -> Iterator[str]:
    if estimate.speed is None:
        return
    traffic = estimate.speed.traffic
    yield "traffic of a rank in a step"
    rows = [
        (
            _name_of(collective, len({one.ranks for one in traffic.collectives}) > 1),
            decimal(collective.sent, "B"),
            f"{collective.times} x",
        )
        for collective in traffic.collectives
    ]
    others = {
        "to its host": traffic.to_host,
        "from its host": traffic.from_host,
        "read from NVMe": traffic.nvme_read,
        "written to NVMe": traffic.nvme_written,
    }
    rows += [(name, decimal(amount, "B"), "") for name, amount in others.items() if amount]
    if not rows:
        yield "  none: there is one rank, and nothing is offloaded"
        return
    yield from (f"  {line}" for line in console.figures(rows))
    settings = read_settings(estimate.workload)
    if traffic.collectives and settings.groups.are_split:
        yield f"  {decimal(traffic.sent, 'B')} to other ranks"
    elif traffic.collectives:
        ranks = settings.groups.world_size
        paper = paper_volume(estimate.forecast.trainable, settings.stage, ranks, settings.item)
        yield from console.paragraph(
            f"{decimal(traffic.sent, 'B')} to other ranks; the ZeRO paper counts {decimal(paper, 'B')} "
            "without accumulation",
            "  ",
        )


def _name_of(collective: Collective, with_ranks: bool) -> str:
    name = f"{collective.kind} of {collective.of}"
    if with_ranks:
        name += f", {plural(collective.ranks, 'rank')}"
    return name


def time_lines(speed: Speed | None) -> Iterator[str]:
    """Write how long a step takes, and the share of each kind of work."""
    if speed is None:
        return
    roof = speed.roofline
    calibrated = "published runs" if roof.is_calibrated else "published runs on other GPUs"
    yield from console.paragraph(
        f"a step takes {brief_range(*roof.likely)} (not measured: calibrated on {calibrated})"
    )
    yield from console.table(
        [(term.name, brief_range(*term.likely), term.why) for term in roof.terms if term.likely[1]]
    )
    verb = "take" if roof.bound_by.endswith("s") else "takes"
    yield from console.paragraph(
        f"{roof.bound_by} {verb} longest; by data sheets alone, a step takes at least "
        f"{brief(roof.seconds)}: at most {roof.tokens_per_second:,.0f} tokens/s on all ranks",
        "  ",
    )


def _part_lines(forecast: Forecast) -> Iterator[str]:
    parts = forecast.parts.get("gpu", {})
    total = sum(parts.values())
    if not total:
        return
    yield f"{memory(total)} of tensors at the peak, in {forecast.peak_phase('gpu')}"
    for part, size in _large(parts):
        yield f"  {part:<20}{in_gib(size):>9}{size / total:>6.0%}"
    if (besides := forecast.peak("reserved") - total) > 0:
        least = "up to"
        if forecast.method != "rehearsal":
            least = "about"
        yield f"and {least} {memory(besides)} of free memory in the cache of torch's allocator"


def _large(parts: Mapping[str, int]) -> list[tuple[str, int]]:
    total = sum(parts.values())
    return [item for item in sorted(parts.items(), key=lambda item: -item[1]) if item[1] * 1000 > total]


def _reduced(forecast: Forecast, effects: Sequence[ChangeEffect]) -> Iterator[str]:
    rows = []
    for part, size in _large(forecast.parts.get("gpu", {})):
        if (reduction := most_reduced(part, size, effects)) is not None:
            options, left = reduction
            rows.append((f"{part:<20}{in_gib(size):>9} -> {in_gib(left)}", f"`{options}`"))
    if rows:
        yield "change that leaves least of each part, in GiB"
        yield from console.notes(rows)


def _effects(effects: Sequence[ChangeEffect], known_speed: bool) -> Iterator[str]:
    if not effects:
        return
    yield "effect of each change, in GiB"
    rows: list[tuple[str, ...]] = [("change", "GPU", "host", "time/token", "fits")]
    for effect in sorted(effects, key=lambda effect: effect.gpu):
        amounts = (_signed(effect.gpu), _signed(effect.host), _pace(effect.pace))
        rows.append((str(effect.options), *amounts, FITS[effect.fit]))
    if not known_speed:
        rows = [(*row[:3], row[4]) for row in rows]
    yield from (f"  {line}" for line in console.figures(rows))


def _pace(pace: float | None) -> str:
    if pace is None:
        return "-"
    if abs(pace) < 0.005:
        return "0"
    return f"{pace:+.0%}"


def _signed(num_bytes: int) -> str:
    if num_bytes == 0:
        return "0"
    sign = "-" if num_bytes < 0 else "+"
    return f"{sign}{in_gib(abs(num_bytes))}"
