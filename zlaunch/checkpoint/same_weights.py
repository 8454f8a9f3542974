"""Compare the weights of a conversion with those of the checkpoint that it was made of."""

from collections.abc import Callable
from pathlib import Path

from zlaunch.checkpoint.dtypes import BLOCK, convert
from zlaunch.checkpoint.engine_files import EngineFiles
from zlaunch.checkpoint.find import CheckpointFolder, SavedBy
from zlaunch.checkpoint.weights import StoredWeight, weights


def other_weight(source: EngineFiles, universal: Path, tick: Callable[[], None]) -> str | None:
    """Name a trained parameter that has other numbers in a universal checkpoint; None if there is none.

    They are read block by block; `tick` is called after each. Parameters that tensor parallelism has cut are
    not compared. Raise BadArchive for a file that cannot be read, Unavailable for an unknown one.
    """
    if len({mp for _, mp in source.model}) > 1:
        return None
    before = weights(CheckpointFolder(source.folder, SavedBy.ENGINE, source.folder))
    converted = weights(CheckpointFolder(universal, SavedBy.UNIVERSAL, universal))
    after, trained = {weight.name: weight for weight in converted}, source.first_model.trained
    for weight in before:
        if weight.name not in trained:
            continue
        if weight.name not in after or not _is_same(weight, after[weight.name], tick):
            return weight.name
    return None


def _is_same(saved: StoredWeight, made: StoredWeight, tick: Callable[[], None]) -> bool:
    """Compare bits, in the type of the checkpoint: of experts it has only that of the training."""
    import numpy as np

    if saved.numel != made.numel:
        return False
    start = 0
    for part in saved.read():
        for first in range(0, len(part), BLOCK):
            block = np.ascontiguousarray(part[first : first + BLOCK])
            (theirs,) = (piece for row, *_ in made.pieces for piece in row.read(start, len(block)))
            if block.tobytes() != convert(theirs, made.dtype, saved.dtype).tobytes():
                return False
            start += len(block)
            tick()
    return True
