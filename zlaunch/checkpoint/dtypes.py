"""Convert numbers between data types as torch does, without torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

BLOCK = 1 << 22
"""Elements that are converted and written at once."""

FLOATS = ("float64", "float32", "float16", "bfloat16")


def convert(numbers: "np.ndarray[Any, Any]", given: str, wanted: str) -> "np.ndarray[Any, Any]":
    """Convert numbers between types; bfloat16 is given and returned as its bits, in uint16."""
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
