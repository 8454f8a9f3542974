"""Saving and resuming with the installed DeepSpeed; the files contain sizes of tensors, not their data."""

import contextlib
import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import deepspeed
import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine
from transformers import PreTrainedModel

_TAG = "rehearsal"


def save(engine: deepspeed.DeepSpeedEngine, model: torch.nn.Module, directory: Path) -> None:
    """Save like the Trainer: the weights for `from_pretrained`, then DeepSpeed's checkpoint."""
    if isinstance(model, PreTrainedModel) or _has_adapters(model):
        _save_weights(engine, model)
    with _sizes_only(engine, directory):
        engine.save_checkpoint(str(directory), tag=_TAG, exclude_frozen_parameters=_has_adapters(model))
    link_files_of_other_ranks(engine, directory, _TAG)


def resume(engine: deepspeed.DeepSpeedEngine, model: torch.nn.Module, directory: Path) -> None:
    """Load what `save` wrote, usually in another process."""
    with _sizes_only(engine, directory):
        engine.load_checkpoint(str(directory), tag=_TAG, load_module_strict=not _has_adapters(model))


def link_files_of_other_ranks(engine: deepspeed.DeepSpeedEngine, directory: Path, tag: str) -> None:
    """Create the checkpoint files of all other ranks as links to this rank's, which has the same size."""
    names = engine._get_mp_rank_zero_checkpoint_names(
        load_dir=str(directory),
        tag=tag,
        mp_rank=getattr(engine, "checkpoint_mp_rank", 0),  # since DeepSpeed 0.19
        dp_world_size=getattr(engine, "seq_dp_world_size", engine.dp_world_size),
        bf16_mode=engine.bfloat16_enabled(),
    )
    sharing = (f"{number:02d}" for number in range(engine.mp_world_size))
    _link(names)
    _link([engine._get_ckpt_name(str(directory), tag, mp_placeholder=number) for number in sharing])


def _link(names: Sequence[str]) -> None:
    saved = next((name for name in names if Path(name).exists()), None)
    for name in names:
        if saved is not None and name != saved:
            os.link(saved, name)


@contextlib.contextmanager
def _sizes_only(engine: deepspeed.DeepSpeedEngine, directory: Path) -> Iterator[None]:
    original, is_writer = engine.checkpoint_engine, engine.save_non_zero_checkpoint
    read_only = None if is_writer else engine._get_ckpt_name(str(directory), _TAG)
    engine.checkpoint_engine = _sizes_engine(type(original))(read_only)
    engine.save_non_zero_checkpoint = True  # all ranks read the file that rank 0 writes
    try:
        yield
    finally:
        engine.checkpoint_engine, engine.save_non_zero_checkpoint = original, is_writer


def _save_weights(engine: deepspeed.DeepSpeedEngine, model: torch.nn.Module) -> None:
    """Gather the weights; rank 0 then makes each contiguous, as `save_pretrained` does."""
    from deepspeed.checkpoint.utils import clone_tensors_for_torch_save

    if not engine.zero_optimization_partition_weights():
        weights = clone_tensors_for_torch_save(model.state_dict())
    elif engine.zero_gather_16bit_weights_on_model_save():
        weights = engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=_has_adapters(model))
    else:
        return
    if engine.global_rank == 0 and not _has_adapters(model):
        written = _converted(model, weights)
        written = {name: written.pop(name).contiguous() for name in list(written)}


def _converted(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert weights to the format of the Hub; transformers 4 has models in that format."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ModuleNotFoundError:
        return weights
    converted: dict[str, torch.Tensor] = revert_weight_conversion(model, weights)
    return converted


def _has_adapters(model: torch.nn.Module) -> bool:
    """Whether this is a model of `peft`, of which the Trainer saves only the trained parameters."""
    return hasattr(model, "get_base_model")


_Saved = tuple[int, int, torch.dtype, tuple[int, ...], tuple[int, ...], int]
"""A view of a storage that is saved separately: storage, its bytes; dtype, shape, stride and offset."""


class _Writer(pickle.Pickler):
    """Pickles like `torch.save`: tensors refer to storages, which are collected in `storages`."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.storages: dict[int, torch.Tensor] = {}

    def persistent_id(self, value: object) -> _Saved | None:
        if not isinstance(value, torch.Tensor):
            return None
        storage = value.untyped_storage()
        self.storages[storage._cdata] = value
        view = (value.dtype, tuple(value.shape), value.stride(), value.storage_offset())
        return (storage._cdata, storage.nbytes(), *view)


class _HostUnpickler(pickle.Unpickler):
    """Unpickles like `torch.load`: tensors in host memory, which share storages as before."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._storages: dict[int, torch.Tensor] = {}

    def persistent_load(self, saved: _Saved) -> torch.Tensor:
        storage, nbytes, dtype, shape, stride, offset = saved
        if storage not in self._storages:
            self._storages[storage] = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        return self._storages[storage].view(dtype).as_strided(shape, stride, offset)


def _sizes_engine(base: type[CheckpointEngine]) -> type[CheckpointEngine]:
    """Derive a checkpoint engine that saves sizes of tensors instead of their data.

    Its argument is a file that only another rank writes, or None.
    """

    class SizesEngine(base):  # type: ignore[misc]
        def __init__(self, read_only: str | None) -> None:
            self.name = _TAG
            self._read_only = read_only

        def save(self, state_dict: object, path: str) -> None:
            """Copy one storage after the other to the host, as `torch.save` does."""
            with Path(path).open("wb") as file:
                writer = _Writer(file)
                writer.dump(state_dict)
            storages = writer.storages.values()
            on_gpu = [t.untyped_storage().nbytes() for t in storages if t.device.type != "cpu"]
            if on_gpu and path != self._read_only:
                torch.empty(max(on_gpu), dtype=torch.uint8, device="cpu")

        def load(self, path: str, map_location: object = None) -> Any:
            """Load a file like `torch.load`."""
            with Path(path).open("rb") as file:
                return _HostUnpickler(file).load()

    return SizesEngine
