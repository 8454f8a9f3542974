"""Checkpoints of torch.distributed.checkpoint: `.metadata` says which part of which file has which tensor.

Source: `FileSystemWriter` in torch/distributed/checkpoint/filesystem.py. It writes each part as `torch.save`
does, unless it is told to write safetensors or to compress.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zlaunch.checkpoint.torch_file import BadArchive, Unknown, damage_of_zip, read_pickle

METADATA = ".metadata"
"""torch writes it last."""


@dataclass(frozen=True)
class DcpPart:
    """A part of a file, in bytes."""

    name: str
    offset: int
    length: int


def dcp_damage(folder: Path, complete: bool) -> Iterator[tuple[Path, str]]:
    """Find damaged files, and say how; with `complete`, read all bytes and compare the checksums."""
    file = folder / METADATA
    if not file.is_file():
        yield file, "it is missing: the save was interrupted"
        return
    try:
        parts = dcp_parts(file)
    except BadArchive as error:
        yield file, str(error)
        return
    for name in dict.fromkeys(part.name for part in parts):
        mine = [part for part in parts if part.name == name]
        damage = _damage(folder / name, mine, complete)
        if damage is not None:
            yield folder / name, damage


def _damage(file: Path, parts: list[DcpPart], complete: bool) -> str | None:
    if not file.is_file():
        return "it is missing"
    size, end = file.stat().st_size, max(part.offset + part.length for part in parts)
    if size < end:
        return f"it has {size} of at least {end} bytes"
    with file.open("rb") as stream:
        for part in sorted(parts, key=lambda one: one.offset):
            window = io.BufferedReader(_Window(stream, part))
            if window.peek(2)[:2] == b"PK" and (damage := damage_of_zip(window, complete)) is not None:
                return f"its part at byte {part.offset}: {damage}"
    return None


def dcp_parts(file: Path) -> list[DcpPart]:
    """Read what is stored where. Raise BadArchive if `.metadata` is damaged."""
    metadata = read_pickle(file)
    state = metadata.state if isinstance(metadata, Unknown) else None
    stored = state.get("storage_data") if isinstance(state, dict) else None
    if not isinstance(stored, dict):
        raise BadArchive("it does not say what is stored where")
    parts = []
    for one in stored.values():
        where = one.state if isinstance(one, Unknown) and isinstance(one.state, dict) else {}
        name, offset, length = (where.get(key) for key in ("relative_path", "offset", "length"))
        if isinstance(name, str) and isinstance(offset, int) and isinstance(length, int):
            parts.append(DcpPart(name, max(0, offset), max(0, length)))
    return parts


class _Window(io.RawIOBase):
    """A part of a file, as a file of its own."""

    def __init__(self, stream: io.BufferedIOBase, part: DcpPart) -> None:
        self._stream, self._part, self._at = stream, part, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._part.length}[whence]
        if self._at < 0:
            raise ValueError("before the part")
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._stream.seek(self._part.offset + self._at)
        data = self._stream.read(max(0, min(len(buffer), self._part.length - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
