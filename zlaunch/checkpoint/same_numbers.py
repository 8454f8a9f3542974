"""Compare a model with an engine's files beside it: a file of safetensors has no checksum."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zlaunch.checkpoint.dtypes import BLOCK, FLOATS, convert
from zlaunch.checkpoint.find import CheckpointFolder, SavedBy, weight_files
from zlaunch.checkpoint.lora import name_in_file
from zlaunch.checkpoint.problem import Problem
from zlaunch.checkpoint.safetensors import SafetensorsFile
from zlaunch.checkpoint.torch_file import BadArchive
from zlaunch.checkpoint.weights import StoredWeight, weights
from zlaunch.errors import Unavailable
from zlaunch.units import plural

if TYPE_CHECKING:
    import numpy as np


MOST_DAMAGED = 0.1
"""Share of the numbers that a few bits or a block of a disk may have."""


def damaged_numbers(checkpoint: CheckpointFolder) -> Iterator[Problem]:
    """Find numbers of a model that the engine beside it has saved otherwise.

    A model in which most is different was made on purpose, such as an average of several steps.
    """
    files = checkpoint.engine_files()
    models = [file for file in weight_files(checkpoint.folder) if file.suffix == ".safetensors"]
    if files is None or not models or checkpoint.saved_by is SavedBy.UNIVERSAL:
        return
    try:
        saved = {weight.name: weight for weight in weights(checkpoint)}
        trained = files.first_model.trained or saved.keys()
    except (Unavailable, BadArchive, OSError, StopIteration):
        return  # other checks say what is wrong
    engine = {**saved, **{name_in_file(name): weight for name, weight in saved.items()}}
    found: list[tuple[Path, str, int]] = []
    for file in models:
        with contextlib.suppress(BadArchive, OSError):
            found += [
                (file, name, count)
                for name, count in _different_numbers(SafetensorsFile(file), engine).items()
            ]
    compared = [(engine[name].numel, count) for _, name, count in found if engine[name].name in trained]
    if _is_another(compared):
        return
    for file, name, count in found:
        if count:
            message = f"{plural(count, 'number')} of `{name}` {'differs' if count == 1 else 'differ'}"
            yield Problem(file, f"{message} from what the engine saved: the file is damaged")


def _is_another(compared: Sequence[tuple[int, int]]) -> bool:
    """Whether most of a model is different; given the numbers of each tensor, and how many differ."""
    all_numbers, differing = sum(numel for numel, _ in compared), sum(count for _, count in compared)
    changed = sum(count > 0 for _, count in compared)
    return differing > all_numbers * MOST_DAMAGED and changed > len(compared) / 2


def _different_numbers(model: SafetensorsFile, engine: Mapping[str, StoredWeight]) -> dict[str, int]:
    """Count the numbers of each tensor that differ, in the type of the model."""
    counts = {}
    for name, tensor in model.tensors.items():
        weight = engine.get(name)
        if weight is None or weight.shape != tensor.shape:
            continue
        if tensor.dtype == weight.dtype or {tensor.dtype, weight.dtype} <= {*FLOATS}:
            counts[name] = _differing(model.read(tensor), tensor.dtype, weight)
    return counts


def _differing(numbers: "np.ndarray[Any, Any]", dtype: str, weight: StoredWeight) -> int:
    import numpy as np

    count = start = 0
    for part in weight.read():
        for first in range(0, len(part), BLOCK):
            theirs = convert(part[first : first + BLOCK], weight.dtype, dtype)
            ours = np.ascontiguousarray(numbers[start : start + len(theirs)])
            bits = f"u{ours.dtype.itemsize}"  # in which a NaN equals itself
            count += int(np.count_nonzero(ours.view(bits) != theirs.view(bits)))
            start += len(theirs)
    return count
