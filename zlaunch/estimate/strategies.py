"""The ladder: every stage and offload that a job can be put on, fastest first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected, is_fit
from zlaunch.job.spec import Offload, Stage

ANY_NVME: Final = Path("/local_nvme")
"""For a question about memory alone; nothing is written there."""

SAME_SPEED: Final = 1.05
"""Two step times this close are one: no roofline tells them apart."""

SHORTEST: Final = 0.01
"""Steps of fewer seconds are as fast as each other: launching kernels takes longer than they do."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to run a job."""

    stage: Stage
    offload: Offload
    where: str
    """What is offloaded, in a table."""

    @property
    def on_nvme(self) -> bool:
        """Whether it needs a drive."""
        return "nvme" in (self.offload.optimizer, self.offload.param)

    @property
    def words(self) -> str:
        """Say what to type for it."""
        parts = (("optimizer", self.offload.optimizer), ("param", self.offload.param))
        moved = [f"{part}:{device}" for part, device in parts if device not in (None, "none")]
        if not moved:
            return f"--stage {self.stage}"
        same = {device for _, device in parts}
        where = str(self.offload.optimizer) if len(same) == 1 or self.stage < 3 else ",".join(moved)
        return f"--stage {self.stage} --offload {where}" + (" --nvme DIR" if "nvme" in same else "")


_NONE: Final = Offload("none", "none")

STRATEGIES: Final = (
    Strategy(0, _NONE, "-"),
    Strategy(1, _NONE, "-"),
    Strategy(2, _NONE, "-"),
    Strategy(3, _NONE, "-"),
    Strategy(2, Offload("cpu", "none"), "CPU optimizer"),
    Strategy(3, Offload("cpu", "none"), "CPU optimizer"),
    Strategy(3, Offload("cpu", "cpu"), "CPU all"),
    Strategy(3, Offload("nvme", "nvme"), "NVMe all"),
)
"""In the order in which to try them: what trains without ZeRO shall not use it, what trains with
stage 2 shall not use stage 3, and offloading comes last."""


def within_reach(question: EstimateQuery) -> tuple[Strategy, ...]:
    """Name the rungs that a job can really be started on: without a directory, none on NVMe."""
    return tuple(rung for rung in STRATEGIES if question.job.nvme_dir is not None or not rung.on_nvme)


def apply_strategy(question: EstimateQuery, rung: Strategy) -> EstimateQuery:
    """Put a job on a rung."""
    job = replace(
        question.job,
        stage=rung.stage,
        offload=None if rung.offload == _NONE and question.given.base is None else rung.offload,
        nvme_dir=(question.job.nvme_dir or ANY_NVME) if rung.on_nvme else None,
    )
    return replace(question, job=job)


def best(fitting: Sequence[int], seconds: Mapping[int, float]) -> int | None:
    """Choose the fastest of the rungs that fit; of those as fast as each other, the lowest."""
    if not fitting:
        return None
    if not all(number in seconds for number in fitting):
        return fitting[0]
    fastest = min(seconds[number] for number in fitting)
    return next(number for number in fitting if is_as_fast(seconds[number], fastest))


def is_as_fast(seconds: float, fastest: float) -> bool:
    """Whether a step takes as long as the fastest, as far as anybody can tell."""
    return seconds <= max(fastest * SAME_SPEED, SHORTEST)


def fastest_that_fits(answers: Sequence[Estimate | Rejected]) -> int | None:
    """Choose among answered rungs the fastest that fits for sure."""
    fitting = {number: one for number, one in enumerate(answers) if isinstance(one, Estimate) and is_fit(one)}
    seconds = {number: one.seconds for number, one in fitting.items() if one.seconds is not None}
    return best(list(fitting), seconds)
