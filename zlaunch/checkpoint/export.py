"""Write the weights of a checkpoint as a model directory that `from_pretrained` loads.

Numbers are copied in blocks from the files of the ranks to those of the model, so memory does not depend on
the size of the model. The directory appears when it is complete.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zlaunch.checkpoint.archive import ITEM_BYTES, BadArchive
from zlaunch.checkpoint.directory import new_directory, refuse_existing
from zlaunch.checkpoint.find import CheckpointFolder
from zlaunch.checkpoint.safetensors import NAMES, write_header
from zlaunch.checkpoint.summary import trained_type
from zlaunch.checkpoint.weights import StoredWeight, aliases, weights
from zlaunch.errors import InputMissing, Unavailable

if TYPE_CHECKING:
    import numpy as np

BLOCK = 1 << 22
"""Elements that are converted and written at once."""

BLOCK_BYTES = BLOCK * 16
"""Memory for a block: as it is read, in fp32, its rounding, and as it is written."""

SHARD_BYTES = 5_000_000_000
"""Maximum size of a file of the model, as in transformers."""

_FLOATS = ("float64", "float32", "float16", "bfloat16")

COMPANIONS = (
    *("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"),
    *(
        "vocab.*",
        "merges.txt",
        "*.model",
        "chat_template*",
        "preprocessor_config.json",
        "processor_config.json",
    ),
    "configuration_*.py",
    "modeling_*.py",
)
"""Files beside the weights that `from_pretrained` reads."""


@dataclass(frozen=True)
class ModelExport:
    """What will be written."""

    checkpoint: CheckpointFolder
    weights: Sequence[StoredWeight]
    dtype: str
    """Type of all parameters with a fraction; others keep theirs."""
    companions: Mapping[str, Path]
    """Name → file to copy."""
    shards: Sequence[Sequence[StoredWeight]]

    def type_of(self, weight: StoredWeight) -> str:
        """The type in which a parameter is written."""
        return self.dtype if weight.dtype in _FLOATS else weight.dtype

    def bytes_of(self, weight: StoredWeight) -> int:
        """The size of a parameter as it is written."""
        return weight.numel * ITEM_BYTES[self.type_of(weight)]

    @property
    def nbytes(self) -> int:
        """Size of all weights as they are written."""
        return sum(map(self.bytes_of, self.weights))

    def files(self) -> Iterator[tuple[str, Sequence[StoredWeight]]]:
        """Name the files of the weights, as transformers does."""
        for number, shard in enumerate(self.shards, start=1):
            of = f"-{number:05}-of-{len(self.shards):05}" if len(self.shards) > 1 else ""
            yield f"model{of}.safetensors", shard


def plan_export(
    checkpoint: CheckpointFolder, dtype: str | None, shard_bytes: int = SHARD_BYTES, model: Path | None = None
) -> ModelExport:
    """Plan what to write. `model` is a directory with config and tokenizer, if the checkpoint has none.

    Without a type, it is that of the model while it trained. Raise Unavailable if the kind of checkpoint
    cannot be exported.
    """
    companions = _companions([model] if model else [checkpoint.folder, checkpoint.folder.parent])
    if model and not companions:
        raise InputMissing(f"`{model}` has no config.json")
    try:
        tied, all_weights = aliases(checkpoint), weights(checkpoint)
    except BadArchive as error:
        raise Unavailable(f"`{checkpoint.folder}` cannot be read: {error}") from None
    by_name = {one.name: one for one in all_weights}
    kept = [one for one in all_weights if one.name not in tied]
    if "config.json" not in companions:  # then nothing ties them when the model is loaded
        kept += [_renamed(by_name[first], name) for name, first in tied.items() if first in by_name]
    export = ModelExport(checkpoint, kept, dtype or _trained_type(checkpoint, kept), companions, [])
    return ModelExport(checkpoint, kept, export.dtype, companions, list(_shards(export, shard_bytes)))


def _trained_type(checkpoint: CheckpointFolder, kept: Sequence[StoredWeight]) -> str:
    found = trained_type(checkpoint)
    return found if found in _FLOATS else next((one.dtype for one in kept if one.dtype in _FLOATS), "float32")


def _renamed(weight: StoredWeight, name: str) -> StoredWeight:
    return StoredWeight(name, weight.shape, weight.dtype, weight.pieces)


def _companions(folders: Sequence[Path]) -> dict[str, Path]:
    """Find the files beside the weights in the first directory that has a config."""
    for folder in folders:
        if (folder / "config.json").is_file():
            found = (file for pattern in COMPANIONS for file in sorted(folder.glob(pattern)))
            return {file.name: file for file in found if file.is_file()}
    return {}


def _shards(export: ModelExport, most: int) -> Iterator[list[StoredWeight]]:
    shard: list[StoredWeight] = []
    size = 0
    for one in export.weights:
        if shard and size + export.bytes_of(one) > most:
            yield shard
            shard, size = [], 0
        shard.append(one)
        size += export.bytes_of(one)
    if shard:
        yield shard


def write_export(export: ModelExport, out: Path, written: Callable[[int], None]) -> None:
    """Write a model directory; `written` gets the number of bytes so far.

    Raise Unavailable if that is impossible, and leave nothing then.
    """
    refuse_existing(out)
    try:
        with new_directory(out, export.nbytes) as partial:
            _write_all(export, partial, written)
    except BadArchive as error:
        raise Unavailable(f"`{export.checkpoint.folder}` cannot be read: {error}") from None


def _write_all(export: ModelExport, folder: Path, written: Callable[[int], None]) -> None:
    done = 0
    for name, shard in export.files():
        with (folder / name).open("wb") as file:
            file.write(_header(export, shard))
            for weight in shard:
                for block in _blocks(weight, export.type_of(weight)):
                    file.write(block.data)
                    done += block.nbytes
                    written(done)
    if len(export.shards) > 1:
        (folder / "model.safetensors.index.json").write_text(_index(export), "utf-8")
    for name, file_beside in export.companions.items():
        shutil.copyfile(file_beside, folder / name)
    if "config.json" in export.companions:
        _set_type(folder / "config.json", export.dtype)


def _header(export: ModelExport, shard: Sequence[StoredWeight]) -> bytes:
    tensors: dict[str, object] = {}
    end = 0
    for one in shard:
        begin, end = end, end + export.bytes_of(one)
        dtype = NAMES[export.type_of(one)]
        tensors[one.name] = {"dtype": dtype, "shape": list(one.shape), "data_offsets": [begin, end]}
    return write_header(tensors)


def _index(export: ModelExport) -> str:
    where = {one.name: name for name, shard in export.files() for one in shard}
    return json.dumps({"metadata": {"total_size": export.nbytes}, "weight_map": where}, indent=2)


def _set_type(config: Path, dtype: str) -> None:
    """Have `from_pretrained` load the type that was written."""
    content = json.loads(config.read_text("utf-8"))
    named = [key for key in ("dtype", "torch_dtype") if key in content] or ["torch_dtype"]
    content.update(dict.fromkeys(named, dtype))
    config.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _blocks(weight: StoredWeight, dtype: str) -> "Iterator[np.ndarray[Any, Any]]":
    for numbers in weight.read():
        for start in range(0, len(numbers), BLOCK):
            yield convert(numbers[start : start + BLOCK], weight.dtype, dtype)


def convert(numbers: "np.ndarray[Any, Any]", given: str, wanted: str) -> "np.ndarray[Any, Any]":
    """Convert numbers between types as torch does; bfloat16 is given and returned as its bits, in uint16."""
    import numpy as np

    if given == wanted:
        return np.ascontiguousarray(numbers)
    floats = (numbers.astype(np.uint32) << 16).view(np.float32) if given == "bfloat16" else numbers
    if wanted != "bfloat16":
        with np.errstate(over="ignore"):  # too large for fp16: infinity, as in torch
            return floats.astype(wanted)
    bits = np.ascontiguousarray(floats, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16  # to the nearest, ties to even
    return np.where(np.isnan(floats), np.uint32(0x7FC0), rounded).astype(np.uint16)
