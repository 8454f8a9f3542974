"""A rehearsal says, to the byte, what every phase of a real training run holds in memory."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.estimate.rehearsal.cells import CELLS, NUM_RANKS
from tests.running import ROOT
from zlaunch.estimate.forecast import RESUME, Forecast, Phase
from zlaunch.estimate.workload import Workload
from zlaunch.worker import cleanup

pytestmark = pytest.mark.job

ONE_OF_EACH = (
    "0",
    "1 fp32 accumulation, two micro-batches",
    "2 overlapping",
    "2 optimizer on host",
    "2 lora",
    "2 qwen2.5-vl, two images",
    "3 zero.Init, both on host, checkpointing, two micro-batches",
    "3 zero.Init, both on NVMe",
    "3 mixtral, zero.Init",
    "3 zero.Init, hpZ, two micro-batches",
    "2 AutoTP, two micro-batches",
    "3 zero.Init, Ulysses, checkpointing",
)
"""A cell for each mechanism, which `make test` trains."""


def marked(names: Iterable[str]) -> list[ParameterSet]:
    """Leave the other cells to `make test-all`."""
    return [pytest.param(name, marks=() if name in ONE_OF_EACH else pytest.mark.full) for name in names]


TOGETHER = 12
"""Cells that are done at once: each time the packages are imported, which takes as long as one cell."""

Levels = dict[tuple[str, str], tuple[int, int]]
"""Phase and pool → the most that was held in it, and what was held at its end; bytes."""


@dataclass(frozen=True)
class Sides:
    """What was foretold for each rank, and what it came to."""

    real: list[dict[str, Any]]
    foretold: list[Forecast]


@pytest.fixture(scope="module")
def sides_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Sides]:
    """Do the chosen cells in groups, each when the first of its cells is asked for."""
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    asked = {item.callspec.params["name"] for item in functions if item.path == request.path}
    chosen = [name for name in CELLS if name in asked]

    @cache
    def group(number: int) -> dict[str, Sides]:
        names = chosen[number * TOGETHER : (number + 1) * TOGETHER]
        return both_sides(names, tmp_path_factory.mktemp("answers"))

    return lambda name: group(chosen.index(name) // TOGETHER)[name]


def both_sides(names: Sequence[str], answers: Path) -> dict[str, Sides]:
    """Train cells for real, and rehearse them."""
    from tests.estimate.rehearsing import rehearse

    cells = [CELLS[name] for name in names]
    train(cells, answers)
    forecasts = iter(
        rehearse([Workload(**fields, rank=rank) for fields in cells for rank in range(NUM_RANKS)])
    )
    return {
        name: Sides(
            [json.loads((answers / f"{number}.{rank}.json").read_text()) for rank in range(NUM_RANKS)],
            [next(forecasts) for _ in range(NUM_RANKS)],
        )
        for number, name in enumerate(names)
    }


def train(workloads: list[dict[str, Any]], answers: Path) -> None:
    """Start the ranks, and wait until all have trained everything."""
    (answers / "workloads.json").write_text(json.dumps(workloads, default=asdict))
    ranks = [subprocess.Popen(argv(answers), cwd=ROOT, env=environment(rank)) for rank in range(NUM_RANKS)]
    try:
        assert [rank.wait() for rank in ranks] == [0] * NUM_RANKS
    finally:
        for rank in ranks:
            rank.kill()
        cleanup.delete((), (cleanup.buffer_of(rank, environment(rank)) for rank in range(NUM_RANKS)))


def argv(answers: Path) -> list[str]:
    program = [sys.executable, "-m", "tests.estimate.rehearsal.real_ranks"]
    return [*program, str(answers / "workloads.json"), str(answers)]


def environment(rank: int) -> dict[str, str]:
    """Make the environment of a rank, which imports everything: only the rehearsal puts imports off."""
    here = {"RANK": str(rank), "LOCAL_RANK": str(rank), "ZLAUNCH_TESTS_EXEC": "1"}
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"), str(NUM_RANKS))
    return {**os.environ, **here, **sizes, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def trained(name: str, sides_of: Callable[[str], Sides], request: pytest.FixtureRequest) -> Sides:
    """Find the two sides of a cell; some cells need what a machine may not have."""
    if "NVMe" in name:
        request.getfixturevalue("libaio")
    sides = sides_of(name)
    answers = [part for answer in sides.real for part in (answer, answer.get("resumed", {}))]
    failures = [answer["failure"] for answer in answers if "failure" in answer]
    assert not failures, failures[0]
    return sides


def measured(answer: dict[str, Any]) -> Levels:
    """Tell tensors, page-locked memory and files apart; files on NVMe never shrink."""
    levels: Levels = {}
    for name, level in answer["tensors"].items():
        locked, on_nvme = answer["locked"][name], answer["files"][name]
        levels[name, "pageable"] = (level["peak"], level["end"])
        levels[name, "pinned"] = (locked["peak"], locked["end"])
        levels[name, "nvme"] = (on_nvme, on_nvme)
    return levels


def foretold(forecast: Forecast) -> Levels:
    """All of a rank's tensors are on the host."""
    assert forecast.why_not_rehearsed is None
    assert forecast.late_error is None
    assert not {"gpu", "reserved", "shm"}.intersection(*(phase.peak for phase in forecast.phases))
    return levels(forecast.phases)


def levels(phases: Sequence[Phase]) -> Levels:
    return {
        (phase.name, pool): (phase.peak.get(pool, 0), phase.end.get(pool, 0))
        for phase in phases
        for pool in ("pageable", "pinned", "nvme")
    }


def resumed(forecast: Forecast) -> Levels:
    """Until its checkpoint is loaded, a process does what one does that begins anew."""
    resume = forecast.resume
    assert resume is not None
    assert (resume.error, resume.why_not_rehearsed) == (None, None)
    assert resume.phase is not None
    assert resume.phase.name == RESUME
    return levels([*forecast.phases[:2], resume.phase])


def table(rank: int, real: Levels, rehearsed: Levels) -> Iterator[str]:
    """Show both sides of a rank, and how far the rehearsal is off."""
    yield f"rank {rank}{'peak':>29}{'rehearsed':>12}{'off':>11}{'end':>12}{'rehearsed':>12}{'off':>11}"
    for place, levels in real.items():
        said = rehearsed.get(place, (0, 0))
        if any((*levels, *said)):
            yield f"{' '.join(place):23}" + "".join(
                f"{truth:12}{told:12}{told - truth:+11}" for truth, told in zip(levels, said, strict=True)
            )


@pytest.mark.parametrize("name", marked(CELLS))
def test_a_rehearsal_says_to_the_byte_what_each_phase_of_real_training_holds(
    name: str, trained: Sides
) -> None:
    real = [measured(answer) for answer in trained.real]
    rehearsed = [foretold(forecast) for forecast in trained.foretold]
    shown = "\n".join(line for rank in range(NUM_RANKS) for line in table(rank, real[rank], rehearsed[rank]))
    assert rehearsed == real, f"{name}\n{shown}"


SAVED = [name for name, fields in CELLS.items() if fields["save"]]


@pytest.mark.parametrize("name", marked(SAVED))
def test_a_rehearsal_says_to_the_byte_what_a_real_process_holds_that_resumes(
    name: str, trained: Sides
) -> None:
    real = [measured(answer["resumed"]) for answer in trained.real]
    rehearsed = [resumed(forecast) for forecast in trained.foretold]
    shown = "\n".join(line for rank in range(NUM_RANKS) for line in table(rank, real[rank], rehearsed[rank]))
    assert rehearsed == real, f"{name}\n{shown}"


@pytest.mark.parametrize("name", marked(CELLS))
def test_a_rehearsal_names_the_optimizer_and_counts_the_parameters(name: str, trained: Sides) -> None:
    real = [(answer["optimizer"], answer["parameters"]) for answer in trained.real]
    assert [(said.optimizer, said.parameters) for said in trained.foretold] == real
