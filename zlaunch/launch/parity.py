"""Train the same model on the same data at every ZeRO stage, and compare the losses."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from zlaunch.job.spec import Offload
from zlaunch.launch.tour import TOUR, Experiment, FinishedJob, ZeroMode

PARITY: Final = Experiment(layers=4, width=1024, steps=20, learning_rate=1e-3)
"""A model whose loss falls by a third in a few steps; its matrices are large enough for NVMe."""

MODES: Final = (
    *TOUR[:4],
    ZeroMode("ZeRO-2, CPU", 2, Offload("cpu", "none")),
    ZeroMode("ZeRO-3, CPU", 3, Offload("cpu", "cpu")),
)
NVME: Final = ZeroMode("ZeRO-3, NVMe", 3, Offload("nvme", "nvme"))

ROUNDING: Final = 1e-5
"""Relative difference of losses in fp32 that rounding explains, after some tens of steps.

The last bit of a sum, 6e-8 of it, depends on the order of its terms. ZeRO adds up gradients bucket by bucket
and their norm share by share, and training carries each difference on. In bf16 this would say little: the
losses without ZeRO differ by 1e-2 from those in fp32, and `zero.Init` draws other weights.
"""


@dataclass(frozen=True, slots=True)
class LossCurve:
    """The losses of one job, step by step: the mean of all ranks."""

    label: str
    run: str
    """The name of the run directory."""
    losses: tuple[float, ...]

    def difference(self, other: "LossCurve") -> tuple[float, int]:
        """Return the largest difference relative to the other loss, and the first step that has it."""
        pairs = zip(self.losses, other.losses, strict=True)
        off = [abs(mine - its) / abs(its) for mine, its in pairs]
        return max(off), off.index(max(off)) + 1


@dataclass(frozen=True, slots=True)
class Parity:
    """The losses of all jobs; the first is the one without ZeRO."""

    experiment: Experiment
    accelerator: str
    curves: tuple[LossCurve, ...]

    @property
    def most(self) -> float:
        """The largest relative difference of a loss to the first job's."""
        return max(curve.difference(self.curves[0])[0] for curve in self.curves)

    @property
    def agrees(self) -> bool:
        """Whether rounding explains all differences."""
        return self.most <= ROUNDING


def modes_to_compare(nvme: Path | None) -> tuple[ZeroMode, ...]:
    """List the jobs to compare; NVMe only if there is a drive."""
    return MODES if nvme is None else (*MODES, NVME)


def parity_of(experiment: Experiment, jobs: Sequence[FinishedJob]) -> Parity:
    """Compare the losses that the jobs measured."""
    curves = []
    for job in jobs:
        losses = zip(*(rank.losses for rank in job.ranks), strict=True)
        curves.append(LossCurve(job.mode.label, job.run.root.name, tuple(map(fmean, losses))))
    return Parity(experiment, jobs[0].run.job.get("accelerator", ""), tuple(curves))
