"""The files in `configs/`: what zlaunch writes, what it accepts, and what DeepSpeed accepts of them."""

from pathlib import Path

from tests.contract.deepspeed_side import deepspeed_reads
from tests.each import each
from tests.making import WRITTEN
from zlaunch.config.resolve.autos import ResolvedAutos, resolve_autos
from zlaunch.config.resolve.compose import preset, to_json
from zlaunch.config.resolve.values import Values
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.read import read
from zlaunch.job.model import ModelConfig
from zlaunch.job.spec import Offload, Stage, parse_offload
from zlaunch.job.trainer_args import TrainerArgs

CONFIGS = Path(__file__).parents[2] / "configs"

WRITTEN_FOR: dict[str, tuple[Stage, Offload, Path | None]] = {
    "ddp": (0, Offload(), None),
    "zero1": (1, Offload(), None),
    "zero2": (2, Offload(), None),
    "zero2_cpu": (2, parse_offload("cpu"), None),
    "zero3": (3, Offload(), None),
    "zero3_cpu": (3, parse_offload("cpu"), None),
    "zero3_nvme": (3, parse_offload("nvme"), Path("/local_nvme")),
}

PRESET = each("name", WRITTEN_FOR)
RANKS = each("world_size", [1, 2, 8])


def resolved(name: str, world_size: int) -> ResolvedAutos:
    model = ModelConfig({"hidden_size": 256}, "", "config.json")
    known = Context(world_size, TrainerArgs(), model)
    return resolve_autos(Values.of(read(CONFIGS / f"{name}.json").value, WRITTEN), known)


def test_every_file_is_a_preset() -> None:
    assert {file.stem for file in CONFIGS.iterdir()} == {*WRITTEN_FOR}


@PRESET
def test_a_file_is_what_config_write_writes(name: str) -> None:
    stage, offload, nvme_dir = WRITTEN_FOR[name]
    assert (CONFIGS / f"{name}.json").read_bytes() == to_json(preset(stage, offload, nvme_dir)).encode()


@PRESET
def test_a_file_has_no_mistakes(name: str) -> None:
    assert validate_document(read(CONFIGS / f"{name}.json")) == []


@PRESET
def test_nothing_of_a_file_is_left_open_when_the_model_is_known(name: str) -> None:
    assert resolved(name, 2).left == {}


@PRESET
@RANKS
def test_deepspeed_accepts_a_file_once_it_is_resolved(name: str, world_size: int) -> None:
    config = resolved(name, world_size).values.config()
    assert deepspeed_reads(config, world_size).train_batch_size == 8 * world_size


@PRESET
def test_deepspeed_sees_the_stage_of_a_file(name: str) -> None:
    stage, _, _ = WRITTEN_FOR[name]
    assert deepspeed_reads(resolved(name, 1).values.config()).zero_optimization_stage == stage
