"""`zlaunch plan`, as a person runs it; the rehearsals are real, the models small."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.gpu_cells import LLAMA_31_8B
from tests.asking import LLAMA
from tests.running import Result, zlaunch

pytestmark = pytest.mark.job

ON = ("--on", "2xH100-80GB", "--seq-len", "256")
TALKATIVE: dict[str, Any] = {**LLAMA, "vocab_size": 4_000_000}
"""The logits of one sequence are larger than a T4."""

LARGE: dict[str, Any] = {**LLAMA, "hidden_size": 4096, "num_hidden_layers": 12}
"""Its optimizer states are larger than a T4."""

MODELS = {"small": LLAMA, "talkative": TALKATIVE, "large": LARGE, "llama-3.1-8b": LLAMA_31_8B}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("plans")
    for name, config in MODELS.items():
        (place / name).mkdir()
        (place / name / "config.json").write_text(json.dumps(config))
    return place


@pytest.fixture(scope="module")
def planned(folder: Path) -> Result:
    words = ("small", *ON, "--global-batch", "8", "-o", "ds_config.json")
    return zlaunch("plan", *words, cwd=folder, env={"COLUMNS": "80"})


def test_what_trains_without_zero_is_planned_without_it(planned: Result) -> None:
    assert planned.status == 0, planned.err
    assert "choice    `--stage 0 --micro-batch 4`" in planned.out
    assert "batch     8 = 4 per rank x 1 accumulated x 2 ranks" in planned.out


def test_a_plan_is_an_object_with_its_ds_config(planned: Result, folder: Path) -> None:
    done = zlaunch("plan", "small", *ON, "--global-batch", "8", "--json", cwd=folder)
    told = json.loads(done.out)
    assert (told["chosen"]["options"], told["fit"]) == ("--stage 0 --micro-batch 4", "fits"), planned.err
    assert told["ds_config"] == json.loads((folder / "ds_config.json").read_text())


def test_a_plan_says_what_speaks_for_it(planned: Result) -> None:
    said = [line.split()[0] for line in planned.out.splitlines() if line and not line.startswith(" ")]
    assert {"choice", "batch", "process", "host", "each", "step"} <= set(said)
    assert [line for line in f"{planned.out}{planned.err}".splitlines() if len(line) > 80] == []


def test_the_ds_config_of_a_plan_is_valid_and_is_not_written_over(planned: Result, folder: Path) -> None:
    words = ("config", "validate", "ds_config.json", "--model", "small", "--world-size", "2")
    checked = zlaunch(*words, "--", "--bf16", "--per_device_train_batch_size", "4", cwd=folder)
    assert checked.status == 0, checked.out
    written = json.loads((folder / "ds_config.json").read_text())
    assert (written["train_micro_batch_size_per_gpu"], written["gradient_accumulation_steps"]) == (4, 1)
    again = zlaunch("plan", "small", *ON, "-o", "ds_config.json", cwd=folder)
    assert again.status == 69
    assert "ds_config.json" in again.err


@pytest.mark.full
def test_a_plan_is_found_where_only_one_sequence_at_a_time_with_checkpointing_fits(folder: Path) -> None:
    words = ("--on", "1xRTX-4090", "--lora", "16", "--seq-len", "2048", "--global-batch", "16")
    done = zlaunch("plan", "llama-3.1-8b", *words, cwd=folder)
    assert done.status == 0, done.err
    assert "--micro-batch 1`" in done.out
    assert "16 = 1 per rank x 16 accumulated x 1 rank" in done.out


def test_where_nothing_fits_there_is_no_plan(folder: Path) -> None:
    done = zlaunch("plan", "talkative", "--on", "T4", "--global-batch", "1", "-o", "none.json", cwd=folder)
    assert done.status == 65
    said = " ".join(done.err.split())
    assert "nothing fits, not even with a micro-batch of 1 and activation checkpointing; " in said
    assert "tried: 7 rehearsed" in said
    assert " --activation-checkpointing --micro-batch 1`: " in said.split("closest is `--stage ")[1]
    assert "`--nvme DIR`" in said
    assert not (folder / "none.json").exists()


def test_a_plan_that_offloads_says_what_it_needs_of_hosts_that_nobody_named(folder: Path) -> None:
    done = zlaunch("plan", "large", "--on", "T4", "--global-batch", "1", "--seq-len", "128", cwd=folder)
    assert "--offload cpu" in done.out
    said = " ".join(done.out.split())
    assert re.search(
        r"host needs \d.* GiB of host memory on each host \(not checked: `--host-memory", said
    ), done.out


def test_a_plan_needs_a_gpu_to_plan_for(folder: Path) -> None:
    done = zlaunch("plan", "small", cwd=folder, env={"DS_ACCELERATOR": "cpu"})
    assert done.status == 69
    assert "--on 8xH100-80GB" in done.err


def test_a_model_that_only_a_rehearsal_knows_is_not_planned_for(folder: Path) -> None:
    (folder / "a vit").mkdir()
    (folder / "a vit" / "config.json").write_text('{"model_type": "vit"}')
    done = zlaunch("plan", "a vit", *ON, cwd=folder)
    assert done.status == 69
    assert "`zlaunch plan` does not support this model" in done.err
    assert "`zlaunch estimate 'a vit'` may estimate it" in done.err


def test_a_place_that_cannot_be_written_is_noticed_before_anything_is_rehearsed(folder: Path) -> None:
    done = zlaunch("plan", "small", *ON, "-o", "nowhere/ds_config.json", cwd=folder)
    assert done.status == 69
    assert "`nowhere` is not a writable directory" in done.err
    assert "rehearsing" not in done.err


def test_a_batch_that_cannot_be_shared_is_refused_with_one_that_can(folder: Path) -> None:
    done = zlaunch("plan", "small", *ON, "--global-batch", "7", cwd=folder)
    assert done.status == 2
    assert "`--global-batch 8` can" in done.err


def test_a_plan_reads_no_ds_config(folder: Path) -> None:
    done = zlaunch("plan", "small", *ON, "--", "--deepspeed", "ds_config.json", cwd=folder)
    assert done.status == 2
    assert "leave out `--deepspeed`" in done.err


def test_a_stage_is_chosen_where_there_is_no_gpu_and_it_says_why(folder: Path) -> None:
    words = ("--stage", "auto", "--dry-run", "--", "--model", "small", "--from_scratch")
    done = zlaunch("train", *words, cwd=folder, env={"DS_ACCELERATOR": "cpu"})
    assert done.status == 0
    assert "causal_lm.py cannot be rehearsed" in done.err  # without a tokenizer: its model is estimated
    assert "stage   `--stage 0` is the fastest that fits: " in done.err
    assert not (folder / "runs").exists()


@pytest.mark.parametrize("size", ["-1", "0", "1" + "0" * 18])
def test_a_batch_that_no_rank_can_train_on_is_refused_before_a_search(size: str, folder: Path) -> None:
    done = zlaunch("plan", "small", *ON, "--", "--per_device_train_batch_size", size, cwd=folder)
    assert (done.status, "Traceback" in done.err) == (2, False), done.err
    assert f"no rank can train on `--per_device_train_batch_size {size}" in done.err
