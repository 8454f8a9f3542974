"""Write the weights of a checkpoint as a model directory that `from_pretrained` loads.

Numbers are copied in blocks from the files of the ranks to those of the model, so memory does not depend on
the size of the model. The directory appears when it is complete.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zlaunch.checkpoint.dtypes import BLOCK, FLOATS, convert
from zlaunch.checkpoint.find import CheckpointFolder
from zlaunch.checkpoint.lora import (
    ADAPTER_CONFIG,
    Adapter,
    adapter_in,
    adapter_weights,
    merged_weights,
    most_common_type,
    read_object,
)
from zlaunch.checkpoint.model_sizes import common_wrapper, unlike_config
from zlaunch.checkpoint.new_directory import new_directory, refuse_existing
from zlaunch.checkpoint.safetensors import NAMES, write_header
from zlaunch.checkpoint.summary import trained_type
from zlaunch.checkpoint.torch_file import ITEM_BYTES, BadArchive
from zlaunch.checkpoint.weights import StoredWeight, aliases, weights
from zlaunch.errors import Finding, InputMissing, Refused, Unavailable, WrongUsage
from zlaunch.files import read_regular
from zlaunch.frozen import dataclass

if TYPE_CHECKING:
    import numpy as np

BLOCK_BYTES = BLOCK * 16
"""Memory for a block: as it is read, in fp32, its rounding, and as it is written."""

SHARD_BYTES = 5_000_000_000
"""Maximum size of a file of the model, as in transformers."""

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

_OF_MODEL = ("config.json", "generation_config.json")
"""Those that do not belong beside an adapter."""


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
        return self.dtype if weight.dtype in FLOATS else weight.dtype

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
            yield f"{'adapter_' if self.is_adapter else ''}model{of}.safetensors", shard

    @property
    def class_name(self) -> str | None:
        """The class that loads the model; None if none does, for example without a config, which it needs."""
        if "config.json" not in self.companions or self.unlike_model is not None:
            return None
        named = self.config.get("architectures")
        classes = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        return next(iter(classes), "AutoModel")

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The config.json of the model; empty without one."""
        file = self.companions.get("config.json")
        return {} if file is None else read_object(file)

    @cached_property
    def unlike_model(self) -> str | None:
        """What the weights lack of the model that config.json describes; None if nothing is certain."""
        return unlike_config(self.config, {weight.name: weight.shape for weight in self.weights})

    @property
    def is_adapter(self) -> bool:
        """Whether it is only an adapter, which is loaded into a model."""
        return ADAPTER_CONFIG in self.companions


def plan_export(
    checkpoint: CheckpointFolder,
    dtype: str | None,
    shard_bytes: int = SHARD_BYTES,
    model: Path | None = None,
    merge_lora: bool = False,
) -> ModelExport:
    """Plan what to write. `model` is a directory with config and tokenizer, if the checkpoint has none.

    An adapter is written alone, unless it is merged: into the weights of the checkpoint, or those of `model`.
    Without a type, it is that of the model while it trained. Raise Unavailable if the kind of checkpoint
    cannot be exported, and Refused if its weights are not those of `model`.
    """
    named = model
    around = [checkpoint.folder, checkpoint.folder.parent]
    try:
        tied, stored = aliases(checkpoint), weights(checkpoint)
        adapter = adapter_in(stored, around)
        if merge_lora and adapter is None:
            raise WrongUsage(f"`{checkpoint.folder}` has no adapter to merge", "leave out `--merge-lora`")
        if adapter is not None and model is None:
            model = adapter.local_model
        companions = _companions([model] if model else around)
        if model and not companions:
            raise InputMissing(f"`{model}` has no config.json")
        if adapter is not None and not merge_lora:
            return _adapter_alone(checkpoint, adapter, stored, dtype, companions)
        by_name = {weight.name: weight for weight in stored}
        chosen = [weight for weight in stored if weight.name not in tied]
        if "config.json" not in companions:  # then nothing ties them when the model is loaded
            chosen += [replace(by_name[first], name=name) for name, first in tied.items() if first in by_name]
        if adapter is None:
            dtype = dtype or _trained_type(checkpoint, chosen)
        else:
            chosen = merged_weights(adapter, chosen, model, _tied_by_config(tied, companions))
            dtype = dtype or most_common_type(chosen)
    except BadArchive as error:
        raise Unavailable(f"`{checkpoint.folder}` cannot be read: {error}") from None
    export = ModelExport(checkpoint, chosen, dtype, companions, [])
    if named is not None:
        _refuse_another_model(export, named)
    return replace(export, shards=list(_into_shards(export, shard_bytes)))


def _refuse_another_model(export: ModelExport, model: Path) -> None:
    """Raise Refused if the weights are not those of a model; with something around it, they may be."""
    if common_wrapper(weight.name for weight in export.weights) is not None:
        return
    if (message := export.unlike_model) is not None:
        raise Refused(
            [Finding("other-model", f"the checkpoint is not of this model: {message}", where=str(model))],
            "name the model that trained, or leave out `--model` to write the weights alone",
        )


def _adapter_alone(
    checkpoint: CheckpointFolder,
    adapter: Adapter,
    stored: Sequence[StoredWeight],
    dtype: str | None,
    companions: Mapping[str, Path],
) -> ModelExport:
    chosen = adapter_weights(adapter, stored)
    beside = {name: file for name, file in companions.items() if name not in _OF_MODEL}
    beside[ADAPTER_CONFIG] = adapter.config_file
    return ModelExport(checkpoint, chosen, dtype or _trained_type(checkpoint, chosen), beside, [chosen])


def _tied_by_config(aliases: Mapping[str, str], companions: Mapping[str, Path]) -> set[str | int]:
    """Name what the config ties when the model is loaded, and how many rows that has."""
    if "config.json" not in companions:
        return set()
    config = read_object(companions["config.json"])
    names: set[str | int] = {*aliases, *aliases.values()}
    if config.get("tie_word_embeddings") and isinstance(rows := config.get("vocab_size"), int):
        names.add(rows)
    return names


def _trained_type(checkpoint: CheckpointFolder, chosen: Sequence[StoredWeight]) -> str:
    dtype = trained_type(checkpoint)
    return (
        dtype
        if dtype in FLOATS
        else next((weight.dtype for weight in chosen if weight.dtype in FLOATS), "float32")
    )


def _companions(folders: Sequence[Path]) -> dict[str, Path]:
    """Find the files beside the weights in the first directory that has a config, which must be readable."""
    for folder in folders:
        if (folder / "config.json").is_file():
            read_object(folder / "config.json")
            companions = [sorted(folder.glob(pattern)) for pattern in COMPANIONS]
            return {file.name: file for file in chain.from_iterable(companions) if file.is_file()}
    return {}


def _into_shards(export: ModelExport, most: int) -> Iterator[list[StoredWeight]]:
    shard: list[StoredWeight] = []
    size = 0
    for weight in export.weights:
        if shard and size + export.bytes_of(weight) > most:
            yield shard
            shard, size = [], 0
        shard.append(weight)
        size += export.bytes_of(weight)
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
    for weight in shard:
        begin, end = end, end + export.bytes_of(weight)
        dtype = NAMES[export.type_of(weight)]
        tensors[weight.name] = {"dtype": dtype, "shape": list(weight.shape), "data_offsets": [begin, end]}
    return write_header(tensors)


def _index(export: ModelExport) -> str:
    where: dict[str, str] = {}
    for name, shard in export.files():
        where.update((weight.name, name) for weight in shard)
    return json.dumps({"metadata": {"total_size": export.nbytes}, "weight_map": where}, indent=2)


def _set_type(config: Path, dtype: str) -> None:
    content = json.loads(read_regular(config))
    named = [key for key in ("dtype", "torch_dtype") if key in content] or ["torch_dtype"]
    content.update(dict.fromkeys(named, dtype))
    config.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _blocks(weight: StoredWeight, dtype: str) -> "Iterator[np.ndarray[Any, Any]]":
    for numbers in weight.read():
        for start in range(0, len(numbers), BLOCK):
            yield convert(numbers[start : start + BLOCK], weight.dtype, dtype)
