"""What a training script does beside the model: its optimizer, its steps, its checkpoints."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import optim

from zlaunch.memory.workload import Workload
from zlaunch.rehearsal.ledger import Ledger

_NO_DECAY = (r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)")
"""Parameters that the Trainer puts into a group without weight decay (`get_decay_parameter_names`)."""

_OPTIMIZERS: dict[str, Any] = {
    "adamw_torch_fused": lambda groups: optim.AdamW(groups, fused=True),
    "adamw_torch": optim.AdamW,
    "sgd": optim.SGD,
    "adagrad": optim.Adagrad,
    "rmsprop": optim.RMSprop,
}
"""The Trainer's `--optim` → the optimizer it makes."""


class UnknownOptimizer(Exception):
    """An `--optim` that needs a package or a kernel of its own."""


def initialize(workload: Workload, net: torch.nn.Module) -> Any:
    """Give the model to DeepSpeed as its script would; return the engine."""
    import deepspeed

    config = dict(workload.ds_config)
    if workload.optimizer is None:
        trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
        engine, *_ = deepspeed.initialize(model=net, config=config, model_parameters=trained)
        return engine
    groups = _groups(net)
    if "optimizer" in config:
        engine, *_ = deepspeed.initialize(model=net, config=config, model_parameters=groups)
        return engine
    config["zero_allow_untested_optimizer"] = True  # as accelerate does
    optimizer = _optimizer(workload, groups)
    engine, *_ = deepspeed.initialize(model=net, config=config, optimizer=optimizer)
    return engine


def _groups(net: torch.nn.Module) -> list[dict[str, Any]]:
    """Put parameters into the Trainer's two groups, with weight decay and without."""
    from transformers.trainer_pt_utils import get_parameter_names

    decayed = set(get_parameter_names(net, [torch.nn.LayerNorm], list(_NO_DECAY)))
    trained = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    halves = [[p for name, p in trained if (name in decayed) is decay] for decay in (True, False)]
    return [{"params": half, "weight_decay": 0.0} for half in halves if half]


def _optimizer(workload: Workload, groups: list[dict[str, Any]]) -> Any:
    from accelerate.utils.deepspeed import map_pytorch_optim_to_deepspeed

    make = _OPTIMIZERS.get(str(workload.optimizer))
    if make is None:
        raise UnknownOptimizer(f"the Trainer's `--optim {workload.optimizer}` cannot be rehearsed")
    optimizer = make(groups)
    offload = workload.ds_config.get("zero_optimization", {}).get("offload_optimizer") or {}
    forced = workload.ds_config.get("zero_force_ds_cpu_optimizer", True)
    if offload.get("device", "none") == "none" or not forced:
        return optimizer
    return map_pytorch_optim_to_deepspeed(optimizer)


@contextlib.contextmanager
def checkpoints(engine: Any, ledger: Ledger) -> Iterator[Path]:
    """Let an engine save and load its checkpoints without their contents."""
    plain = engine.checkpoint_engine
    with tempfile.TemporaryDirectory() as directory:
        engine.checkpoint_engine = _counting(type(plain))(ledger)
        try:
            yield Path(directory)
        finally:
            engine.checkpoint_engine = plain


def save(engine: Any, net: torch.nn.Module, directory: Path) -> None:
    """Save as the Trainer does: the weights for `from_pretrained`, then DeepSpeed's checkpoint."""
    from deepspeed.checkpoint.utils import clone_tensors_for_torch_save

    if engine.zero_optimization_partition_weights():
        if engine.zero_gather_16bit_weights_on_model_save():
            engine._zero3_consolidated_16bit_state_dict()
    else:
        clone_tensors_for_torch_save(net.state_dict())
    engine.save_checkpoint(str(directory), tag="rehearsal")
    names = engine._get_mp_rank_zero_checkpoint_names(
        load_dir=str(directory),
        tag="rehearsal",
        mp_rank=0,
        dp_world_size=engine.dp_world_size,
        bf16_mode=engine.bfloat16_enabled(),
    )
    for name in names:
        Path(name).touch()  # those of the other ranks


def resume(engine: Any, directory: Path) -> None:
    """Load what `save` saved."""
    engine.load_checkpoint(str(directory), tag="rehearsal")


def _counting(base: type) -> Any:
    """Derive a checkpoint engine that remembers shapes instead of writing tensors."""

    class Counting(base):  # type: ignore[misc]
        def __init__(self, ledger: Ledger) -> None:
            self.name = "rehearsal"
            self._ledger = ledger
            self._saved: dict[str, Any] = {}
            self._last: Any = None

        def save(self, state_dict: Any, path: str) -> None:
            """Write one storage after the other, each by way of the host."""
            storages = {t.untyped_storage()._cdata: t for t in _tensors(state_dict)}
            on_gpu = [t.untyped_storage().nbytes() for t in storages.values() if t.device.type != "cpu"]
            if on_gpu:
                torch.empty(max(on_gpu), dtype=torch.uint8, device="cpu")
            Path(path).touch()
            self._saved[path] = self._last = state_dict

        def load(self, path: str, map_location: Any = None) -> Any:
            """Read a file whole; those of other ranks are as large as the own."""
            return _copied(self._saved.get(path, self._last))

    return Counting


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _copied(value: Any) -> Any:
    """Copy what was saved, each tensor into host memory of its own."""
    if isinstance(value, torch.Tensor):
        return torch.empty_like(value.detach(), device="cpu")
    if isinstance(value, dict):
        return type(value)((key, _copied(item)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return value
