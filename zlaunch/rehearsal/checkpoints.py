"""How a rank saves and resumes: as the installed DeepSpeed does, with files that remember sizes alone."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_TAG = "rehearsal"


@contextlib.contextmanager
def checkpoints(engine: Any) -> Iterator[Path]:
    """Let an engine save and load its checkpoints without their contents."""
    plain, writes = engine.checkpoint_engine, engine.save_non_zero_checkpoint
    with tempfile.TemporaryDirectory() as directory:
        read_only = None if writes else engine._get_ckpt_name(directory, _TAG)
        engine.checkpoint_engine = _without_contents(type(plain))(read_only)
        engine.save_non_zero_checkpoint = True  # what the first rank writes all others read
        try:
            yield Path(directory)
        finally:
            engine.checkpoint_engine, engine.save_non_zero_checkpoint = plain, writes


def save(engine: Any, net: torch.nn.Module, directory: Path) -> None:
    """Save as the Trainer does: the weights for `from_pretrained`, then DeepSpeed's checkpoint."""
    _save_weights(engine, net)
    engine.save_checkpoint(str(directory), tag=_TAG, exclude_frozen_parameters=_is_adapted(net))
    names = engine._get_mp_rank_zero_checkpoint_names(
        load_dir=str(directory),
        tag=_TAG,
        mp_rank=0,
        dp_world_size=engine.dp_world_size,
        bf16_mode=engine.bfloat16_enabled(),
    )
    for name in names:
        Path(name).touch()  # those of the other ranks


def _save_weights(engine: Any, net: torch.nn.Module) -> None:
    """Gather the weights; the first rank writes them as `save_pretrained` does, which takes them out."""
    from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
    from transformers.core_model_loading import revert_weight_conversion

    if not engine.zero_optimization_partition_weights():
        weights = clone_tensors_for_torch_save(net.state_dict())
    elif engine.zero_gather_16bit_weights_on_model_save():
        weights = engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=_is_adapted(net))
    else:
        return
    if engine.global_rank == 0 and not _is_adapted(net):
        written = revert_weight_conversion(net, weights)
        written = {name: written.pop(name).contiguous() for name in list(written)}


def _is_adapted(net: torch.nn.Module) -> bool:
    """Say whether a model is one of `peft`, of which the Trainer saves what is trained."""
    from transformers import PreTrainedModel

    return not isinstance(net, PreTrainedModel)


def resume(engine: Any, net: torch.nn.Module, directory: Path) -> None:
    """Load what `save` saved."""
    engine.load_checkpoint(str(directory), tag=_TAG, load_module_strict=not _is_adapted(net))


@dataclass(frozen=True, slots=True)
class _Saved:
    """A tensor in a file: where its storage is, and what it shows of that."""

    storage: int
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def _without_contents(base: type) -> Any:
    """Derive a checkpoint engine that remembers shapes instead of writing tensors."""

    class WithoutContents(base):  # type: ignore[misc]
        def __init__(self, read_only: str | None) -> None:
            self.name = _TAG
            self._read_only = read_only
            self._files: dict[str, Any] = {}

        def save(self, state_dict: Any, path: str) -> None:
            """Write one storage after the other, each by way of the host."""
            storages: dict[int, torch.Tensor] = {}
            self._files[path] = self._last = _each(state_dict, lambda tensor: _described(tensor, storages))
            on_gpu = [t.untyped_storage().nbytes() for t in storages.values() if t.device.type != "cpu"]
            if on_gpu and path != self._read_only:
                torch.empty(max(on_gpu), dtype=torch.uint8, device="cpu")
            Path(path).touch()

        def load(self, path: str, map_location: Any = None) -> Any:
            """Read a file whole; those of other ranks are as large as the own."""
            storages: dict[int, torch.Tensor] = {}
            return _each(self._files.get(path, self._last), lambda saved: _read(saved, storages))

    return WithoutContents


def _described(tensor: Any, storages: dict[int, torch.Tensor]) -> Any:
    """Say what `torch.save` writes of a tensor: all of its storage, once."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    storage = tensor.untyped_storage()
    storages[storage._cdata] = tensor
    shown = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return _Saved(storage._cdata, storage.nbytes(), *shown)


def _read(saved: Any, storages: dict[int, torch.Tensor]) -> Any:
    """Make a tensor as `torch.load` does: in host memory, with the storage that it had."""
    if not isinstance(saved, _Saved):
        return saved
    if saved.storage not in storages:
        storages[saved.storage] = torch.empty(saved.nbytes, dtype=torch.uint8, device="cpu")
    whole = storages[saved.storage].view(saved.dtype)
    return whole.as_strided(saved.shape, saved.stride, saved.offset)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Change what is in dicts, lists and tuples."""
    if isinstance(value, dict):
        return type(value)((key, _each(item, change)) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(_each(item, change) for item in value)
    return change(value)
