"""Files of weights whose tensors have the sizes that their heads say, and no data.

safetensors maps a file into memory: its tensors take none until they are copied.
"""

import json
import os
import struct
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch
from transformers import modeling_utils

from zlaunch.estimate.rehearsal.program.mode import ProgramMode

DTYPES: Final = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_MOST_HEAD_BYTES: Final = 1 << 27


def head_of(file: Path) -> dict[str, Any]:
    """Read the head of a safetensors file: name → format and shape."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        head: dict[str, Any] = json.loads(opened.read(min(length, _MOST_HEAD_BYTES)))
    return head


def apply(mode: ProgramMode) -> None:
    """Let packages open files of weights without reading them."""

    class Opened(_WeightsFile):
        def __init__(self, filename: str | os.PathLike[str], *_: object, **__: object) -> None:
            super().__init__(Path(filename), mode)

    def load_file(filename: str | os.PathLike[str], device: Any = "cpu") -> dict[str, torch.Tensor]:
        opened = Opened(filename)
        return {name: opened.get_tensor(name).to(device) for name in opened.keys()}  # noqa: SIM118

    import safetensors.torch

    for module in (safetensors, safetensors.torch, modeling_utils):
        setattr(module, "safe_open", Opened)  # noqa: B010 - another class than the declared one
    setattr(safetensors.torch, "load_file", load_file)  # noqa: B010


class _WeightsFile:
    """What `safe_open` returns."""

    def __init__(self, file: Path, mode: ProgramMode) -> None:
        head = head_of(file)
        self._metadata: dict[str, str] = head.pop("__metadata__", {})
        self._slices = {name: _Slice(tensor, mode) for name, tensor in head.items()}

    def __enter__(self) -> "_WeightsFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._slices = {}

    def keys(self) -> list[str]:
        return sorted(self._slices)

    def offset_keys(self) -> list[str]:
        return [*self._slices]

    def metadata(self) -> dict[str, str]:
        return self._metadata

    def get_slice(self, name: str) -> "_Slice":
        return self._slices[name]

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._slices[name].tensor


class _Slice:
    """What `get_slice` returns."""

    def __init__(self, tensor: dict[str, Any], mode: ProgramMode) -> None:
        self._tensor, self._mode = tensor, mode

    def get_shape(self) -> list[int]:
        return list(self._tensor["shape"])

    def get_dtype(self) -> str:
        return str(self._tensor["dtype"])

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.tensor[index]

    @cached_property
    def tensor(self) -> torch.Tensor:
        """A tensor of the file."""
        return self._mode.mapped(self._tensor["shape"], DTYPES[self._tensor["dtype"]])


def formats(folder: Path) -> Iterator[torch.dtype]:
    """Yield the formats of the tensors in a folder."""
    for file in sorted(folder.glob("*.safetensors")):
        for tensor in head_of(file).values():
            if tensor.get("dtype") in DTYPES:
                yield DTYPES[tensor["dtype"]]
