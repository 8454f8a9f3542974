"""How a rank saves and resumes: as the installed DeepSpeed does, with files that hold sizes alone."""

import contextlib
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

_TAG = "rehearsal"


@contextlib.contextmanager
def _without_contents(engine: Any, directory: Path) -> Iterator[None]:
    """Let an engine save and load its checkpoints without their contents."""
    plain, writes = engine.checkpoint_engine, engine.save_non_zero_checkpoint
    read_only = None if writes else engine._get_ckpt_name(str(directory), _TAG)
    engine.checkpoint_engine = _engine_of_sizes(type(plain))(read_only)
    engine.save_non_zero_checkpoint = True  # what the first rank writes all others read
    try:
        yield
    finally:
        engine.checkpoint_engine, engine.save_non_zero_checkpoint = plain, writes


def save(engine: Any, net: torch.nn.Module, directory: Path) -> None:
    """Save as the Trainer does: the weights for `from_pretrained`, then DeepSpeed's checkpoint."""
    _save_weights(engine, net)
    with _without_contents(engine, directory):
        engine.save_checkpoint(str(directory), tag=_TAG, exclude_frozen_parameters=_is_adapted(net))
    save_for_others(engine, directory, _TAG)


def save_for_others(engine: Any, directory: Path, tag: str) -> None:
    """Give the other ranks the files that they would write: as large as this rank's."""
    names = engine._get_mp_rank_zero_checkpoint_names(
        load_dir=str(directory),
        tag=tag,
        mp_rank=0,
        dp_world_size=engine.dp_world_size,
        bf16_mode=engine.bfloat16_enabled(),
    )
    own = next((name for name in names if Path(name).exists()), None)
    for name in names:
        if own is not None and name != own:
            os.link(own, name)


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
    """Load what `save` saved, in the engine of another process."""
    with _without_contents(engine, directory):
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


class _Writer(pickle.Pickler):
    """Writes a pickle as `torch.save` does: tensors are named, their storages lie beside it."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.storages: dict[int, torch.Tensor] = {}

    def persistent_id(self, value: Any) -> _Saved | None:
        if not isinstance(value, torch.Tensor):
            return None
        storage = value.untyped_storage()
        self.storages[storage._cdata] = value
        shown = (value.dtype, tuple(value.shape), value.stride(), value.storage_offset())
        return _Saved(storage._cdata, storage.nbytes(), *shown)


class _Reader(pickle.Unpickler):
    """Makes tensors as `torch.load` does: in host memory, with the storages that they had."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._storages: dict[int, torch.Tensor] = {}

    def persistent_load(self, saved: _Saved) -> torch.Tensor:
        if saved.storage not in self._storages:
            self._storages[saved.storage] = torch.empty(saved.nbytes, dtype=torch.uint8, device="cpu")
        whole = self._storages[saved.storage].view(saved.dtype)
        return whole.as_strided(saved.shape, saved.stride, saved.offset)


def _engine_of_sizes(base: type) -> Any:
    """Derive a checkpoint engine that writes the sizes of tensors instead of what is in them."""

    class EngineOfSizes(base):  # type: ignore[misc]
        def __init__(self, read_only: str | None) -> None:
            self.name = _TAG
            self._read_only = read_only

        def save(self, state_dict: Any, path: str) -> None:
            """Write one storage after the other, each by way of the host."""
            with Path(path).open("wb") as file:
                writer = _Writer(file)
                writer.dump(state_dict)
            storages = writer.storages.values()
            on_gpu = [t.untyped_storage().nbytes() for t in storages if t.device.type != "cpu"]
            if on_gpu and path != self._read_only:
                torch.empty(max(on_gpu), dtype=torch.uint8, device="cpu")

        def load(self, path: str, map_location: Any = None) -> Any:
            """Read a file whole."""
            with Path(path).open("rb") as file:
                return _Reader(file).load()

    return EngineOfSizes
