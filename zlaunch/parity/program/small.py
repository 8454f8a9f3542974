"""The small model of a trial and its data, the same in every process."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import transformers

from zlaunch.estimate.rehearsal import model as models
from zlaunch.estimate.rehearsal.inputs import ModelInputs, inputs_of
from zlaunch.estimate.rehearsal.model import base_of
from zlaunch.estimate.rehearsal.training import Groups, parameter_groups
from zlaunch.estimate.workload import Workload
from zlaunch.job.trainer_releases import is_before
from zlaunch.parity.small_model import deepest, with_depth
from zlaunch.parity.trial import Trial

_NOISE = 0.02
"""Added to all weights, so that none is 0 as many biases and adapters are at first."""
_FEWEST_LAYERS = 2


_shallow: dict[str, Mapping[str, Any]] = {}
"""A model's config → the same with few layers: trials of a program often have one model."""


def shallow(workload: Workload) -> Workload:
    """Keep the first layers that have every kind of module; the model is built on no device to find them.

    So its code is imported before any fork.
    """
    key = json.dumps(workload.model, sort_keys=True)
    if key not in _shallow:
        _shallow[key] = _shallower_config(workload)
    return replace(workload, model=_shallow[key])


def _shallower_config(workload: Workload) -> Mapping[str, Any]:
    kinds = _kinds(workload, workload.model)
    for fewer in range(_FEWEST_LAYERS, deepest(workload.model)):
        cut = with_depth(workload.model, fewer)
        try:
            if _kinds(workload, cut) >= kinds:
                return cut
        except Exception:  # noqa: BLE001, S112 - this architecture needs more layers
            continue
    return workload.model


def _kinds(workload: Workload, config: Mapping[str, Any]) -> set[tuple[str, str, tuple[int, ...]]]:
    """Return the kinds of modules: their names without numbers, classes, and the shapes of their weights."""
    bare = replace(workload, model=config, lora=None, frozen=None, activation_checkpointing=False)
    read = models.read_config(bare)
    with torch.device("meta"):
        built = models.build(bare, read, models.choose_class(read, None))
    kinds = set()
    for name, module in built.named_modules():
        shapes = tuple(size for weight in module.parameters(recurse=False) for size in weight.shape)
        kinds.add((re.sub(r"\d+", "#", name), type(module).__name__, shapes))
    return kinds


class SmallModel:
    """The model, its inputs, and the names of its trained parameters."""

    def __init__(self, trial: Trial, dtype: torch.dtype) -> None:
        """Build the model in fp32 with weights that have a value in `dtype`, the wanted precision."""
        self._trial = trial
        torch.manual_seed(trial.seed)
        config = models.read_config(trial.workload)
        chosen = models.choose_class(config, None)
        self.module = models.build(trial.workload, config, chosen)
        if is_before(transformers.__version__, "5.0"):  # a rehearsal does without
            base_of(self.module).init_weights()
        self.inputs: ModelInputs = inputs_of(trial.workload, self.module, config)
        self._vocabulary = getattr(config.get_text_config(), "vocab_size", None) or 2
        self._labels = getattr(config, "num_labels", 2) or 2
        self._tokens = (trial.workload.ds_config["train_micro_batch_size_per_gpu"], trial.workload.seq_len)
        generator = torch.Generator().manual_seed(trial.seed)
        with torch.no_grad():
            for weight in self.module.parameters():
                weight.add_(_NOISE * torch.randn(weight.shape, generator=generator))
                weight.copy_(weight.to(dtype))
        for module in self.module.modules():
            if isinstance(module, torch.nn.modules.dropout._DropoutNd):
                module.p = 0.0

    @property
    def is_text(self) -> bool:
        """Whether it takes tokens alone."""
        name: str = base_of(self.module).main_input_name
        return name == "input_ids"

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """Return the trained parameters by their names; a tied one has one name."""
        return {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}

    def groups(self) -> Groups:
        """Return the groups of an optimizer, as the Trainer makes them."""
        if not self._trial.has_groups:
            return [{"params": [*self.trained().values()], "weight_decay": self._trial.weight_decay}]
        return parameter_groups(self.module, self._trial.weight_decay)

    def batch(self, number: int, dtype: torch.dtype, *, reorder: bool = False) -> dict[str, Any]:
        """Return a micro-batch; `reorder` reverses its samples, so that sums over them have another order."""
        generator = torch.Generator().manual_seed(1 + self._trial.seed + 7919 * number)
        batch: dict[str, Any] = dict(self.inputs.flags)
        for name, empty in self.inputs.make(torch.device("cpu"), dtype).items():
            if not isinstance(empty, torch.Tensor):
                continue
            if empty.is_floating_point():
                values = torch.randn(empty.shape, generator=generator).to(dtype)
            else:
                values = torch.randint(self._most(name, empty), empty.shape, generator=generator)
            batch[name] = values.flip(0) if reorder else values
        return batch

    def _most(self, name: str, empty: torch.Tensor) -> int:
        """Return the number of values of an integer input."""
        if name in ("start_positions", "end_positions"):
            return self._tokens[1]
        if name == "next_sentence_label":
            return 2
        if name == "labels" and (empty.dim() == 1 or not self.is_text):
            return self._labels
        return max(2, self._vocabulary // 2)  # no token with a meaning of its own


def micro_batches(trial: Trial, step: int, rank: int | None = None) -> Iterator[int]:
    """Number the micro-batches of a step: of all ranks, or of one."""
    accumulated = int(trial.workload.ds_config["gradient_accumulation_steps"])
    ranks = trial.workload.world_size
    for micro in range(accumulated):
        for owner in range(ranks):
            if rank in (None, owner):
                yield (step * accumulated + micro) * ranks + owner
