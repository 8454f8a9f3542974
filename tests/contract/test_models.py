"""What is said about models without importing transformers, held against transformers."""

import dataclasses
import functools
from typing import Any

import pytest

from tests.each import each
from zlaunch.config.resolve.trainer_optimizer import OPTIMIZER_PACKAGES, missing_package, unknown_choices
from zlaunch.errors import Severity
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.transformers_source import (
    model_types,
    trainer_arguments,
    trainer_optimizers,
    trainer_schedules,
)
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model_checks import PADDED, TABLED
from zlaunch.job.trainer_args import read_arguments

SMALL: dict[str, Any] = {
    "hidden_size": 32, "n_embd": 32, "d_model": 32, "dim": 32, "embedding_size": 32, "head_dim": 8,
    "num_hidden_layers": 1, "n_layer": 1, "n_layers": 1, "num_layers": 1, "encoder_layers": 1,
    "decoder_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "n_head": 4, "n_heads": 4,
    "num_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "rotary_dim": 4,
    "attention_window": 4, "intermediate_size": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "ffn_dim": 64, "hidden_dim": 64, "word_embed_proj_dim": 32, "vocab_size": 50, "pad_token_id": 1,
    "bos_token_id": 2, "eos_token_id": 3, "max_position_embeddings": 16, "n_positions": 16,
}  # fmt: skip
SPECIAL: dict[str, dict[str, Any]] = {"gpt_neo": {"attention_types": [[["global"], 1]]}}


@functools.cache
def small_model(kind: str) -> Any:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(kind, **SMALL, **SPECIAL.get(kind, {}))
    return AutoModel.from_config(config).eval()


def takes(kind: str, length: int) -> bool:
    """Run a small model of a kind on a sequence of this length."""
    import torch

    model = small_model(kind)
    tokens = torch.randint(5, 40, (1, length))
    both = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
    try:
        with torch.no_grad():
            model(input_ids=tokens, **both)
    except (IndexError, RuntimeError):
        return False
    return True


def test_every_kind_of_model_that_transformers_knows_is_known() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert set(CONFIG_MAPPING_NAMES) - model_types(inspect_python(None)) == set()


def test_every_optimizer_of_the_trainer_is_known() -> None:
    from transformers.training_args import OptimizerNames

    assert set(trainer_optimizers(inspect_python(None))) == {one.value for one in OptimizerNames}


def test_an_optimizer_needs_a_package_exactly_where_the_trainer_cannot_create_it_without() -> None:
    import torch
    from transformers import Trainer, TrainingArguments
    from transformers.training_args import OptimizerNames

    python, named, refused = inspect_python(None, OPTIMIZER_PACKAGES), set[str](), set[str]()
    model = torch.nn.Linear(2, 2)
    for name in (one.value for one in OptimizerNames):
        arguments, _ = read_arguments(ScriptArgs.of(["--optim", name]))
        if [*missing_package(arguments, python, Severity.FAILS_LATER)]:
            named.add(name)
        args = TrainingArguments(optim=name, optim_target_modules="all-linear", use_cpu=True)
        try:
            Trainer.get_optimizer_cls_and_kwargs(args, model)
        except (ImportError, ValueError):
            refused.add(name)
    assert named == refused


@pytest.mark.parametrize("argument", ["optim", "lr_scheduler_type"])
def test_a_name_that_the_trainer_does_not_know_is_found(argument: str) -> None:
    python = inspect_python(None)
    arguments, _ = read_arguments(ScriptArgs.of([f"--{argument}", "nosuch"]))
    assert [finding.where for finding in unknown_choices(arguments, python)] == [f"--{argument}"]


@each("kind", sorted(TABLED))
def test_a_table_of_positions_ends_where_it_says(kind: str) -> None:
    assert (takes(kind, 16), takes(kind, 17)) == (True, False)


@pytest.mark.parametrize("kind", sorted(PADDED))
def test_a_padded_table_ends_before_it_says(kind: str) -> None:
    assert (takes(kind, 14), takes(kind, 15)) == (True, False)


@pytest.mark.parametrize(
    "kind", ["llama", "mistral", "qwen2", "gemma2", "gpt_neox", "t5", "bloom", "mixtral"]
)
def test_other_positions_go_on(kind: str) -> None:
    assert takes(kind, 40)


def test_every_schedule_of_the_trainer_is_known() -> None:
    from transformers.trainer_utils import SchedulerType

    assert set(trainer_schedules(inspect_python(None))) == {one.value for one in SchedulerType}


def test_the_arguments_of_the_trainer_are_read_without_importing_it() -> None:
    from transformers import Seq2SeqTrainingArguments

    read = trainer_arguments(inspect_python(None))
    assert read.keys() >= {field.name for field in dataclasses.fields(Seq2SeqTrainingArguments)}
