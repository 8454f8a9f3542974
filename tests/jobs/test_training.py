"""Real training: two ranks, real DeepSpeed, every preset. The loss falls."""

import functools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.launchers import LAUNCHERS, taken
from tests.running import ACTIVATED, CONFIGS, RECIPE, Result, run, start, the_run, zlaunch

pytestmark = pytest.mark.job

SHORT = ["--max_steps", "10", "--logging_steps", "2", "--sequence_length", "16"]
OWN_LOOP = RECIPE.with_name("own_loop.py")
WITNESS = Path(__file__).with_name("witness.py")


def losses(text: str) -> tuple[float, float]:
    """Read the first and the last loss from what the Trainer prints."""
    told = re.findall(r"'loss': '([\d.]+)'", text)
    assert len(told) > 1, text[-2000:]
    return float(told[0]), float(told[-1])


def leaves(config: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def look_up(config: dict[str, Any], path: tuple[str, ...]) -> Any:
    for key in path:
        config = config[key]
    return config


@dataclass(frozen=True)
class Training:
    """A preset that was trained with; the witness wrote down the ds_config that DeepSpeed was given."""

    folder: Path
    env: Mapping[str, str]
    result: Result

    @property
    def run(self) -> Path:
        return the_run(self.folder)


PRESETS = ("zero1", "zero2", "zero2_cpu", "zero3_cpu", "zero3", "ddp")
"""In an order that gives each launcher a preset with and without ZeRO-3, and with and without offload."""

TRAINED = "zero1"
"""The preset that `make test` trains with; what DeepSpeed makes of the others is tested without a training."""

Train = Callable[[str, str], Training]


@pytest.fixture(scope="module")
def training(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train with a preset under a launcher, once."""

    @functools.cache
    def train(preset: str, launcher: str) -> Training:
        folder = tmp_path_factory.mktemp(preset)
        env = {"WITNESS": str(folder / "seen.json"), "RECIPE": str(RECIPE)}
        config = ["--ds-config", CONFIGS / f"{preset}.json", "--launcher", launcher]
        model = ["--model", small_model, "--from_scratch", "--learning_rate", "1e-3"]
        result = zlaunch("train", WITNESS, *config, "--", *model, *SHORT, cwd=folder, env=env)
        return Training(folder, env, result)

    return train


@pytest.mark.parametrize(
    ("preset", "launcher"),
    [
        pytest.param(preset, launcher, marks=() if preset == TRAINED else pytest.mark.full)
        for turn, preset in enumerate(PRESETS)
        for launcher in taken(LAUNCHERS, turn)
    ],
)
def test_every_preset_trains_with_exactly_the_ds_config_that_was_shown(
    preset: str, launcher: str, training: Train
) -> None:
    trained = training(preset, launcher)
    assert trained.result.status == 0, trained.result.err
    first, last = losses(trained.result.out)
    assert last < first
    shown = json.loads((trained.run / "provenance.json").read_text())["expected"]
    seen = json.loads((trained.folder / "seen.json").read_text())
    assert "auto" not in [value for _, value in leaves(shown)]
    assert {path: look_up(seen, path) for path, _ in leaves(shown)} == dict(leaves(shown))


def test_in_a_pipe_there_are_no_progress_bars_and_no_control_characters(training: Train) -> None:
    trained = training("zero1", "torchrun")
    assert b"\r" in (trained.run / "logs" / "rank-0.log").read_bytes()  # the Trainer draws bars there
    printed = (trained.result.out + trained.result.err).replace("\n", "")
    assert [line for line in trained.result.out.splitlines() if "%|" in line or "it/s]" in line] == []
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", printed)


@dataclass(frozen=True)
class Swapping:
    """A training with offload to NVMe."""

    folder: Path
    most: int
    """Bytes on the drive."""


@pytest.fixture(scope="module")
def swapping(swapped_model: Path, tmp_path_factory: pytest.TempPathFactory, libaio: None) -> Swapping:
    folder = tmp_path_factory.mktemp("swapping")
    drive = folder / "drive"
    drive.mkdir()
    preset = ["--ds-config", CONFIGS / "zero3_nvme.json", "--nvme", drive, "--save", "out", "--run-dir", "r"]
    model = ["--model", swapped_model, "--from_scratch", "--per_device_train_batch_size", "2"]
    job = start("train", *preset, "--", *model, *SHORT, cwd=folder)
    most = 0
    while job.poll() is None:
        most = max(most, bytes_in(drive))
        time.sleep(0.05)
    assert job.returncode == 0, (folder / "r" / "logs" / "rank-0.log").read_text()[-2000:]
    return Swapping(folder, most)


def test_nvme_offload_swaps_to_a_directory_of_its_own_and_cleans_it_up(swapping: Swapping) -> None:
    first, last = losses((swapping.folder / "r" / "logs" / "rank-0.log").read_text())
    assert last < first
    num_parameters = 2 * 1024 * 1024 + 2 * 1024 * 512 + 3 * 1024 * 1024
    adam_bytes_of_the_swapped_matrices = 12 * num_parameters
    assert swapping.most > adam_bytes_of_the_swapped_matrices * 0.8
    assert list((swapping.folder / "drive").iterdir()) == []


def test_the_weights_of_a_checkpoint_of_nvme_are_those_of_the_saved_model(
    swapping: Swapping, tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    checkpoint = swapping.folder / "out" / "checkpoint-10"
    result = zlaunch("checkpoint", "export", checkpoint, "exported", cwd=tmp_path)
    assert result.status == 0, result.err
    saved, ours = (
        load_file(one / "model.safetensors") for one in (swapping.folder / "out", tmp_path / "exported")
    )
    assert [name for name in saved if not saved[name].equal(ours[name])] == []


@pytest.mark.full
@pytest.mark.usefixtures("libaio")
def test_parameters_that_stay_on_nvme_are_used_again_in_the_backward_pass(
    swapped_model: Path, tmp_path: Path
) -> None:
    nowhere_else = ["--set", "zero_optimization.offload_param.max_in_cpu=0"]
    offload = ["--stage", "3", "--offload", "nvme", "--nvme", tmp_path, *nowhere_else]
    model = ["--model", swapped_model, "--from_scratch", "--per_device_train_batch_size", "2"]
    result = zlaunch("train", *offload, "--", *model, "--activation_checkpointing", *SHORT, cwd=tmp_path)
    assert result.status == 0, result.err
    first, last = losses(result.out)
    assert last < first


def bytes_in(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


@pytest.mark.full
def test_a_file_with_comments_and_derived_batch_sizes_trains(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(
        """{ // what people have
        "train_batch_size": 16, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupDecayLR", "params": {
            "total_num_steps": "auto", "warmup_num_steps": "auto", "warmup_max_lr": "auto"}},
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e7, "offload_optimizer": {"device": "cpu"}},
        }"""
    )
    result = zlaunch("train", "--ds-config", "mine.json", "--", *SHORT, cwd=tmp_path)
    assert result.status == 0, result.err
    first, last = losses(result.out)
    assert last < first
    written = json.loads((the_run(tmp_path) / "ds_config.json").read_text())
    assert written["train_micro_batch_size_per_gpu"] == 4


BARE_LAUNCHERS = (
    ["torchrun", "--standalone", "--nproc-per-node=2"],
    ["deepspeed", "--num_gpus=2"],
    ["python"],
)


@pytest.mark.full
@pytest.mark.parametrize("launcher", taken(BARE_LAUNCHERS, 0), ids=lambda argv: argv[0])
def test_the_recipe_runs_without_zlaunch(launcher: list[str], tmp_path: Path) -> None:
    import sys

    program = Path(sys.executable).with_name(launcher[0])
    config = [] if launcher == ["python"] else ["--deepspeed", CONFIGS / "zero3.json"]
    env = {**ACTIVATED, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    args = [program, *launcher[1:], RECIPE, "--use_cpu", "--bf16", *config, *SHORT]
    result = run(*args, cwd=tmp_path, env=env)
    assert result.status == 0, result.err
    first, last = losses(result.out)
    assert last < first


def own_losses(text: str) -> tuple[float, float]:
    """Read the first and the last loss that the loop of its own prints."""
    first, last = re.findall(r"^step \d+: loss ([\d.]+)$", text, re.MULTILINE)
    return float(first), float(last)


def trained_with(folder: Path, *asked: object) -> Path:
    result = zlaunch("train", OWN_LOOP, *asked, "--", "--steps", "40", cwd=folder)
    assert result.status == 0, result.err
    first, last = own_losses(result.out)
    assert last < first
    return the_run(folder)


@pytest.fixture(scope="module")
def with_a_stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a loop of its own that was told a stage."""
    return trained_with(tmp_path_factory.mktemp("own"), "--stage", "2")


def test_a_loop_of_its_own_trains_with_the_stage_that_it_is_handed(with_a_stage: Path) -> None:
    assert json.loads((with_a_stage / "ds_config.json").read_text())["zero_optimization"]["stage"] == 2
    seen = [json.loads(line) for line in (with_a_stage / "metrics.jsonl").read_text().splitlines()]
    assert seen[-1]["step"] == 40
    assert seen[-1]["loss"] > 0


def test_the_script_it_leaves_repeats_the_run_by_hand(with_a_stage: Path, tmp_path: Path) -> None:
    result = run("sh", with_a_stage / "run.sh", cwd=tmp_path)
    assert result.status == 0, result.err
    first, last = own_losses(result.out)
    assert last < first


@pytest.mark.full
def test_a_loop_of_its_own_trains_with_the_file_that_it_is_handed(tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text('{"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 16}')
    written = trained_with(tmp_path, "--ds-config", file) / "ds_config.json"
    assert json.loads(written.read_text())["zero_optimization"]["stage"] == 1
