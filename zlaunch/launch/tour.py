"""The experiment of the ZeRO tutorials: `train zero_memory` in each ZeRO mode, measured and predicted.

What is shown of the jobs comes from their run directories.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeGuard

from zlaunch.errors import Unavailable
from zlaunch.estimate.forecast import HOST_POOLS, Forecast, Pool
from zlaunch.estimate.memory.model_states import ModelStates, model_states
from zlaunch.estimate.memory.settings import read_settings
from zlaunch.estimate.rehearse import Rehearsed
from zlaunch.estimate.speed.communication import paper_volume, ring_bytes
from zlaunch.estimate.workload import LINEAR_LAYERS, Workload
from zlaunch.frozen import dataclass
from zlaunch.hosts.adapters import adapter_of
from zlaunch.hosts.cluster.placement import most_slots
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import GpuChoice, JobSpec, Offload, Precision, RunOptions, Stage
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.prepare import prepare
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.run import run
from zlaunch.parity.verdict import ROUNDING
from zlaunch.process import heed_signals
from zlaunch.rundir.run_files import RunFiles
from zlaunch.units import plural

PROGRAM: Final = (Path(__file__).parents[1] / "recipes" / "zero_memory.py").resolve()

MEASURED: Final = "measured"
"""Directory in the run directory where the program writes."""

PHASES: Final = ("model", "engine", "forward", "backward", "step")
"""The phases of the program up to the end of its first step."""

_REHEARSED: Final = dict(zip(("load", "initialize", "forward", "backward", "step"), PHASES, strict=True))
"""Phase of a rehearsal → phase of the program."""

Rehearse = Callable[[Sequence[Workload]], Sequence[Rehearsed]]


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is trained, and on how many ranks."""

    world_size: int = 2
    layers: int = 12
    width: int = 2048
    micro_batch: int = 32
    steps: int = 2
    precision: Precision = "fp32"
    learning_rate: float = 1e-4

    @property
    def layer(self) -> int:
        """Elements in the matrix of a layer."""
        return self.width * self.width

    @property
    def parameters(self) -> int:
        """Elements of the model, with the biases."""
        return self.layers * (self.layer + self.width)


@dataclass(frozen=True, slots=True)
class ZeroMode:
    """A ZeRO stage and an offload, as the tutorials name them."""

    label: str
    stage: Stage
    offload: Offload | None = None

    @property
    def on_nvme(self) -> bool:
        """Whether it needs a drive."""
        return self.offload is not None and "nvme" in (self.offload.optimizer, self.offload.param)

    @property
    def slug(self) -> str:
        """The label as a part of the name of a directory."""
        return "-".join(re.findall(r"[a-z0-9]+", self.label.lower()))


TOUR: Final[tuple[ZeroMode, ...]] = (
    ZeroMode("baseline", 0),
    ZeroMode("ZeRO-1", 1),
    ZeroMode("ZeRO-2", 2),
    ZeroMode("ZeRO-3", 3),
    ZeroMode("CPU offload", 2, Offload("cpu", "none")),
)


MODES_OF_PARITY: Final[tuple[ZeroMode, ...]] = (
    *TOUR[:4],
    ZeroMode("ZeRO-2, CPU", 2, Offload("cpu", "none")),
    ZeroMode("ZeRO-3, CPU", 3, Offload("cpu", "cpu")),
)
NVME: Final = ZeroMode("ZeRO-3, NVMe", 3, Offload("nvme", "nvme"))

PARITY: Final = Experiment(layers=4, width=1024, steps=20, learning_rate=1e-3)
"""A model whose loss falls by a third in a few steps; its matrices are large enough for NVMe."""

EXPLAINED: Final = ROUNDING["fp32"]
"""Relative difference of losses that rounding explains.

In bf16 it would say little: the losses without ZeRO differ by 1e-2 from those in fp32, and `zero.Init` draws
other weights.
"""


@dataclass(frozen=True, slots=True)
class PhaseMemory:
    """Bytes in tensors at the end of a phase, and the most during it."""

    name: str
    end: int
    peak: int


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """Collectives of one kind and size in a step, as DeepSpeed's comms logger counts them."""

    op: str
    bytes: int
    calls: int


@dataclass(frozen=True, slots=True)
class MeasuredRank:
    """What one rank measured."""

    phases: tuple[PhaseMemory, ...]
    calls: tuple[LoggedCall, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """Memory of a rank by a rehearsal."""

    phases: tuple[PhaseMemory, ...]
    peak: int
    parts: Mapping[str, int]
    """What is in use at the peak."""
    host: int = 0
    """Most host memory of a rank in tensors, if it trains on a GPU."""


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop of the tour: a job that ran, its prediction, and what the formulas say."""

    label: str
    stage: int
    run: str
    """The run directory."""
    ranks: tuple[MeasuredRank, ...]
    predicted: PredictedMemory | None
    on_gpus: PredictedMemory | None
    """Predicted for GPUs, if the job ran on a CPU."""
    formula: ModelStates
    """Bytes of a rank by the formula of the ZeRO paper."""
    sent: Mapping[str, float]
    """Kind of collective → bytes that a rank sends in a step, in a ring."""
    textbook: float
    """Bytes that a rank sends in a step by the ZeRO paper."""

    @property
    def measured(self) -> tuple[PhaseMemory, ...]:
        """The memory of each phase, of the rank that has most."""
        phases = []
        for of_ranks in zip(*(rank.phases for rank in self.ranks), strict=True):
            end = max(phase.end for phase in of_ranks)
            peak = max(phase.peak for phase in of_ranks)
            phases.append(PhaseMemory(of_ranks[0].name, end, peak))
        return tuple(phases)

    @property
    def peak(self) -> int:
        """The most that a rank had in tensors."""
        return max(phase.peak for phase in self.measured)

    def differences(self) -> Iterator[float]:
        """Yield how far each measured amount is from the predicted one, as a fraction of it."""
        if self.predicted is None:
            return
        ends = {phase.name: phase.end for phase in self.measured}
        for phase in self.predicted.phases:
            yield ends[phase.name] / phase.end - 1
        yield self.peak / self.predicted.peak - 1


@dataclass(frozen=True, slots=True)
class Tour:
    """All stops."""

    experiment: Experiment
    accelerator: str
    stops: tuple[Stop, ...]
    why_not_predicted: str | None = None


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The losses of one job, step by step: the mean of all ranks."""

    label: str
    run: str
    losses: tuple[float, ...]

    def differences(self, other: "LossCurve") -> list[float]:
        """Return the difference of each loss, relative to the other's."""
        pairs = zip(self.losses, other.losses, strict=True)
        return [abs(mine - its) / abs(its) for mine, its in pairs]


@dataclass(frozen=True, slots=True)
class Parity:
    """The losses of all jobs; the first is the one without ZeRO."""

    experiment: Experiment
    accelerator: str
    curves: tuple[LossCurve, ...]

    @property
    def most(self) -> float:
        """The largest relative difference of a loss to the first job's."""
        return max(max(curve.differences(self.curves[0])) for curve in self.curves)

    @property
    def agrees(self) -> bool:
        """Whether rounding explains all differences."""
        return self.most <= EXPLAINED


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """One job that has finished: its mode, its record, and what its ranks measured."""

    mode: ZeroMode
    run: RunFiles
    ranks: tuple[MeasuredRank, ...]


def train_modes(
    experiment: Experiment,
    modes: Sequence[ZeroMode],
    reporter: Reporter,
    starts: Callable[[int, ZeroMode], None],
    *,
    folder: Path,
    nvme: Path | None,
) -> list[FinishedJob] | int:
    """Train with each mode in turn; return the exit status of the first job that does not finish.

    Their run directories are made in `folder`. `nvme` is a directory on a drive, for modes that offload to
    NVMe. `starts` is called before each job with its number, from 0. Raises what makes a job impossible.
    """
    _check_ranks(experiment.world_size)
    began, jobs = time.strftime("%Y%m%d-%H%M%S"), []
    for number, mode in enumerate(modes):
        starts(number, mode)
        root = (folder / f"{began}-tour-{mode.slug}").absolute()
        options = LaunchOptions(run_dir=root)
        job = job_of(experiment, mode, root / MEASURED, nvme)
        if status := run(prepare(job, options, reporter), options, reporter):
            return status
        heed_signals()
        files = (root / MEASURED / f"rank-{rank}.json" for rank in range(experiment.world_size))
        jobs.append(FinishedJob(mode, RunFiles(root), tuple(map(_read_measured, files))))
    return jobs


def _check_ranks(asked: int) -> None:
    machine = probe_machine(os.environ, inspect_python(None))
    most = most_slots(len(machine.gpus), machine.num_cores)
    if asked <= most:
        return
    has, hint = f"no GPU, and {machine.num_cores} CPU cores", f"`--ranks {most}`"
    if machine.gpus:
        has = plural(len(machine.gpus), "GPU")
        hint += ", or set DS_ACCELERATOR=cpu to train on the CPU"
    raise Unavailable(f"`--ranks {asked}`: this machine has {has}", hint)


def job_of(experiment: Experiment, mode: ZeroMode, output: Path, nvme: Path | None) -> JobSpec:
    """Describe the job of one mode, whose ranks write what they measure to a directory."""
    sizes = {"layers": experiment.layers, "width": experiment.width, "steps": experiment.steps}
    words = ["--output_dir", str(output)]
    for name, size in sizes.items():
        words += [f"--{name}", str(size)]
    return JobSpec(
        script=PROGRAM,
        args=ScriptArgs(tuple(words)),
        stage=mode.stage,
        offload=mode.offload,
        nvme_dir=nvme if mode.on_nvme else None,
        precision=experiment.precision,
        gpus=GpuChoice(count=experiment.world_size),
        overrides=overrides_of(experiment, mode),
        may_ask=False,
        run_options=RunOptions(show_ranks="none"),
    )


def overrides_of(experiment: Experiment, mode: ZeroMode) -> tuple[tuple[str, Any], ...]:
    """Return the ds_config keys of a job: buckets and limits as large as a layer, as in larger models.

    DeepSpeed's defaults are larger than this model: stage 3 would gather it once and keep it.
    """
    keys: dict[str, Any] = {
        "optimizer.type": "Adam",
        "optimizer.params.lr": experiment.learning_rate,
        "optimizer.params.torch_adam": True,
        "optimizer.params.fused": True,  # compiles nothing
        "train_micro_batch_size_per_gpu": experiment.micro_batch,
        "comms_logger.enabled": True,
        "zero_optimization.reduce_bucket_size": experiment.layer,
    }
    if mode.stage == 3 and not mode.on_nvme:  # zlaunch chooses buffers for NVMe
        keys |= {
            "zero_optimization.stage3_prefetch_bucket_size": experiment.layer,
            "zero_optimization.stage3_max_live_parameters": 2 * experiment.layer,
            "zero_optimization.stage3_max_reuse_distance": 0,
            "zero_optimization.stage3_param_persistence_threshold": 10 * experiment.width,
        }
    return tuple(keys.items())


def _read_measured(file: Path) -> MeasuredRank:
    try:
        written = json.loads(file.read_text("utf-8"))
        device = written["device"]
        phases = [
            {"name": phase["name"], "end": phase["end"].get(device, 0), "peak": phase["peak"].get(device, 0)}
            for phase in written["phases"]
        ]
        members = {"phases": phases, "calls": written["traffic"], "losses": written["losses"]}
        rank: MeasuredRank = adapter_of(MeasuredRank).validate_python(members)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Unavailable(f"`{file}` cannot be read: {error}") from None
    return rank


def parity_of(experiment: Experiment, jobs: Sequence[FinishedJob]) -> Parity:
    """Compare the losses that the jobs measured."""
    curves = []
    for job in jobs:
        losses = zip(*(rank.losses for rank in job.ranks), strict=True)
        curves.append(LossCurve(job.mode.label, job.run.root.name, tuple(map(fmean, losses))))
    return Parity(experiment, jobs[0].run.job.get("accelerator", ""), tuple(curves))


def tour_of(experiment: Experiment, jobs: Sequence[FinishedJob], rehearse: Rehearse) -> Tour:
    """Set what the jobs measured beside what rehearsals of their ds_configs and the formulas predict."""
    accelerator = jobs[0].run.job.get("accelerator", "")
    here = [_workload(experiment, job, accelerator) for job in jobs]
    if accelerator == "cpu":
        forecasts = rehearse([*here, *(replace(workload, accelerator="cuda") for workload in here)])
        predicted = [_predicted_memory(forecast, HOST_POOLS) for forecast in forecasts[: len(jobs)]]
        on_gpus = [_predicted_memory(forecast, ("gpu",)) for forecast in forecasts[len(jobs) :]]
    else:
        forecasts = rehearse(here)
        on_gpus, predicted = (
            [None] * len(jobs),
            [_predicted_memory(forecast, ("gpu",)) for forecast in forecasts],
        )
    stops = []
    for number, job in enumerate(jobs):
        parameters, stage, settings = experiment.parameters, job.mode.stage, read_settings(here[number])
        stop = Stop(
            label=job.mode.label,
            stage=stage,
            run=job.run.root.name,
            ranks=job.ranks,
            predicted=predicted[number],
            on_gpus=on_gpus[number],
            formula=model_states(parameters, stage, settings.groups.world_size, settings.per_parameter),
            sent=sent_by(job.ranks[0].calls, settings.groups.world_size),
            textbook=paper_volume(parameters, stage, settings.groups.world_size, settings.item),
        )
        stops.append(stop)
    reasons = [_why_not(forecast) for forecast in forecasts if not _is_rehearsed(forecast)]
    return Tour(experiment, accelerator, tuple(stops), reasons[0] if reasons else None)


def _workload(experiment: Experiment, job: FinishedJob, accelerator: str) -> Workload:
    model = {
        "model_type": LINEAR_LAYERS,
        "architectures": ["LinearLayers"],
        "num_layers": experiment.layers,
        "width": experiment.width,
    }
    return Workload(
        model=model,
        ds_config=job.run.config,
        world_size=experiment.world_size,
        ranks_per_host=experiment.world_size,
        seq_len=1,
        load_dtype="fp32",
        zero_init=job.mode.stage == 3,
        accelerator="cpu" if accelerator == "cpu" else "cuda",
        save=False,
        resume=False,
    )


KINDS: Final = {"all_reduce": "all-reduce", "reduce_scatter": "reduce-scatter", "all_gather": "all-gather"}
"""How the name of an operation begins → the kind of collective."""


def sent_by(calls: Sequence[LoggedCall], world_size: int) -> dict[str, float]:
    """Add up what a rank sends in a ring, by kind of collective."""
    sent: dict[str, float] = {}
    for call in calls:
        kind = next((KINDS[start] for start in KINDS if call.op.startswith(start)), "other")
        sent[kind] = sent.get(kind, 0.0) + call.calls * ring_bytes(kind, call.bytes, world_size)
    return sent


def _is_rehearsed(forecast: Rehearsed) -> TypeGuard[Forecast]:
    return isinstance(forecast, Forecast) and forecast.method == "rehearsal" and forecast.late_error is None


def _why_not(forecast: Rehearsed) -> str | None:
    if isinstance(forecast, Forecast):
        return forecast.late_error or forecast.why_not_rehearsed
    return forecast.message


def _predicted_memory(forecast: Rehearsed, pools: Sequence[Pool]) -> PredictedMemory | None:
    if not _is_rehearsed(forecast):
        return None
    phases, most = [], 0
    for phase in forecast.phases:
        end, peak = (sum(held.get(pool, 0) for pool in pools) for held in (phase.end, phase.peak))
        most = max(most, peak)
        if name := _REHEARSED.get(phase.name):
            phases.append(PhaseMemory(name, end, peak))
    parts: dict[str, int] = {}
    for pool in pools:
        parts |= forecast.parts.get(pool, {})
    host = 0
    if pools != HOST_POOLS:
        host = sum(map(forecast.peak, HOST_POOLS))
    return PredictedMemory(tuple(phases), most, parts, host)
