"""The experiment of the ZeRO tutorials: one model at each ZeRO stage, measured on ranks and predicted."""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from zlaunch.errors import Unavailable
from zlaunch.estimate.forecast import HOST_POOLS, Forecast, Phase
from zlaunch.estimate.memory.communication import paper_volume, ring_bytes
from zlaunch.estimate.memory.model_states import ModelStates, model_states
from zlaunch.estimate.memory.settings import read_settings
from zlaunch.estimate.rehearse import Rehearsed
from zlaunch.estimate.workload import LINEAR_LAYERS, Workload
from zlaunch.hosts.cluster.placement import most_slots
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import GpuChoice, JobSpec, Offload, Precision, RunOptions, Stage
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.prepare import prepare
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.run import run
from zlaunch.rundir.layout import RUNS
from zlaunch.units import plural

PROGRAM: Final = (Path(__file__).parents[1] / "recipes" / "zero_memory.py").resolve()
"""The program that is trained."""

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


TOUR: Final = (
    ZeroMode("baseline", 0),
    ZeroMode("ZeRO-1", 1),
    ZeroMode("ZeRO-2", 2),
    ZeroMode("ZeRO-3", 3),
    ZeroMode("CPU offload", 2, Offload("cpu", "none")),
)


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
        return tuple(
            PhaseMemory(of_ranks[0].name, max(one.end for one in of_ranks), max(one.peak for one in of_ranks))
            for of_ranks in zip(*(rank.phases for rank in self.ranks), strict=True)
        )

    @property
    def peak(self) -> int:
        """The most that a rank had in tensors."""
        return max(phase.peak for phase in self.measured)


@dataclass(frozen=True, slots=True)
class Tour:
    """All stops."""

    experiment: Experiment
    accelerator: str
    stops: tuple[Stop, ...]
    why_not_predicted: str | None = None


def overrides_of(experiment: Experiment, mode: ZeroMode) -> tuple[tuple[str, Any], ...]:
    """Return the ds_config keys of a job: buckets and limits as large as a layer, as in larger models.

    DeepSpeed's defaults are larger than this model: stage 3 would gather it once and keep it.
    """
    zero: dict[str, Any] = {"reduce_bucket_size": experiment.layer}
    if mode.stage == 3 and not mode.on_nvme:  # zlaunch chooses buffers for NVMe
        zero |= {
            "stage3_prefetch_bucket_size": experiment.layer,
            "stage3_max_live_parameters": 2 * experiment.layer,
            "stage3_max_reuse_distance": 0,
            "stage3_param_persistence_threshold": 10 * experiment.width,
        }
    return (
        *(("optimizer.type", "Adam"), ("optimizer.params.lr", experiment.learning_rate)),
        *(("optimizer.params.torch_adam", True), ("optimizer.params.fused", True)),  # compiles nothing
        ("train_micro_batch_size_per_gpu", experiment.micro_batch),
        ("comms_logger.enabled", True),
        *((f"zero_optimization.{key}", value) for key, value in zero.items()),
    )


@dataclass(frozen=True)
class Guide:
    """Prepares and runs the jobs of a tour."""

    experiment: Experiment
    reporter: Reporter
    nvme: Path | None = None
    """A directory on a drive, for jobs that offload to NVMe."""
    stamp: str = field(default_factory=lambda: time.strftime("%Y%m%d-%H%M%S"))
    """When it began: the runs are named after it."""

    def check(self) -> None:
        """Raise Unavailable if this machine cannot have so many ranks."""
        machine = probe_machine(os.environ, inspect_python(None))
        asked, most = self.experiment.world_size, most_slots(len(machine.gpus), machine.num_cores)
        if asked <= most:
            return
        has = (
            plural(len(machine.gpus), "GPU") if machine.gpus else f"no GPU, and {machine.num_cores} CPU cores"
        )
        on_cpu = ", or set DS_ACCELERATOR=cpu to train on the CPU" if machine.gpus else ""
        raise Unavailable(f"`--ranks {asked}`: this machine has {has}", f"`--ranks {most}`{on_cpu}")

    def prepare(self, mode: ZeroMode) -> JobFacts:
        """Check the job of one mode; raise what makes it impossible."""
        one = self.experiment
        root = (RUNS / f"{self.stamp}-tour-{mode.slug}").absolute()
        sizes = {"layers": one.layers, "width": one.width, "steps": one.steps}
        words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
        job = JobSpec(
            script=PROGRAM,
            args=ScriptArgs((*words, "--output_dir", str(root / MEASURED))),
            stage=mode.stage,
            offload=mode.offload,
            nvme_dir=self.nvme if mode.on_nvme else None,
            precision=one.precision,
            gpus=GpuChoice(count=one.world_size),
            overrides=overrides_of(one, mode),
            may_ask=False,
            wishes=RunOptions(show_ranks="none"),
        )
        return prepare(job, LaunchOptions(run_dir=root), self.reporter)

    def run(self, facts: JobFacts) -> int:
        """Run a job to its end, and return its exit status."""
        return run(facts, LaunchOptions(run_dir=facts.layout.root), self.reporter)

    def measured(self, facts: JobFacts) -> tuple[MeasuredRank, ...]:
        """Read what the ranks of a job have measured."""
        ranks = range(self.experiment.world_size)
        return tuple(_read(facts.layout.root / MEASURED / f"rank-{rank}.json") for rank in ranks)


def _read(file: Path) -> MeasuredRank:
    try:
        found = json.loads(file.read_text("utf-8"))
        device = found["device"]
        phases = [
            {"name": one["name"], "end": one["end"].get(device, 0), "peak": one["peak"].get(device, 0)}
            for one in found["phases"]
        ]
        read = {"phases": phases, "calls": found["traffic"], "losses": found["losses"]}
        rank: MeasuredRank = TypeAdapter(MeasuredRank).validate_python(read)
    except (OSError, ValueError, LookupError, TypeError, ValidationError) as error:
        raise Unavailable(f"`{file}` cannot be read: {error}") from None
    return rank


def workload_of_mode(experiment: Experiment, facts: JobFacts, *, on_gpus: bool) -> Workload:
    """Describe the first rank of a job to a rehearsal."""
    model = {
        "model_type": LINEAR_LAYERS,
        "architectures": ["LinearLayers"],
        "num_layers": experiment.layers,
        "width": experiment.width,
    }
    ds_config = make_plan(facts).values.config()
    return Workload(
        model=model,
        ds_config=ds_config,
        world_size=experiment.world_size,
        ranks_per_host=experiment.world_size,
        seq_len=1,
        load_dtype="fp32",
        zero_init=ds_config["zero_optimization"]["stage"] == 3,
        accelerator="cuda" if on_gpus else "cpu",
        save=False,
        resume=False,
    )


def take_tour(guide: Guide, rehearse: Rehearse, starts: Callable[[int, ZeroMode], None]) -> Tour | int:
    """Predict and run all jobs; return the exit status of a job that does not finish.

    `starts` is called before each job with its number, from 0.
    """
    experiment = guide.experiment
    guide.check()
    planned = [guide.prepare(mode) for mode in TOUR]
    accelerator = planned[0].machine.accelerator
    has_gpus = accelerator != "cpu"
    kinds = (True,) if has_gpus else (False, True)
    workloads = [workload_of_mode(experiment, one, on_gpus=kind) for kind in kinds for one in planned]
    found = rehearse(workloads)
    here: Sequence[Rehearsed] = found[: len(TOUR)]
    there: Sequence[Rehearsed | None] = found[len(TOUR) :] or [None] * len(TOUR)
    stops = []
    for number, mode in enumerate(TOUR):
        starts(number, mode)
        facts = guide.prepare(mode)  # again, because its port may have been taken since
        if status := guide.run(facts):
            return status
        predicted = (_predicted(here[number], has_gpus), _predicted(there[number], on_gpus=True))
        stops.append(_stop(guide, mode, facts, workloads[number], predicted))
    why = next((_why_not(one) for one in found if _predicted(one, on_gpus=True) is None), None)
    return Tour(experiment, accelerator, tuple(stops), why)


def _stop(
    guide: Guide,
    mode: ZeroMode,
    facts: JobFacts,
    workload: Workload,
    predicted: tuple[PredictedMemory | None, PredictedMemory | None],
) -> Stop:
    parameters, settings = guide.experiment.parameters, read_settings(workload)
    world_size, ranks = settings.world_size, guide.measured(facts)
    return Stop(
        label=mode.label,
        stage=mode.stage,
        run=facts.layout.root.name,
        ranks=ranks,
        predicted=predicted[0],
        on_gpus=predicted[1],
        formula=model_states(parameters, mode.stage, world_size, settings.per_parameter),
        sent=sent_by(ranks[0].calls, world_size),
        textbook=paper_volume(parameters, mode.stage, world_size, settings.item),
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


def _predicted(found: Rehearsed | None, on_gpus: bool) -> PredictedMemory | None:
    if not isinstance(found, Forecast) or found.method != "rehearsal" or found.late_error is not None:
        return None
    phases = tuple(_phase(one, on_gpus) for one in found.phases)
    parts = [found.parts.get("gpu", {})] if on_gpus else [found.parts.get(pool, {}) for pool in HOST_POOLS]
    return PredictedMemory(
        phases=tuple(replace(one, name=_REHEARSED[one.name]) for one in phases if one.name in _REHEARSED),
        peak=max(one.peak for one in phases),
        parts={name: size for some in parts for name, size in some.items()},
        host=sum(found.peak(pool) for pool in HOST_POOLS) if on_gpus else 0,
    )


def _phase(phase: Phase, on_gpus: bool) -> PhaseMemory:
    pools = ("gpu",) if on_gpus else HOST_POOLS
    end, peak = (sum(held.get(pool, 0) for pool in pools) for held in (phase.end, phase.peak))
    return PhaseMemory(phase.name, end, peak)


def _why_not(found: Rehearsed | None) -> str | None:
    if isinstance(found, Forecast):
        return found.late_error or found.why_not_rehearsed
    return None if found is None else found.message


def differences(stop: Stop) -> Iterator[float]:
    """Yield how far each measured amount is from the predicted one, as a fraction of it."""
    if stop.predicted is None:
        return
    ends = {phase.name: phase.end for phase in stop.measured}
    for phase in stop.predicted.phases:
        yield ends[phase.name] / phase.end - 1
    yield stop.peak / stop.predicted.peak - 1
