"""What the watch hooks into is there, in the packages that are installed."""

import functools
import importlib
import inspect

import pytest

from tests.each import each
from zlaunch.rundir import phases
from zlaunch.worker.hook.instrument import WRAPPED

NAMED = [(module, path) for module, paths in WRAPPED.items() for path in paths]


@pytest.mark.parametrize("module", WRAPPED)
def test_every_watched_module_is_there(module: str) -> None:
    assert importlib.import_module(module)


@each(("module", "path"), NAMED)
def test_every_watched_function_is_there_and_is_its_classes_own(module: str, path: str) -> None:
    *holder, name = path.split(".")
    owner = functools.reduce(getattr, holder, importlib.import_module(module))
    assert callable(getattr(owner, name))
    assert name in vars(owner)


def test_every_phase_is_known() -> None:
    assert {phase for paths in WRAPPED.values() for phase in paths.values()} <= set(phases.ALL)


def test_trainers_take_the_callbacks_that_the_watch_adds_to() -> None:
    from transformers import trainer
    from transformers.trainer_callback import TrainerCallback

    assert isinstance(trainer.DEFAULT_CALLBACKS, list)
    assert "DEFAULT_CALLBACKS" in trainer.Trainer.__init__.__code__.co_names
    told = {name for name, _ in inspect.getmembers(TrainerCallback, inspect.isfunction)}
    assert {"on_train_begin", "on_step_end", "on_log", "on_train_end"} <= told


def test_an_engine_says_what_the_watch_reads() -> None:
    from deepspeed.runtime.engine import DeepSpeedEngine

    source = inspect.getsource(DeepSpeedEngine)
    assert "self.global_steps += 1" in source
    assert "self.skipped_steps += 1" in source
    assert callable(DeepSpeedEngine.fp16_enabled)


def test_a_traceback_names_the_linear_function_of_zero_init() -> None:
    from deepspeed.runtime.zero import linear, partition_parameters

    assert "LinearFunctionForZeroStage3.apply" in inspect.getsource(linear.zero3_linear_wrap)
    assert "zero3_linear_wrap" in inspect.getsource(partition_parameters)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("deepspeed.runtime.zero.stage_1_and_2", "param_dtype = self.bit16_groups[i][0].dtype"),
        ("deepspeed.runtime.zero.utils", "assert len(set(t.dtype for t in tensors)) == 1"),
        ("deepspeed.runtime.engine", "Direct calls to tensor.backward() are not supported"),
        ("deepspeed.runtime.engine", "def _broadcast_model"),
        ("transformers.integrations.deepspeed", "ZeRO inference only makes sense with ZeRO Stage 3"),
    ],
)
def test_the_source_still_has_the_words_of_an_ending(module: str, words: str) -> None:
    assert words in inspect.getsource(importlib.import_module(module))


def test_a_tensor_without_dimensions_cannot_be_viewed_as_bytes() -> None:
    import torch

    with pytest.raises(RuntimeError, match=r"self\.dim\(\) cannot be 0 to view"):
        torch.tensor(1.0).view(torch.uint8)
