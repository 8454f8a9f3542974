"""Where the parameters of a checkpoint are: each one as pieces of files, in order.

The layout is that of deepspeed/utils/zero_to_fp32.py. Below stage 3 the flat groups of all ranks follow each
other; at stage 3 each rank has an equal part of every parameter.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from zlaunch.checkpoint.engine_files import EngineFiles, ModelFile, OptimFile
from zlaunch.checkpoint.find import CheckpointFolder, SavedBy, weight_files
from zlaunch.checkpoint.flat_groups import Shapes, starts
from zlaunch.checkpoint.swap_files import swap_files
from zlaunch.checkpoint.torch_file import Archive, BadArchive, Tensor
from zlaunch.errors import Unavailable
from zlaunch.files import typed
from zlaunch.frozen import dataclass

if TYPE_CHECKING:
    import numpy as np


class TensorFile(Protocol):
    """A file that tensors can be read from."""

    def read(self, tensor: Tensor) -> "np.ndarray[Any, Any]":
        """Map the numbers of a tensor, flat."""


@dataclass(frozen=True)
class Flat:
    """Tensors of one type after each other, as one long row of numbers."""

    parts: Sequence[tuple[TensorFile, Tensor]]

    @property
    def numel(self) -> int:
        """Number of elements."""
        return sum(tensor.numel for _, tensor in self.parts)

    def read(self, start: int, count: int) -> "Iterator[np.ndarray[Any, Any]]":
        """Map a range of the numbers, one array for each file it is in."""
        for archive, tensor in self.parts:
            taken = min(count, max(0, tensor.numel - start))
            if taken:
                yield archive.read(tensor)[start : start + taken]
            count -= taken
            start = max(0, start - tensor.numel)


@dataclass(frozen=True)
class StoredWeight:
    """One parameter or buffer: its pieces are ranges of flat rows, as (row, start, count)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    pieces: Sequence[tuple[Flat, int, int]]

    @staticmethod
    def whole(name: str, tensor: Tensor, file: TensorFile) -> "StoredWeight":
        """One whose numbers are a tensor of one file."""
        return StoredWeight(name, tensor.shape, tensor.dtype, [(Flat([(file, tensor)]), 0, tensor.numel)])

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def read(self) -> "Iterator[np.ndarray[Any, Any]]":
        """Map all of its numbers, in order."""
        for row, start, count in self.pieces:
            yield from row.read(start, count)


def weights(checkpoint: CheckpointFolder) -> list[StoredWeight]:
    """Find all parameters and buffers: those that were trained in fp32, others as they were saved.

    Raise Unavailable if this kind of checkpoint cannot be taken apart.
    """
    files = checkpoint.engine_files()
    if files is None:
        is_model = checkpoint.saved_by is SavedBy.WEIGHTS
        hint = "it is a model already: `from_pretrained` loads it as it is" if is_model else None
        raise Unavailable(f"`{checkpoint.folder}` has no files of DeepSpeed's engine to export", hint)
    is_universal = checkpoint.saved_by is SavedBy.UNIVERSAL
    _require_known(checkpoint, files, is_universal)
    models = [ModelFile(files.model[key]) for key in sorted(files.model, key=lambda key: key[0] or 0)]
    shards = [OptimFile(files.optim[key]) for key in sorted(files.optim)]
    by_name: dict[str, StoredWeight] = {}
    stored: Iterator[StoredWeight]
    if is_universal:
        stored = itertools.chain(_universal(files.folder), _as_saved(models[0]))
    elif files.experts:
        stored = itertools.chain(_as_saved(models[0]), *map(_expert, files.experts.values()))
    else:
        stored = _all(models, shards)
    for weight in stored:
        by_name.setdefault(weight.name, weight)
    return list(by_name.values())


def _require_known(checkpoint: CheckpointFolder, files: EngineFiles, is_universal: bool) -> None:
    if files.layers:
        raise Unavailable(
            "the model is a pipeline, which cannot be exported",
            f"`torch.load` reads each of its layers, such as `{next(iter(files.layers.values())).name}`",
        )
    if files.unknown:
        raise Unavailable(f"`{files.unknown[0].name}` has a part of the model in a form that is not known")
    if len({mp for _, mp in files.model}) > 1 and not (is_universal and not files.first_model.frozen):
        message = "the parameters are cut by tensor parallelism"
        if is_universal or not files.first_model.says_how_it_is_cut or not files.optim:
            raise Unavailable(
                f"{message}, and the files do not say how",
                "in the training, `engine._consolidated_16bit_state_dict()` returns them whole in all ranks",
            )
        raise Unavailable(
            f"{message}; a conversion puts them together",
            f"`zlaunch checkpoint universal {typed(checkpoint.folder)} OUT`, and then export OUT",
        )


def how_to_take_weights(checkpoint: CheckpointFolder) -> str:
    """Say what to type for a training that starts with the weights of a checkpoint."""
    has_only_weights = checkpoint.engine is None and bool(weight_files(checkpoint.folder))
    if checkpoint.saved_by is SavedBy.WEIGHTS or has_only_weights:
        return "name it to the script as its model; a training from it starts with a new optimizer"
    try:
        weights(checkpoint)
    except (Unavailable, BadArchive) as error:
        hint = error.hint if isinstance(error, Unavailable) else None
        return f"{error}: {hint}" if hint else f"its weights cannot be exported: {error}"
    export = f"`zlaunch checkpoint export {typed(checkpoint.folder)} OUT`"
    return f"{export} exports the weights; a training from them starts with a new optimizer"


def _expert(file: Path) -> Iterator[StoredWeight]:
    """The parameters of an expert, whole, in the type of the training: the optimizer has parts of several."""
    archive = Archive(file)
    value = archive.value
    for name, tensor in value.items() if isinstance(value, Mapping) else ():
        if isinstance(name, str) and isinstance(tensor, Tensor):
            yield StoredWeight.whole(name, tensor, archive)


def _all(models: Sequence[ModelFile], shards: Sequence[OptimFile]) -> Iterator[StoredWeight]:
    if shards and shards[0].stage == 3:
        rows = [_flat_row(models[0], shard, rank) for rank, shard in enumerate(shards)]
        yield from _partitioned(_together(models[0].shapes), rows)
        frozen = [
            {name: Flat([(model.archive, part)]) for name, part in model.frozen_fragments.items()}
            for model in models
        ]
        for name, shape in models[0].frozen.items():
            yield from _partitioned({name: shape}, [row[name] for row in frozen])
    elif shards:
        yield from _in_groups(models[0].shapes, shards)
    yield from _as_saved(models[0])


def _flat_row(model: ModelFile, shard: OptimFile, rank: int) -> Flat:
    swapped = swap_files(model, shard, rank) if shard.is_swapped else ()
    on_nvme = {file.group: (file, file.tensor) for file in swapped if not file.state}
    return Flat([on_nvme.get(number, (shard.archive, group)) for number, group in enumerate(shard.groups)])


def _together(groups: Sequence[Shapes]) -> Shapes:
    return dict(itertools.chain.from_iterable(group.items() for group in groups))


def _partitioned(shapes: Shapes, ranks: Sequence[Flat]) -> Iterator[StoredWeight]:
    """Each rank has `ceil(numel / ranks)` elements of every parameter; the last ones are padding."""
    start = 0
    for name, shape in shapes.items():
        numel, share = math.prod(shape), math.ceil(math.prod(shape) / len(ranks))
        counts = [min(share, max(0, numel - rank * share)) for rank in range(len(ranks))]
        pieces = [(row, start, count) for row, count in zip(ranks, counts, strict=True) if count]
        yield StoredWeight(name, shape, ranks[0].parts[0][1].dtype, pieces)
        start += share


def _in_groups(groups: Sequence[Shapes], shards: Sequence[OptimFile]) -> Iterator[StoredWeight]:
    """The parameters of a group follow each other, each with its padding, and are cut among the ranks."""
    for number, shapes in enumerate(groups):
        row = Flat([(shard.archive, shard.groups[number]) for shard in shards])
        paddings = (shards[0].paddings or [[0] * len(group) for group in groups])[number]
        *begins, end = starts(shapes, paddings)
        for (name, shape), start in zip(shapes.items(), begins, strict=True):
            yield StoredWeight(name, shape, row.parts[0][1].dtype, [(row, start, math.prod(shape))])
        if end > row.numel:
            raise BadArchive(f"group {number} of the optimizer has fewer numbers than the model")


def _as_saved(model: ModelFile) -> Iterator[StoredWeight]:
    """What is in the file of the model itself: buffers, frozen parameters, and at stage 0 all."""
    partitioned = set() if not model.is_partitioned else {*_together(model.shapes), *model.frozen}
    for name, tensor in {**model.module, **model.frozen_fragments}.items():
        if name not in partitioned and (tensor.numel or not model.is_partitioned):
            yield StoredWeight.whole(name, tensor, model.archive)


def _universal(folder: Path) -> Iterator[StoredWeight]:
    for file in sorted((folder / "zero").glob("*/fp32.pt")):
        archive = Archive(file)
        value = archive.value
        tensor = value.get("param") if isinstance(value, Mapping) else value
        if not isinstance(tensor, Tensor):
            raise BadArchive(f"`{file.parent.name}/{file.name}` has no parameter in it")
        yield StoredWeight.whole(file.parent.name, tensor, archive)


def aliases(checkpoint: CheckpointFolder) -> dict[str, str]:
    """Names that mean the numbers of another: of tied parameters, all but the first."""
    files = checkpoint.engine_files()
    if files is None or not files.model:
        return {}
    model = ModelFile(files.model[min(files.model, key=lambda key: (key[0] or 0, key[1]))])
    first: dict[tuple[str, int, tuple[int, ...]], str] = {}
    companions = {}
    for name, tensor in model.module.items():
        place = (tensor.storage.key, tensor.offset, tensor.shape)
        if tensor.numel and first.setdefault(place, name) != name:
            companions[name] = first[place]
    return {**companions, **model.shared}
