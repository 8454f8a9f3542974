"""The answer about one job as a person reads it: its phases, what fills the GPU, what changes that."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from zlaunch import console
from zlaunch.cli.views.speed import time_lines, traffic_lines
from zlaunch.config.resolve.values import Values
from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.estimate.changes import ChangeEffect, mover, words_that_fit
from zlaunch.estimate.fit import Cluster, Fit
from zlaunch.estimate.forecast import Forecast, Phase
from zlaunch.estimate.query import Estimate, EstimateQuery
from zlaunch.units import brief, count, gib, in_gib, memory, plural

BAR_COLUMNS = 20
PLACES = {"cpu": "the CPU", "nvme": "NVMe"}
PARTS = {"optimizer": "optimizer", "param": "parameters"}
WHAT_POOLS = {"pageable": "pageable", "pinned": "pinned", "shm": "shm", "nvme": "NVMe"}


def answer_lines(answer: Estimate, site: Cluster) -> Iterator[str]:
    """Write everything about one job."""
    yield from console.table([*asked(answer.question, site, answer.forecast), *_job(answer)], indent="")
    blocks = (
        phase_lines(answer, site),
        part_lines(answer.forecast),
        traffic_lines(answer),
        time_lines(answer.speed),
        verdict_lines(answer, site),
    )
    yield from _apart(blocks)


def change_lines(answer: Estimate, effects: Sequence[ChangeEffect]) -> Iterator[str]:
    """Write what each change does, which parts it moves, and which would make a job fit that does not."""
    blocks = (
        effect_lines(effects, answer.seconds is not None),
        moved_lines(answer.forecast, effects),
        hint_lines(answer, effects),
    )
    yield from _apart(blocks)


def _apart(blocks: Iterable[Iterator[str]]) -> Iterator[str]:
    for block in blocks:
        lines = list(block)
        yield from ["", *lines] if lines else []


def verdict_lines(answer: Estimate, site: Cluster) -> Iterator[str]:
    """Say whether it fits, and why not."""
    verdict = answer.verdict
    if verdict.fit is Fit.UNKNOWN:
        return
    if verdict.fit is Fit.YES:
        unchecked = unchecked_host(answer, site)
        yield from console.paragraph(f"it fits; it {unchecked}" if unchecked else "it fits")
        return
    yield from console.paragraph(f"{verdict.fit.value}: {'; '.join(verdict.reasons)}")


def hint_lines(answer: Estimate, effects: Sequence[ChangeEffect]) -> Iterator[str]:
    """Say which change lets a job fit that does not, the least intrusive first."""
    is_open = answer.verdict.fit in (Fit.NO, Fit.TIGHT)
    if is_open and (fitting := words_that_fit(effects)):
        yield from console.paragraph(f"hint: it fits with {fitting}")


def unchecked_host(answer: Estimate, site: Cluster) -> str | None:
    """Say what an offloading job needs of hosts that nobody named; None if there is nothing to be said."""
    values = answer.settled.values
    is_moved = any(values[ZERO, f"offload_{key}", "device"] in PLACES for key in PARTS.values())
    if site.host_bytes is not None or not is_moved:
        return None
    need = f"needs {memory(answer.need.host)} of host memory on each host"
    return f"{need} (not checked: `--on` says nothing of the hosts)"


def start_lines(answer: Estimate) -> Iterator[str]:
    """Say what a start would find out about a job's memory; a job that cannot fit was refused."""
    need, verdict = answer.need, answer.verdict
    told = verdict.fit.value if verdict.fit is not Fit.UNKNOWN else "DeepSpeed takes two steps"
    yield "\nmemory, as a start looks at it"
    rows = [("host", f"{memory(need.host)} of each"), ("fit", "; ".join([told, *verdict.reasons]))]
    if answer.forecast.on_gpu and verdict.fit is not Fit.UNKNOWN:
        phase = answer.forecast.peak_phase("gpu")
        rows[:0] = [("GPU", f"{memory(need.process[1])} of each, fullest in {phase}")]
    yield from console.table(rows)


def asked(question: EstimateQuery, site: Cluster, forecast: Forecast) -> list[tuple[str, str]]:
    """Say what the numbers are about."""
    seq_len = question.training.seq_len
    return [
        ("model", _model(question, forecast)),
        ("ranks", _ranks(site)),
        ("sequence", f"{seq_len.value} tokens ({seq_len.source})"),
    ]


def _job(answer: Estimate) -> Iterator[tuple[str, str]]:
    """Say which job of the many possible ones this is."""
    values = answer.settled.values
    stage = f"ZeRO stage {values[ZERO, 'stage']}"
    yield "job", ", ".join([stage, *_offloaded(values), *trained(answer.question), answer.settled.precision])
    batch = values.leaves.get(("train_batch_size",))
    if batch is not None:
        yield "batch", f"{batch.value} = {batch.source}"
    yield "optimizer", answer.forecast.optimizer
    yield "method", method(answer.forecast)


def trained(question: EstimateQuery) -> Iterator[str]:
    """Name what is unusual about the training."""
    training = question.training
    if training.activation_checkpointing:
        yield "activation checkpointing"
    if training.attention != "sdpa":
        yield f"{training.attention} attention"
    if training.lora is not None:
        yield f"LoRA of rank {training.lora.rank}"


def method(forecast: Forecast) -> str:
    """Say where the numbers of one job come from, how far off they may be, and how long they took."""
    if forecast.method == "rehearsal" and not forecast.kept:
        return f"{origin(forecast)}, in {brief(forecast.seconds)}"
    why = f"; no rehearsal: {forecast.why_not_rehearsed}" if forecast.why_not_rehearsed else ""
    return f"{origin(forecast)}{why}"


def origin(forecast: Forecast) -> str:
    """Say where numbers come from, and how far off they may be."""
    if forecast.kept:
        return "rehearsed by an earlier command; `ZLAUNCH_CACHE=off` does it again"
    if forecast.method == "rehearsal":
        return "rehearsed: DeepSpeed itself took two steps without memory"
    off = f"up to {error:.0%}" if (error := forecast.error) < 1 else f"up to a factor of {1 + error:g}"
    return f"closed form, {off} off"


def title(answer: Estimate) -> str:
    """Name a job in one line."""
    values = answer.settled.values
    name = answer.question.model.source.removesuffix("/config.json")
    return f"{name}, ZeRO stage {values[ZERO, 'stage']}, {', '.join(_offloaded(values))}"


def _model(question: EstimateQuery, forecast: Forecast) -> str:
    name = question.model.source.removesuffix("/config.json")
    trained = (
        "all of them trained"
        if forecast.trainable == forecast.parameters
        else f"{count(forecast.trainable)} of them trained"
    )
    return f"{name}: {count(forecast.parameters)} parameters, {trained}"


def _ranks(site: Cluster) -> str:
    text = f"{plural(site.world_size, 'rank')} on {plural(site.num_hosts, 'host')}"
    if site.gpu is None:
        return f"{text}; no GPU is named and none is here"
    return f"{text} of {site.ranks_per_host} x {site.gpu.name}, {gib(site.gpu.total_bytes)} GiB each"


def _offloaded(values: Values) -> list[str]:
    devices = {part: values[ZERO, f"offload_{key}", "device"] for key, part in PARTS.items()}
    return [f"{part} on {PLACES[device]}" for part, device in devices.items() if device in PLACES] or [
        "nothing offloaded"
    ]


def phase_lines(answer: Estimate, site: Cluster) -> Iterator[str]:
    """Write phases by pools, with a bar for the GPU."""
    forecast = answer.forecast
    pools = [pool for pool in WHAT_POOLS if forecast.peak(pool) or pool == "pageable"]  # type: ignore[arg-type]
    header = ("GiB of a rank", "used", "reserved", "process", *(WHAT_POOLS[pool] for pool in pools))
    overhead = answer.need.process[1] - answer.need.reserved
    later = forecast.resume and forecast.resume.phase
    phases = [*forecast.phases, *([later] if later else [])]
    rows = [header, *(_phase(phase, overhead, pools) for phase in phases)]
    full = max(site.gpu.total_bytes if site.gpu else 0, answer.need.process[1])
    lines = console.figures(rows)
    width = max(map(len, lines)) + 2
    yield lines[0]
    for line, phase in zip(lines[1:], phases, strict=True):
        used = min(BAR_COLUMNS, round((phase.peak.get("reserved", 0) + overhead) / full * BAR_COLUMNS))
        bar = "#" * used + "." * (BAR_COLUMNS - used)
        yield f"{line:<{width}}{bar}" if width + BAR_COLUMNS <= 80 else line
    yield from _hosts(answer, site)


def _phase(phase: Phase, overhead: int, pools: Sequence[str]) -> tuple[str, ...]:
    reserved = phase.peak.get("reserved", 0)
    amounts = (phase.peak.get("gpu", 0), reserved, reserved + overhead)
    return (phase.name, *map(in_gib, amounts), *(in_gib(phase.peak.get(pool, 0)) for pool in pools))


def _hosts(answer: Estimate, site: Cluster) -> Iterator[str]:
    need, ranks = answer.need, plural(site.ranks_per_host, "rank")
    text = f"a host with its {ranks}: {memory(need.host)} of memory"
    if need.pinned:
        text += f", {memory(need.pinned)} of it pinned"
    if need.nvme:
        text += f", and {memory(need.nvme)} on NVMe"
    yield text


def part_lines(forecast: Forecast) -> Iterator[str]:
    """Say what fills the GPU when it is fullest."""
    parts = forecast.parts.get("gpu", {})
    total = sum(parts.values())
    if not total:
        return
    yield f"at the peak, in {forecast.peak_phase('gpu')}, {memory(total)} are"
    for part, size in _large(parts):
        yield f"  {part:<20}{in_gib(size):>9}{size / total:>6.0%}"
    if (besides := forecast.peak("reserved") - total) > 0:
        yield f"and up to {memory(besides)} that torch's allocator holds besides, free but not given back"


def _large(parts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Leave out what is less than a thousandth of the whole."""
    total = sum(parts.values())
    return [item for item in sorted(parts.items(), key=lambda item: -item[1]) if item[1] * 1000 > total]


def moved_lines(forecast: Forecast, effects: Sequence[ChangeEffect]) -> Iterator[str]:
    """Say which change leaves least of each part."""
    moved = [
        (part, size, found)
        for part, size in _large(forecast.parts.get("gpu", {}))
        if (found := mover(part, size, effects)) is not None
    ]
    if moved:
        yield "what leaves least of each part at the peak, in GiB"
        rows = [
            (f"{part:<20}{in_gib(size):>9} -> {in_gib(left)}", f"`{words}`")
            for part, size, (words, left) in moved
        ]
        yield from console.notes(rows)


def effect_lines(effects: Sequence[ChangeEffect], known_speed: bool) -> Iterator[str]:
    """Say what each change does, the one that saves most first."""
    if not effects:
        return
    yield "what a change does, in GiB"
    header = ("change", "GPU", "host", *(("time/token",) if known_speed else ()), "fits")
    rows = [header]
    for one in sorted(effects, key=lambda one: one.gpu):
        pace = () if not known_speed else (_pace(one.pace),)
        rows.append((one.words, _signed(one.gpu), _signed(one.host), *pace, _FITS[one.fit]))
    yield from (f"  {line}" for line in console.figures(rows))


def _pace(pace: float | None) -> str:
    if pace is None:
        return "-"
    return "0" if abs(pace) < 0.005 else f"{pace:+.0%}"


def _signed(num_bytes: int) -> str:
    if num_bytes == 0:
        return "0"
    return f"{'-' if num_bytes < 0 else '+'}{in_gib(abs(num_bytes))}"


_FITS = {Fit.YES: "yes", Fit.NO: "no", Fit.TIGHT: "close", Fit.UNKNOWN: "?"}
