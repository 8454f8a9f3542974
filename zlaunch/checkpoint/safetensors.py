"""The header of a safetensors file: 8 bytes of length, JSON, then the tensors without gaps."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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

DAMAGED = (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
"""What reading a damaged header, or the parts of one, may raise."""


class IncompleteHeader(ValueError):
    """The file ends within its header."""


def read_header(file: Path) -> tuple[int, dict[str, Any]]:
    """Return where the tensors begin, in bytes, and the description of each.

    Raise one of DAMAGED, or OSError.
    """
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(LENGTH_BYTES))
        if length > file.stat().st_size:
            raise IncompleteHeader
        header = json.loads(stream.read(length))
    return LENGTH_BYTES + length, {name: one for name, one in header.items() if name != "__metadata__"}


def write_header(tensors: Mapping[str, object]) -> bytes:
    """Write the header for tensors with their descriptions; the numbers then begin at a multiple of eight."""
    text = json.dumps({"__metadata__": {"format": "pt"}, **tensors}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
