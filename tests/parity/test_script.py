"""`zlaunch check SCRIPT` on the command line."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT, zlaunch
from zlaunch.cli import program
from zlaunch.errors import WrongUsage

LOOP = ROOT / "tests" / "parity" / "plain_loop.py"
ALL = {"0.weight", "0.bias", "3.weight", "3.bias"}
IN_FP32 = ("--precision", "fp32")


def check(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    options, _, args = " ".join(words).partition(" -- ")
    command = ("check", str(LOOP), "--json", *options.split(), "--", *args.split())
    done = zlaunch(*command, cwd=folder, env={"PYTHONPATH": str(ROOT)})
    assert done.out, done.err
    return done.status, json.loads(done.out)


def wrong(found: dict[str, Any], quantity: str) -> set[str]:
    differing = [item["distance"] for item in found["verdict"]["differing"]]
    return {distance["parameter"] for distance in differing if distance["quantity"] == quantity}


@pytest.mark.job
def test_a_plain_loop_with_dropout_trains_the_same_and_leaves_nothing(tmp_path: Path) -> None:
    status, found = check(tmp_path, "--stage 3 --precision bf16 --set gradient_accumulation_steps=2")
    assert (status, found["verdict"]["differing"]) == (0, [])
    assert {*found["verdict"]["largest"]} == {
        *("output", "gradient norm", "gradient", "momentum", "update", "weights"),
    }
    assert list(tmp_path.iterdir()) == []


@pytest.mark.job
@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "defect", "quantity", "names"),
    [
        ("--stage 2", "scale_factor", "gradient", ALL),
        (
            "--stage 2 --set zero_optimization.reduce_bucket_size=300",
            "dropped_bucket",
            "gradient",
            {"0.weight"},
        ),
        ("--stage 1", "stale_weights", "weights", ALL),
        ("--stage 2 --set gradient_clipping=0.01", "unsynchronised_clipping", "momentum", ALL),
    ],
)
def test_a_defect_in_the_engine_of_a_script_is_caught_with_the_parameters_that_are_wrong(
    tmp_path: Path, options: str, defect: str, quantity: str, names: set[str]
) -> None:
    status, found = check(tmp_path, options, *IN_FP32, "-- --defect", defect)
    assert (status, wrong(found, quantity)) == (65, names)


def shape(text: str) -> list[str]:
    """Leave out the differences themselves: the model begins with other weights each time."""
    return [re.sub(r" +\d\.\de.*$", "", line) for line in text.strip().splitlines()]


@pytest.mark.job
@pytest.mark.full
def test_the_example_of_the_docs_prints_what_they_show(tmp_path: Path) -> None:
    command = "zlaunch check own_loop --stage 3 --precision bf16"
    page = (ROOT / "docs" / "parity.md").read_text("utf-8")
    block = page.partition(f"    $ {command}\n")[2].partition("\n\nThe numbers are")[0]
    done = zlaunch(*command.split()[1:], cwd=tmp_path)
    assert shape(done.out) == shape(textwrap.dedent(block))


@pytest.mark.job
@pytest.mark.full
def test_backward_passes_beyond_those_of_a_step_are_lost(tmp_path: Path) -> None:
    status, found = check(tmp_path, "--stage 2", *IN_FP32, "-- --backwards 2")
    assert (status, wrong(found, "gradient")) == (65, ALL)


@pytest.mark.job
@pytest.mark.full
def test_a_job_that_trains_otherwise_does_not_start(tmp_path: Path) -> None:
    words = ("--check", "--stage", "2", *IN_FP32, "--", "--defect", "scale_factor")
    done = zlaunch("train", str(LOOP), *words, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.status == 65
    assert "differs from plain torch by more than rounding" in done.err
    assert done.err.endswith("hint: leave out `--check` to start it all the same\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.job
@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("nan", "its engine skipped 4 steps: gradients were not finite"),
        ("killed", "rank 1 was killed, as when memory runs out"),
        ("left", "it exited with 3 ("),
    ],
)
def test_a_script_that_ends_before_its_steps_is_told_apart_from_one_that_differs(
    fault: str, why: str, tmp_path: Path
) -> None:
    words = ("--stage", "1", *IN_FP32, "--", "--fault", fault, "--steps", "4")
    done = zlaunch("check", str(LOOP), *words, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert (done.status, f"cannot tell here: plain_loop.py: {why}" in done.err) == (69, True), done.err


@pytest.mark.job
@pytest.mark.full
def test_a_job_of_which_nothing_can_be_told_starts_with_a_note(tmp_path: Path) -> None:
    words = ("--check", "--stage", "1", "--gpus", "2", *IN_FP32, "--", "--fault", "nan", "--steps", "1")
    done = zlaunch("train", str(LOOP), *words, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.status == 0, done.err
    assert "gradients were not finite; it starts without a check" in " ".join(done.err.split())


@pytest.mark.job
@pytest.mark.full
def test_a_known_defect_stands_below_what_differs(tmp_path: Path) -> None:
    small = str(ROOT / "recipes" / "small_llama")
    done = zlaunch("check", small, "--stage", "0", "--precision", "fp16", "--steps", "1", cwd=tmp_path)
    assert (done.status, done.out.partition(" ")[0]) == (65, "differs")
    assert done.err.count("[known-defect]") == 2


def test_a_script_without_deepspeed_cannot_be_checked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    done = zlaunch("check", "train.py", cwd=tmp_path)
    assert done.status == 69
    assert "train.py does not use DeepSpeed, so there is no ZeRO job to check" in done.err


def test_options_for_the_training_of_a_model_are_refused_beside_a_script(tmp_path: Path) -> None:
    done = zlaunch("check", str(LOOP), "--lora", "8", cwd=tmp_path)
    assert done.status == 2
    assert "`--lora`: for the training of a model" in done.err


@pytest.mark.parametrize("option", ["--matrix", "--save", "--seed 1", "--seq-len 8", "--micro-batch 2"])
def test_options_for_the_small_model_are_refused_beside_a_script(option: str) -> None:
    with pytest.raises(WrongUsage) as raised:
        program(["check", str(LOOP), *option.split()], prog_name="zlaunch", standalone_mode=False)
    assert f"`{option.split(maxsplit=1)[0]}` is about the small model of a check" in raised.value.message
