"""Jobs that resume from checkpoints that were made without training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.made import trainers
from tests.resume.resuming import TRAINER, findings, inputs
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.interpreter import Package
from zlaunch.launch.make_plan import make_plan

SHAPES = {"first.weight": (4, 3), "last.weight": (5,)}
WRITER = ("checkpoint.writer.type", "python")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return trainers(tmp_path / "checkpoint-3", SHAPES, 2, config={"bf16": {"enabled": True}})


def told(checkpoint: Path, torch: str = "2.13", **asked: Any) -> list[Finding]:
    """Find what is said of a job in an environment with a release of torch."""
    facts = inputs(checkpoint, TRAINER, 2, **asked)
    packages = {**facts.python.packages, "torch": Package("/venv/torch", torch)}
    python = replace(facts.python, packages=packages)
    return findings(make_plan(replace(facts, here=replace(facts.here, python=python))))


def test_a_job_with_a_checkpoint_writer_is_refused_what_torch_would_refuse_it(checkpoint: Path) -> None:
    assert told(checkpoint) == told(checkpoint, "2.5", overrides=(WRITER,)) == []
    (found,) = told(checkpoint, overrides=(WRITER,))
    assert found.severity is Severity.FAILS_LATER
    assert found.hint is not None
    assert "leave `checkpoint.writer` out" in found.hint
    variable = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1"
    assert variable in found.hint
    assert told(checkpoint, overrides=(WRITER,), env=(variable,)) == []
