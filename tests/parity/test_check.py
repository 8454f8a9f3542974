"""`zlaunch check` on the command line."""

import json
from pathlib import Path

import pytest

from tests.running import ROOT, zlaunch

SMALL = str(ROOT / "recipes" / "small_llama")


@pytest.mark.job
def test_stage_0_in_bf16_differs_in_the_first_update(tmp_path: Path) -> None:
    """DeepSpeed steps the optimizer before the training, so that Adam corrects its bias too little."""
    words = ("--stage", "0", "--precision", "bf16", "--steps", "1", "--json")
    done = zlaunch("check", SMALL, *words, cwd=tmp_path)
    checked = json.loads(done.out)
    differing = checked["verdict"]["differing"]
    assert done.status == 65, done.err
    assert {item["distance"]["quantity"] for item in differing} == {"update"}
    assert {round(item["distance"]["ratio"], 2) for item in differing} == {0.74}


@pytest.mark.job
@pytest.mark.full
def test_the_answer_stands_in_the_first_line(tmp_path: Path) -> None:
    done = zlaunch("check", SMALL, "--stage", "3", "--grad-accum", "2", "--precision", "bf16", cwd=tmp_path)
    assert done.status == 0, done.out
    assert done.out.startswith("the same: 3 steps train like plain torch")
    assert "not checked" in done.out


def test_an_optimizer_without_a_reference_cannot_be_told(tmp_path: Path) -> None:
    done = zlaunch("check", SMALL, "--stage", "0", "--optimizer", "lamb", cwd=tmp_path)
    assert done.status == 69
    assert "cannot tell here: DeepSpeed's Lamb is a CUDA kernel" in done.err


def test_a_configuration_that_cannot_work_is_refused(tmp_path: Path) -> None:
    words = ("--set", "zero_optimization.stage=7")
    assert zlaunch("check", SMALL, *words, cwd=tmp_path).status == 65
