"""The memory forecast of a job: the use of each pool in each phase of a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import chain
from typing import Final, Literal

from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.probe import cuda_of_torch
from zlaunch.rundir.record import ForecastRecord

PHASES = ("load", "initialize", "forward", "backward", "step", "second step", "save")
"""`forward`, `backward` and `step` are those of the first step; the second has all three."""
STATES: Final = ("parameters", "master weights", "optimizer states", "gradients")
"""Parts that ZeRO partitions or offloads."""
ACTIVATIONS: Final = ("activations", "logits")
"""Parts that depend on the size of a micro-batch, and that no stage partitions."""
EVALUATION = "evaluation"
"""The phase before `save` of a program that evaluates."""
RESUME = "resume"
"""The phase after `initialize` of a run that resumes from a checkpoint."""

Pool = Literal["gpu", "reserved", "pageable", "addressed", "pinned", "shm", "nvme"]
POOLS: tuple[Pool, ...] = ("gpu", "reserved", "pageable", "addressed", "pinned", "shm", "nvme")
"""Bytes of one rank: in GPU tensors; held by the caching allocator for them; in host tensors that
can be paged; the same with the ends of ZeRO's buckets that nothing writes, for which the system never
provides pages, if there are any; page-locked, as rounded by the allocator; in /dev/shm; in files on NVMe."""

HOST_POOLS: tuple[Pool, ...] = ("pageable", "pinned", "shm")
PROGRAM_BYTES: Final = 7 << 28
"""Host memory of one rank on a GPU without a tensor: three jobs on an H100 had 1.70 GiB to 1.90 GiB, with the
libraries of CUDA, which the ranks of a host share."""
CPU_PROGRAM_BYTES: Final = 9 << 26
"""The same on a CPU, measured: torch, transformers and DeepSpeed take 0.44 GiB, a dataset's reader 0.12."""
CUDA_BUILD_BYTES: Final = 1 << 29
"""More on a CPU with a torch that is built for CUDA, measured: 0.48 GiB, a third of it libraries."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: the most that each pool held during it, and what it held at its end."""

    name: str
    peak: Mapping[str, int]
    end: Mapping[str, int]
    parts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Pool → what it held at its peak in this phase, by part; the parts add up to the peak."""


@dataclass(frozen=True, slots=True)
class CountedCollective:
    """Collectives of one kind and group in a micro-step of a rehearsal."""

    kind: str
    of: str
    """`parameters`, `gradients` or `activations`."""
    ranks: int
    """Ranks in the group."""
    nbytes: int
    """The data of all calls, each summed over the ranks of the group."""
    calls: int
    is_last: bool
    """Whether it was the last micro-step, which also updates the parameters."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Loading a checkpoint in a new process, into an engine that has not trained yet."""

    phase: Phase | None
    """None if it could not be rehearsed."""
    parts: Mapping[str, Mapping[str, int]]
    """As in a forecast, for a process that ends when the checkpoint is loaded."""
    error: str | None = None
    """The error that DeepSpeed raised."""
    why_not_rehearsed: str | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """Memory of one rank of a run, in bytes."""

    method: Literal["rehearsal", "closed form"]
    phases: tuple[Phase, ...]
    parts: Mapping[str, Mapping[str, int]]
    """Pool → what it holds at its highest point, by part."""
    parameters: int
    """Elements in the model."""
    trainable: int
    optimizer: str
    """The class of the optimizer; in closed form, its name in the ds_config or for the Trainer."""
    error: float = 0.0
    """The peak may be off by a factor of `1 + error`, up or down; 0 if nothing is left out."""
    why_not_rehearsed: str | None = None
    late_error: str | None = None
    """The error that DeepSpeed raised."""
    curve: tuple[tuple[str, int, int], ...] = ()
    """Memory over two steps: phase, GPU bytes in tensors, GPU bytes reserved."""
    flops: float = 0.0
    """Floating-point operations of one step of one rank, recomputation included."""
    collectives: tuple[CountedCollective, ...] = ()
    """Those of the second step, where ranks share layers or sequences."""
    seconds: float = 0.0
    """How long the estimate took."""
    kept: bool = False
    """Whether it comes from the cache."""
    notes: tuple[str, ...] = field(default=())
    """Notes on what is not counted, or counted in an unexpected way."""
    missing: tuple[str, ...] = field(default=())
    """Inputs that are not counted, such as images: more memory is needed."""
    unsaved: tuple[str, ...] = field(default=())
    """What saves memory and is not counted: less is needed."""
    resume: Resume | None = None
    """Memory of a run that resumes from this one's checkpoint; None if not rehearsed."""

    def resumed(self) -> "Forecast":
        """Forecast the run that resumes from this one's checkpoint."""
        if self.resume is None:
            return self
        later, phases = self.resume, self.phases
        before = {pool: sum(held.values()) for pool, held in self.parts.items()}
        fuller = {
            pool: held for pool, held in later.parts.items() if sum(held.values()) > before.get(pool, 0)
        }
        if later.phase is not None:
            phases = (*phases, later.phase)
        late_error = self.late_error or later.error
        return replace(
            self, phases=phases, parts={**self.parts, **fuller}, late_error=late_error, resume=None
        )

    def peak(self, pool: Pool) -> int:
        """Most bytes of a pool in any phase, loading and saving included."""
        return max((phase.peak.get(pool, 0) for phase in self.phases), default=0)

    def bounds(self, nbytes: int) -> tuple[int, int]:
        """Lower and upper bound of an amount of this forecast."""
        return int(nbytes / (1 + self.error)), int(nbytes * (1 + self.error))

    def scaled(self, ratios: Mapping[str, float]) -> "Forecast":
        """Multiply what the named pools hold."""

        def scale(held: Mapping[str, int], pool: str | None = None) -> dict[str, int]:
            return {name: int(size * ratios.get(pool or name, 1.0)) for name, size in held.items()}

        phases = []
        for phase in self.phases:
            parts = {pool: scale(held, pool) for pool, held in phase.parts.items()}
            phases.append(Phase(phase.name, scale(phase.peak), scale(phase.end), parts))
        return replace(self, phases=tuple(phases))

    @property
    def on_gpu(self) -> bool:
        """Whether tensors are on a GPU; on a CPU they are in host memory."""
        return self.peak("gpu") > 0

    def with_pool(self, pool: Pool, nbytes: int) -> "Forecast":
        """Add a pool with a constant size, unless it is 0."""
        if not nbytes:
            return self
        added: dict[str, int] = {pool: nbytes}
        phases = (
            replace(phase, peak={**phase.peak, **added}, end={**phase.end, **added}) for phase in self.phases
        )
        return replace(self, phases=tuple(phases))

    @property
    def tensor_pool(self) -> Pool:
        """The pool of the tensors of a step: without a GPU they are in host memory."""
        if self.on_gpu:
            return "gpu"
        return "pageable"

    @property
    def states(self) -> int | None:
        """Bytes of parameters, gradients and optimizer in the first optimizer step; None if unknown."""
        steps = (phase.parts.get(self.tensor_pool) for phase in self.phases if phase.name == "step")
        held = next(steps, None)
        if held is None:
            return None
        return sum(held.get(part, 0) for part in STATES)

    def peak_phase(self, pool: Pool) -> str:
        """Phase in which a pool is fullest."""
        return max(self.phases, key=lambda phase: phase.peak.get(pool, 0)).name


def parts_at_peak(phases: Sequence[Phase]) -> dict[str, Mapping[str, int]]:
    """Return the parts of each pool in the phase in which it is fullest."""
    parts = {}
    for pool in dict.fromkeys(chain.from_iterable(phase.parts for phase in phases)):
        fullest = max(phases, key=lambda phase: phase.peak.get(pool, 0))
        if fullest.peak.get(pool):
            parts[pool] = fullest.parts[pool]
    return parts


def written_peak(forecast: ForecastRecord, pools: Iterable[str], phase: str | None = None) -> int | None:
    """Read from a `forecast.json` the highest sum of some pools, in one phase or in any.

    None if it does not have such a phase.
    """
    names = list(pools)
    phases = forecast.get("phases", ())
    peaks = [recorded.get("peak", {}) for recorded in phases if phase in (None, recorded.get("name"))]
    return max((sum(max(0, peak.get(name, 0)) for name in names) for peak in peaks), default=None)


def written_resident(forecast: ForecastRecord, on_gpu: bool) -> int | None:
    """Read from a `forecast.json` the host memory of one rank, its program included; bytes.

    Without a GPU all tensors are there. None if the forecast has no phases.
    """
    pools: Sequence[str] = HOST_POOLS
    if not on_gpu:
        pools = (*HOST_POOLS, "gpu")
    peak = written_peak(forecast, pools)
    if peak is None:
        return None
    return peak + program_bytes(on_gpu)


def program_bytes(on_gpu: bool) -> int:
    """Say how much host memory one rank has without a tensor, with the torch that is installed here."""
    if on_gpu:
        return PROGRAM_BYTES
    python = inspect_python(None)
    if "torch" not in python.missing and cuda_of_torch(python) is not None:
        return CPU_PROGRAM_BYTES + CUDA_BUILD_BYTES
    return CPU_PROGRAM_BYTES
