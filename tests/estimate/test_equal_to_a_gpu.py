"""Rehearsals beside what an H100 held (`bench/results/gpu-check.json`, by `make gpu-check`)."""

import json
from collections.abc import Mapping

import pytest
from pydantic import TypeAdapter

from bench.gpu_device import Cuda
from tests.estimate.rehearsing import rehearse
from tests.running import ROOT
from zlaunch.estimate.workload import Workload

pytestmark = pytest.mark.job

ROWS = json.loads((ROOT / "bench" / "results" / "gpu-check.json").read_text())["rows"]
FEW = (
    "1B, stage 3, optimizer+param on cpu, 8 ranks, 1 x 2048, checkpointing",
    "0.5B, stage 2, 8 ranks, 1 x 2048, eager",
)
TENSORS, RESERVED = 0.0005, 0.003


def check(name: str) -> None:
    """Compare the tensors of each phase, and the reserved memory at the peak."""
    row = ROWS[name]
    (forecast,) = rehearse([TypeAdapter(Workload).validate_python(row["input"])])
    phases = {phase.name: phase.peak for phase in forecast.resumed().phases}
    measured = row["measured"]["phases"]
    tensors = {phase: held["allocated"] for phase, held in measured.items()}
    assert {phase: phases[phase].get("gpu", 0) for phase in tensors} == pytest.approx(tensors, rel=TENSORS)
    assert highest(phases, "reserved") == pytest.approx(highest(measured, "reserved"), rel=RESERVED)
    pinned = highest(phases, Cuda.pools["pinned"])
    assert pinned == pytest.approx(highest(measured, "pinned"), rel=TENSORS, abs=1 << 10)


def highest(phases: Mapping[str, Mapping[str, int]], quantity: str) -> int:
    return max(held.get(quantity, 0) for held in phases.values())


@pytest.mark.parametrize("name", FEW)
def test_a_rehearsal_holds_what_a_gpu_held(name: str) -> None:
    check(name)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in ROWS if name not in FEW])
def test_every_measured_rehearsal_holds_what_a_gpu_held(name: str) -> None:
    check(name)
