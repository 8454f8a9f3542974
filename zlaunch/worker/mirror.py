"""Copy the files of a run between hosts that do not share its directory.

A host sends what its ranks write, and gets the control files that zlaunch writes. Logs are only appended to,
so their new part is sent; everything else is small and replaced as a whole.
"""

import base64
import binascii
import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from zlaunch.files import overwrite
from zlaunch.rundir.layout import RunDir

CHUNK_BYTES = 1 << 18
MOST_BYTES = 4 << 20
"""Of a log that grows faster than it can be sent, no more than this is sent at a time."""

_APPENDED = (".log", ".jsonl", ".stacks")


def control_files(run_dir: RunDir) -> list[Path]:
    """The files through which zlaunch tells ranks something."""
    return [file for file in run_dir.control_files if file.exists()]


def rank_files(run_dir: RunDir, ranks: Collection[int]) -> list[Path]:
    """The files that these ranks write."""
    files = [run_dir.rank_log(rank) for rank in ranks]
    for rank in ranks:
        left = run_dir.rank_nsys(rank).suffix  # hundreds of megabytes
        files += [file for file in sorted(run_dir.ranks.glob(f"rank-{rank}.*")) if file.suffix != left]
    if 0 in ranks:
        files.append(run_dir.steps)
    return files


def is_rank_file(name: str, ranks: Collection[int]) -> bool:
    """Whether a path in a run directory is one that these ranks write."""
    found = re.fullmatch(
        r"(?:logs/rank-(\d{1,6})\.log|ranks/rank-(\d{1,6})\.[a-z.]{1,20}|steps\.jsonl)", name
    )
    return found is not None and int(found[1] or found[2] or 0) in ranks


class Changes:
    """Finds what has changed in files since it was asked before."""

    def __init__(self, run_dir: RunDir) -> None:
        self._root = run_dir.root
        self._sent: dict[Path, int] = {}
        """File → how much of it was sent."""
        self._seen: dict[Path, tuple[int, int]] = {}

    def of(self, files: list[Path]) -> Iterator[Mapping[str, object]]:
        """Return a message for each changed file, or part of one."""
        for file in files:
            with contextlib.suppress(OSError):
                status = file.stat()
                seen = (status.st_mtime_ns, status.st_size)
                if self._seen.get(file) != seen:
                    self._seen[file] = seen
                    yield from self._parts(file, status.st_size)

    def _parts(self, file: Path, size: int) -> Iterator[Mapping[str, object]]:
        name, is_appended = file.relative_to(self._root).as_posix(), file.name.endswith(_APPENDED)
        offset = 0
        if is_appended:
            offset = self._sent.get(file, 0)
        with file.open("rb") as source:
            source.seek(offset)
            for _ in range(MOST_BYTES // CHUNK_BYTES):
                data = source.read(CHUNK_BYTES)
                if data or (size == 0 and offset == 0):
                    yield {"file": name, "offset": offset, "data": base64.b64encode(data).decode()}
                offset += len(data)
                if len(data) < CHUNK_BYTES:
                    break
            else:
                self._seen.pop(file)  # there is more
        self._sent[file] = offset


def write_part(run_dir: RunDir, message: Mapping[str, object]) -> None:
    """Write a part of a file that another host has sent; one that leads out of the directory is ignored."""
    name, offset, data = message.get("file"), message.get("offset"), message.get("data")
    if not (isinstance(name, str) and isinstance(offset, int) and isinstance(data, str)):
        return
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return
    file = run_dir.root / path
    with contextlib.suppress(OSError, binascii.Error):
        content = base64.b64decode(data)
        if offset or file.name.endswith(_APPENDED):
            file.touch()
            with file.open("r+b") as target:
                target.seek(offset)
                target.write(content)
            return
        new = file.with_name(f".{file.name}.new")
        try:
            new.write_bytes(content)
            new.replace(file)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            overwrite(file, content)
