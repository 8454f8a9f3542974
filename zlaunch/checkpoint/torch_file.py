"""Read files of `torch.save` without torch, and without executing the pickle inside.

Such a file is a zip archive with a pickle of the structure and one uncompressed entry for each storage
(torch/serialization.py). A class or function that the pickle names becomes `Unknown`: none of them is run.
"""

import lzma
import math
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from zlaunch.checkpoint.pointer import pointer_in
from zlaunch.files import open_regular
from zlaunch.frozen import dataclass

if TYPE_CHECKING:
    import numpy as np

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""Data type → bytes of one element."""

_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "uint8",
}

_LOCAL_HEADER_BYTES = 30
"""Fixed part of the header before an entry; then come its name and an extra field (APPNOTE.TXT 4.3.7)."""

_BLOCK_BYTES = 1 << 20


_DAMAGED_ZIP = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(EOFError, ValueError, RuntimeError),
)
"""What reading a damaged zip archive may raise; RuntimeError if an entry seems to be encrypted."""


class BadArchive(Exception):
    """A file is not one of `torch.save`, or is damaged; the text says how."""


class UnknownLayout(BadArchive):
    """A file can be read, but its content is not known here; it is not damaged."""


class Unknown:
    """An object of a class that is not known here; `args` are those of its constructor."""

    name = ""

    def __new__(cls, *args: object, **_: object) -> "Unknown":
        """Keep the arguments; nothing of the class itself is run."""
        made = super().__new__(cls)
        made.args = args
        return made

    def __init__(self, *args: object, **_: object) -> None:
        """Accept what the pickle has for the constructor."""
        self.args: tuple[object, ...] = args
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        """Keep the state of the object."""
        self.state = state

    def __setitem__(self, key: object, value: object) -> None:
        """Accept an item, as a subclass of dict has them."""

    def append(self, item: object) -> None:
        """Accept an item, as a subclass of list has them."""

    def extend(self, items: object) -> None:
        """Accept items, as a subclass of list has them."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One block of numbers in an archive."""

    dtype: str
    key: str
    numel: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A view of a storage; `offset` and `stride` are in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    ds_id: str = ""
    """The name that ZeRO-3 gives to a part of the optimizer."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * ITEM_BYTES[self.dtype]

    @property
    def is_contiguous(self) -> bool:
        """Whether its numbers are stored in their order, without gaps."""
        step = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != step:
                return False
            step *= size
        return True

    @property
    def end(self) -> int:
        """The end of what it uses of its storage, in elements."""
        if not self.numel:
            return 0
        return (
            self.offset
            + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
            + 1
        )


class _DType(str):
    __slots__ = ()


def _rebuild_tensor(storage: object, offset: object, shape: object, stride: object, *rest: object) -> Tensor:
    sizes, steps = _dimensions(shape), _dimensions(stride)
    if not isinstance(storage, Storage) or not isinstance(offset, int) or len(sizes) != len(steps):
        raise BadArchive("a tensor has an invalid shape")
    dtype = next((str(value) for value in rest if isinstance(value, _DType)), storage.dtype)
    return Tensor(storage, offset, sizes, steps, dtype)


def _dimensions(values: object) -> tuple[int, ...]:
    if not isinstance(values, tuple | list) or not all(
        isinstance(value, int) and value >= 0 for value in values
    ):
        raise BadArchive("a tensor has an invalid shape")
    return tuple(values)


def _first_argument(value: object, *_: object) -> object:
    return value


def _rebuild_typed(
    rebuild: Callable[..., object], _: object, args: tuple[object, ...], attributes: object = None
) -> object:
    """Build a tensor with attributes, as ZeRO-3 has them; `rebuild` is known below, or Unknown."""
    built = rebuild(*args)
    ds_id = attributes.get("ds_id") if isinstance(attributes, dict) else None
    return replace(built, ds_id=ds_id) if isinstance(built, Tensor) and isinstance(ds_id, str) else built


_KNOWN: Mapping[tuple[str, str], Callable[..., object]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): lambda sizes=(): tuple(sizes),
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_typed,
    ("torch._utils", "_rebuild_parameter"): _first_argument,
    ("torch._utils", "_rebuild_parameter_with_state"): _first_argument,
}
"""What is understood in a pickle. Nothing here has an effect outside of the value that is built."""


class _ArchiveUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (known := _KNOWN.get((module, name))) is not None:
            return known
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _DType(_STORAGES[name])
        if module == "torch" and name in ITEM_BYTES:
            return _DType(name)
        return type("Unknown", (Unknown,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: object) -> Storage:
        match pid:
            case ("storage", _DType() as dtype, str(key), _, int(numel)) if numel >= 0:
                return Storage(str(dtype), key, numel)
        raise UnknownLayout("it has numbers of an unknown type")


def _unpickled(stream: IO[bytes]) -> Any:
    try:
        return _ArchiveUnpickler(stream).load()
    except (BadArchive, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - a damaged pickle raises anything
        raise _damaged(error) from None


def _damaged(error: Exception) -> BadArchive:
    return BadArchive(f"its structure is damaged ({type(error).__name__})")


def damage_of_zip(file: Path, complete: bool) -> str | None:
    """Say what is damaged in a zip archive; with `complete`, read all bytes and compare their checksums."""
    name = ""
    try:
        with open_regular(file) as opened, zipfile.ZipFile(opened) as archive:
            for name in archive.namelist() if complete else ():
                with archive.open(name) as stream:
                    while stream.read(_BLOCK_BYTES):
                        pass
    except _DAMAGED_ZIP:
        return f"`{name}` in it does not match its checksum" if name else "its list of entries is damaged"
    return None


class Archive:
    """One file of `torch.save`. Raise BadArchive if it cannot be read, OSError if it cannot be opened."""

    def __init__(self, file: Path) -> None:
        """Read the list of entries, which is at the end of the file."""
        self.file = file
        try:
            with open_regular(file) as opened, zipfile.ZipFile(opened) as archive:
                self._entries = {entry.filename: entry for entry in archive.infolist()}
        except _DAMAGED_ZIP as error:
            if _is_of_old_torch(file):
                raise UnknownLayout("torch before 1.6 saved like this") from None
            raise BadArchive(_why_no_zip(file, error)) from None
        pickles = [name for name in self._entries if name.endswith("/data.pkl") or name == "data.pkl"]
        if len(pickles) != 1:
            raise BadArchive("it is a zip archive, but not one of `torch.save`")
        self._root = pickles[0].removesuffix("data.pkl")

    @cached_property
    def value(self) -> Any:
        """The structure: dicts, lists, numbers and texts as they are, tensors as `Tensor`."""
        try:
            with (
                open_regular(self.file) as opened,
                zipfile.ZipFile(opened) as archive,
                archive.open(f"{self._root}data.pkl") as stream,
            ):
                return _unpickled(stream)
        except _DAMAGED_ZIP as error:
            raise _damaged(error) from None

    def tensors(self) -> Iterator[Tensor]:
        """Find all tensors of the structure."""
        todo, seen = [self.value], set()
        while todo:
            value = todo.pop()
            if isinstance(value, Tensor):
                yield value
            elif isinstance(value, dict | list | tuple | Unknown) and id(value) not in seen:
                seen.add(id(value))
                todo += value.values() if isinstance(value, dict) else _members(value)

    def problem(self, complete: bool = False) -> str | None:
        """Say what is damaged; with `complete`, read all bytes and compare their checksums."""
        for tensor in self.tensors():
            entry = self._entries.get(self._entry(tensor.storage))
            if entry is None:
                return f"the numbers of a tensor are missing (storage {tensor.storage.key})"
            if entry.file_size < tensor.storage.nbytes or tensor.end > tensor.storage.numel:
                return f"a tensor is longer than its numbers (storage {tensor.storage.key})"
        return damage_of_zip(self.file, complete)

    @staticmethod
    def damage_of_structure(file: Path) -> str | None:
        """Say what is damaged in a file of which the structure is not known, by its checksums."""
        return None if _is_of_old_torch(file) else damage_of_zip(file, complete=True)

    def _entry(self, storage: Storage) -> str:
        return f"{self._root}data/{storage.key}"

    def read(self, tensor: Tensor) -> "np.ndarray[Any, Any]":
        """Map the numbers of a tensor, flat; those that numpy has no type for as integers."""
        import numpy as np

        begin = self._begin(tensor)
        dtype = np.dtype(NUMPY.get(tensor.dtype, tensor.dtype))
        if not tensor.numel:
            return np.empty(0, dtype)
        offset = begin + tensor.offset * dtype.itemsize
        stored = np.memmap(self.file, dtype, "r", offset, (tensor.end - tensor.offset,))
        if tensor.is_contiguous:
            return stored
        steps = [step * dtype.itemsize for step in tensor.stride]
        return np.lib.stride_tricks.as_strided(stored, tensor.shape, steps, writeable=False).reshape(-1)

    def first(self, tensor: Tensor) -> float:
        """Read the first number of a tensor, without numpy. Raise BadArchive if there is none."""
        code = _CODES.get(tensor.dtype)
        if code is None or not tensor.numel:
            raise BadArchive(f"it has no number, but {tensor.numel} of {tensor.dtype}")
        width = struct.calcsize(code)
        with open_regular(self.file) as stream:
            stream.seek(self._begin(tensor) + tensor.offset * width)
            data = stream.read(width)
        if len(data) < width:
            raise BadArchive("its numbers are cut off")
        return float(struct.unpack(code, data)[0])

    def _begin(self, tensor: Tensor) -> int:
        entry = self._entries.get(self._entry(tensor.storage))
        if entry is None:
            raise BadArchive("its numbers are missing")
        if entry.compress_type != zipfile.ZIP_STORED:
            raise BadArchive("its numbers are compressed")
        with open_regular(self.file) as stream:
            stream.seek(entry.header_offset)
            header = stream.read(_LOCAL_HEADER_BYTES)
        lengths: tuple[int, int] = struct.unpack("<HH", header[26:30])
        return entry.header_offset + _LOCAL_HEADER_BYTES + sum(lengths)


_CODES = {"float64": "<d", "float32": "<f", "float16": "<e", "int64": "<q", "int32": "<i"}
"""Types of single numbers, as `struct` names them."""

NUMPY = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def _members(value: "list[Any] | tuple[Any, ...] | Unknown") -> tuple[Any, ...]:
    return (value.args, value.state) if isinstance(value, Unknown) else tuple(value)


_OLD_MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
"""How a file begins that `torch.save` wrote without zip (`MAGIC_NUMBER` in torch/serialization.py)."""


def _is_of_old_torch(file: Path) -> bool:
    with open_regular(file) as stream:
        return stream.read(len(_OLD_MAGIC)) == _OLD_MAGIC


def _why_no_zip(file: Path, error: Exception) -> str:
    if not file.stat().st_size:
        return "it is empty"
    if pointer := pointer_in(file):
        return pointer
    with open_regular(file) as stream:
        begins_like_zip = stream.read(2) == b"PK"
    if begins_like_zip:
        return "it is incomplete: its end is missing"
    return f"it is not a file of `torch.save` from torch 1.6 or newer ({str(error).lower()})"
