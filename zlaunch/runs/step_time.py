"""The time of a step of a run, by part and rank, its throughput, and what limits it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from zlaunch.diagnosis.collect import job_evidence
from zlaunch.diagnosis.evidence import JobEvidence
from zlaunch.diagnosis.speed import (
    LEAST_STEPS,
    OUTSIDE,
    RankTime,
    SpeedEvidence,
    SpeedLoss,
    TimedLine,
    speed_losses,
)
from zlaunch.dsconfig.precision import precision_of
from zlaunch.errors import ZlaunchError
from zlaunch.estimate.memory.activations import Batch, saved_activations, step_flops
from zlaunch.estimate.speed.step_time import geometric_mean
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.gpu_catalog import gpu_from_nvml
from zlaunch.job.transformer import Transformer, read_transformer
from zlaunch.rundir import phases
from zlaunch.rundir.record import HeartbeatRecord, StepRecord
from zlaunch.runs.history import RunHistory
from zlaunch.runs.run import Run
from zlaunch.units import brief_range, decimal, rate, whole
from zlaunch.worker.hook.step_clock import WARM_UP

PASSES: Final = "forward and backward"
"""What a forecast has no parts of."""
PREDICTED_PARTS: Final = {
    "network": phases.COMMUNICATION,
    "pcie": phases.COPYING,
    "optimizer": phases.STEPPING,
    "nvme": phases.SWAPPING,
}
"""Term of a forecast → the part of a step."""
LEAST_GPU_STEPS: Final = 3
"""Fewer steps that were measured on the GPU say nothing of the others."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """How fast a run trains; None for what is unknown."""

    samples_per_second: float | None = None
    """Of all ranks, as are the tokens."""
    tokens_per_second: float | None = None
    flops_per_second: float | None = None
    """Of one rank, for the operations of the model alone, without recomputation."""
    mfu: float | None = None
    """That, as a share of the dense peak of the GPU in this precision."""
    hfu: float | None = None
    """The same with the operations that are recomputed."""

    def __str__(self) -> str:
        """Write what is known."""
        parts = []
        if self.samples_per_second is not None:
            parts.append(f"{rate(self.samples_per_second)} samples/s")
        if self.tokens_per_second is not None:
            parts.append(f"{rate(self.tokens_per_second)} tokens/s")
        if self.flops_per_second is not None:
            parts.append(f"{decimal(self.flops_per_second, 'FLOP')}/s per rank")
        if self.mfu is not None:
            parts.append(f"MFU {self.mfu:.1%}")
        if self.hfu is not None and self.hfu != self.mfu:
            parts.append(f"HFU {self.hfu:.1%}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class StepTime:
    """The mean step of all ranks; times in seconds."""

    num_steps: int
    """Timed steps of the rank that has fewest."""
    on_gpu: bool
    """Whether the parts were measured with events on the GPU."""
    seconds: float
    """From the clock of the first rank."""
    parts: Mapping[str, float]
    """Part → seconds, the longest first; empty, as are the ranks, if too few steps were measured on a GPU."""
    ranks: Sequence[RankTime]
    throughput: Throughput
    predicted: str | None
    """The likely range of the forecast, and what it is bound by."""
    predicted_parts: Mapping[str, float]
    """Part → seconds in the middle of its likely range, if nothing overlaps; empty without a forecast."""
    losses: Sequence[SpeedLoss]
    """What limits the speed, the most expensive first."""

    @property
    def total_seconds(self) -> float:
        """The time of all timed steps."""
        return self.num_steps * self.seconds


@dataclass(frozen=True, slots=True)
class _Model:
    """The operations of a micro-batch."""

    flops: float
    executed: float
    """With those that are recomputed."""
    unsaved: int
    """Bytes of activations that are recomputed."""
    tokens: int


def step_time(run: Run) -> StepTime | None:
    """Compute the time of a step from the heartbeats of all ranks; None if too few steps were timed."""
    beats = _timed(run)
    num_steps = min((beat.get("timed_steps", 0) for beat in beats.values()), default=0)
    if num_steps < LEAST_STEPS:
        return None
    on_gpu = all(beat.get("gpu_steps", 0) >= LEAST_GPU_STEPS for beat in beats.values())
    ranks, first = [], beats[min(beats)]
    if on_gpu or run.job.get("accelerator") in (None, "cpu"):
        ranks = [_rank_time(run, rank, beat, on_gpu) for rank, beat in beats.items()]
    seconds, step = _per_step(first, on_gpu=False), _mean_step(first)
    if step <= 0:
        return None
    job = job_evidence(run)
    model = _model(run, first, recomputes=bool(job.gradient_checkpointing))
    throughput = _throughput(run, first, model, step)
    evidence = _evidence(run, job, ranks, seconds, model)
    return StepTime(
        num_steps=num_steps,
        on_gpu=on_gpu,
        seconds=step,
        parts=_mean_parts(ranks),
        ranks=ranks,
        throughput=throughput,
        predicted=_predicted(run),
        predicted_parts=_predicted_parts(run),
        losses=speed_losses(replace(evidence, flops_share=throughput.mfu)),
    )


def throughput_of(run: Run) -> Throughput:
    """Compute samples and tokens per second alone, as `step_time` does, without the history of the run."""
    beats = _timed(run)
    first = beats.get(min(beats, default=0), HeartbeatRecord())
    num_steps = min((beat.get("timed_steps", 0) for beat in beats.values()), default=0)
    step = _mean_step(first)
    if num_steps < LEAST_STEPS or step <= 0:
        return Throughput()
    return _throughput(run, first, None, step)


def _timed(run: Run) -> dict[int, HeartbeatRecord]:
    return {rank: beat for rank, beat in run.heartbeats.items() if beat.get("parts")}


def _mean_step(beat: HeartbeatRecord) -> float:
    seconds = _per_step(beat, on_gpu=False)
    return sum(seconds.get(part, 0.0) for part in phases.OF_A_STEP)


def _predicted(run: Run) -> str | None:
    forecast = run.forecast.get("step") or {}
    match forecast.get("likely", []):
        case [best, worst]:
            return f"{brief_range(best, worst)}, bound by {forecast.get('bound_by')}"
    return None


def _predicted_parts(run: Run) -> dict[str, float]:
    """Sort the terms of the forecast by the parts of a step; kernels run while Python launches the next."""
    terms = (run.forecast.get("step") or {}).get("terms", {})
    middle = {name: geometric_mean((ends[0], ends[1])) for name, ends in terms.items() if len(ends) == 2}
    kernels = middle.pop("compute", 0.0) + middle.pop("memory", 0.0)
    parts = {PASSES: max(kernels, middle.pop("launches", 0.0))}
    for name, part in PREDICTED_PARTS.items():
        parts[part] = middle.get(name, 0.0)
    return {part: seconds for part, seconds in parts.items() if seconds > 0}


def _throughput(run: Run, first: HeartbeatRecord, model: _Model | None, step: float) -> Throughput:
    engine, tokens = run.program.get("engine", {}), first.get("tokens")
    batch, pieces = engine.get("train_batch_size"), engine.get("grad_accum") or 1
    throughput = Throughput()
    if run.program.get("num_engines", 1) > 1:  # each has a batch and a model of its own
        return throughput
    if batch:
        throughput = replace(throughput, samples_per_second=batch / step)
    if tokens:
        of_a_step = tokens / max(1, _steps_taken(first)) * len(run.heartbeats)
        throughput = replace(throughput, tokens_per_second=of_a_step / step)
    if model is None:
        return throughput
    throughput = replace(throughput, flops_per_second=model.flops * pieces / step)
    peak = _peak(run, first)
    if peak is not None:
        mfu, hfu = (flops * pieces / step / peak for flops in (model.flops, model.executed))
        throughput = replace(throughput, mfu=mfu, hfu=hfu)
    return throughput


def _steps_taken(beat: HeartbeatRecord) -> int:
    return beat.get("timed_steps", 0) + WARM_UP


def _per_step(beat: HeartbeatRecord, *, on_gpu: bool) -> dict[str, float]:
    parts, steps = beat.get("parts", {}), beat.get("timed_steps", 0)
    if on_gpu:
        parts, steps = beat.get("gpu_parts", {}), beat.get("gpu_steps", 0)
    return {part: max(0.0, seconds) / max(1, steps) for part, seconds in parts.items()}


def _rank_time(run: Run, rank: int, beat: HeartbeatRecord, on_gpu: bool) -> RankTime:
    """Take the parts of the steps that were measured on the GPU as shares of all steps."""
    of_a_step = _of_a_step(_per_step(beat, on_gpu=on_gpu))
    if on_gpu:
        whole = sum(_of_a_step(_per_step(beat, on_gpu=False)).values())
        sampled = sum(of_a_step.values()) or 1.0
        of_a_step = {part: seconds * whole / sampled for part, seconds in of_a_step.items()}
    hosts = {slot.get("rank"): slot.get("host", "") for slot in run.job.get("ranks", [])}
    return RankTime(rank, hosts.get(rank, ""), of_a_step, beat.get("busy"), beat.get("device", ""))


def _of_a_step(seconds: Mapping[str, float]) -> dict[str, float]:
    return {part: seconds[part] for part in phases.OF_A_STEP if seconds.get(part)}


def _mean_parts(ranks: Sequence[RankTime]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for rank in ranks:
        for part, seconds in rank.parts.items():
            sums[part] = sums.get(part, 0.0) + seconds / len(ranks)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _model(run: Run, beat: HeartbeatRecord, *, recomputes: bool) -> _Model | None:
    """Count the operations of a micro-batch from the model's config and the tokens that were fed."""
    engine = run.program.get("engine", {})
    config, tokens, steps = engine.get("model_config"), beat.get("tokens"), _steps_taken(beat)
    if not config or not tokens or not steps:
        return None
    try:
        model: Transformer = read_transformer(config)
    except ZlaunchError:
        return None
    sequences = max(1, engine.get("micro_batch") or 1)
    micro = tokens // (steps * (engine.get("grad_accum") or 1))
    item = 2
    if precision_of(engine.get("ds_config", {})) == "fp32":
        item = 4
    batch = Batch(sequences, max(1, micro // sequences), item)
    trainable = whole(engine.get("trainable"))
    flops = step_flops(model, batch, recomputed=False, trainable=trainable)
    kept = saved_activations(model, batch, checkpointing=True)
    unsaved = saved_activations(model, batch, checkpointing=False).activations - kept.activations
    executed = step_flops(model, batch, recomputed=recomputes, trainable=trainable)
    return _Model(flops, executed, unsaved, batch.tokens)


def _peak(run: Run, beat: HeartbeatRecord) -> float | None:
    """Return the dense FLOP/s of the GPU in the precision of the run; None without a known GPU."""
    gpu = gpu_from_nvml(beat.get("device", ""))
    if gpu is None:
        return None
    if precision_of(run.program.get("engine", {}).get("ds_config", {})) == "fp32":
        return gpu.fp32_flops or None
    return gpu.half_flops or None


def _evidence(
    run: Run,
    job: JobEvidence,
    ranks: Sequence[RankTime],
    seconds: Mapping[str, float],
    model: _Model | None,
) -> SpeedEvidence:
    arguments = run.program.get("trainer_args", {})
    threads = run.job.get("environment", {}).get("OMP_NUM_THREADS", "")
    retries = [beat.get("allocator_retries", 0) for beat in run.heartbeats.values()]
    steps = [beat.get("timed_steps", 0) for beat in run.heartbeats.values()]
    evidence = SpeedEvidence(
        job=job,
        ranks=ranks,
        lines=timed_lines(run),
        outside={phase: seconds[phase] for phase in OUTSIDE if seconds.get(phase)},
        workers=whole(arguments.get("dataloader_num_workers")),
        threads=int(threads) if threads.isdecimal() else None,
        cores=run.environment.get("machine", {}).get("num_cores"),
        room=_unused_memory(run),
        allocator_retries=max(retries, default=0),
        num_steps=max(steps, default=0),
    )
    if model is None:
        return evidence
    return replace(evidence, tokens=model.tokens, unsaved=model.unsaved)


def _unused_memory(run: Run) -> int | None:
    """Return the least memory of a device that was never used: of its GPU, or of the host of CPU ranks."""
    rooms = []
    for rank, sample in run.samples.items():
        gpu, machine = sample.get("gpu"), sample.get("machine") or {}
        reserved = run.heartbeats.get(rank, {}).get("gpu_reserved_bytes")
        if gpu and reserved is not None:
            rooms.append(gpu.get("total_bytes", 0) - max(gpu.get("used_bytes", 0), reserved))
        elif not gpu and (available := machine.get("memory_available_bytes")) is not None:
            rooms.append(available // max(1, len(run.samples)))
    return min(rooms, default=None)


def timed_lines(run: Run) -> list[TimedLine]:
    """List the times of the first rank's steps, without the first ones."""
    history = RunHistory(run.root).steps
    history.update()
    timed, parts = [], _Parts()
    before: StepRecord | None = None
    for line in history.lines:
        parts.add(line)
        if not line.get("count", 1):
            continue
        if before is not None and (each := _seconds_per_step(before, line)) is not None:
            timed.append(TimedLine(line.get("step", 0), each, parts.per_step(line)))
        before = line
    return timed[1:]


def _seconds_per_step(before: StepRecord, line: StepRecord) -> float | None:
    """Return the time of the last step, without checkpoints and evaluations, or else the mean of the line."""
    if "step_seconds" in line:
        return line["step_seconds"] or None
    steps = line.get("step", 0) - before.get("step", 0)
    seconds = line.get("time", 0.0) - before.get("time", 0.0)
    if steps <= 0 or seconds <= 0:
        return None
    return seconds / steps


class _Parts:
    """Adds up the parts of steps, which only some lines have, until a line of steps has them, too."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._step: int | None = None
        """The last step of the parts before."""

    def add(self, line: StepRecord) -> None:
        for part, seconds in line.get("phases", {}).items():
            if part in phases.OF_A_STEP:
                self._sums[part] = self._sums.get(part, 0.0) + seconds

    def per_step(self, line: StepRecord) -> dict[str, float]:
        """Return the mean of the steps since the last line of steps with parts; empty without new ones."""
        if not line.get("phases"):
            return {}
        step, sums, self._sums = line.get("step", 0), self._sums, {}
        steps, self._step = step - (step - 1 if self._step is None else self._step), step
        if steps <= 0:
            return {}
        return {part: seconds / steps for part, seconds in sums.items()}
