"""Safetensors files: 8 bytes of length, a header in JSON, then the tensors without gaps."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zlaunch.checkpoint.torch_file import ITEM_BYTES, NUMPY, BadArchive, Storage, Tensor
from zlaunch.files import open_regular

if TYPE_CHECKING:
    import numpy as np

LENGTH_BYTES = 8

NAMES: Mapping[str, str] = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Data type → its name in the header."""

WIDTHS = {theirs: ITEM_BYTES[ours] for ours, theirs in NAMES.items()}
"""Name of a data type in the header → bytes of one element; of other types, nothing is known."""

_TYPES = {theirs: ours for ours, theirs in NAMES.items()}

DAMAGED = (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""What reading a damaged header, or the parts of one, may raise."""


class IncompleteHeader(ValueError):
    """The file ends within its header."""


def read_header(file: Path) -> tuple[int, dict[str, Any]]:
    """Return where the tensors begin, in bytes, and the description of each.

    Raise one of DAMAGED, or OSError.
    """
    with open_regular(file) as stream:
        (length,) = struct.unpack("<Q", stream.read(LENGTH_BYTES))
        if length > file.stat().st_size:
            raise IncompleteHeader
        header = json.loads(stream.read(length))
    return LENGTH_BYTES + length, {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def write_header(tensors: Mapping[str, object]) -> bytes:
    """Write the header for tensors with their descriptions; the numbers then begin at a multiple of eight."""
    text = json.dumps({"__metadata__": {"format": "pt"}, **tensors}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


class SafetensorsFile:
    """One file of weights. Raise BadArchive if it is damaged, OSError if it cannot be opened."""

    def __init__(self, file: Path) -> None:
        """Read the header."""
        self.file = file
        try:
            self._begin, header = read_header(file)
            self.tensors = {name: _tensor(name, described) for name, described in header.items()}
            self._places = {name: _byte_range(described) for name, described in header.items()}
        except DAMAGED:
            raise BadArchive(f"the header of `{file.name}` is damaged") from None

    def read(self, tensor: Tensor) -> "np.ndarray[Any, Any]":
        """Map the numbers of a tensor, flat; those that numpy has no type for as integers."""
        import numpy as np

        dtype = np.dtype(NUMPY.get(tensor.dtype, tensor.dtype))
        begin, end = self._places[tensor.storage.key]
        if end - begin != tensor.nbytes or self._begin + end > self.file.stat().st_size:
            raise BadArchive(f"`{self.file.name}` is incomplete")
        if not tensor.numel:
            return np.empty(0, dtype)
        return np.memmap(self.file, dtype, "r", self._begin + begin, (tensor.numel,))


def _byte_range(described: Mapping[str, Any]) -> tuple[int, int]:
    begin, end = map(int, described["data_offsets"])
    return begin, end


def _tensor(name: str, described: Mapping[str, Any]) -> Tensor:
    dtype = _TYPES[described["dtype"]]
    shape = tuple(map(int, described["shape"]))
    return Tensor(Storage(dtype, name, math.prod(shape)), 0, shape, (), dtype)
