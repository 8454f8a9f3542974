"""Reading and writing files that must be whole, new, or left as they are."""

import contextlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zlaunch.errors import Unavailable


BLOCK_BYTES = 1 << 16


def write_whole(file: Path, text: str) -> None:
    """Write a file that others read meanwhile: they see all of it, or what was there before."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def last_lines(file: Path, count: int) -> list[bytes]:
    """Read the last lines of a file, however long it is; none if it cannot be read."""
    data = b""
    try:
        with file.open("rb") as log:
            offset = log.seek(0, os.SEEK_END)
            while offset > 0 and data.count(b"\n") <= count:
                step = min(BLOCK_BYTES, offset)
                offset -= step
                log.seek(offset)
                data = log.read(step) + data
    except OSError:
        return []
    return io.BytesIO(data).readlines()[-count:] if count else []


def nearest(path: Path) -> Path:
    """Find what exists of a path: itself, or the nearest above it."""
    found = path.absolute()
    while not os.path.exists(found) and found != found.parent:  # noqa: PTH110 - Path's raises below a closed one
        found = found.parent
    return found


def check_new(file: Path) -> None:
    """Raise Unavailable if a file exists already, or cannot be made where it is to be."""
    if file.exists():
        raise _unavailable(f"`{file}` exists already", "name another file: nothing is ever overwritten")
    if not (file.parent.is_dir() and os.access(file.parent, os.W_OK | os.X_OK)):
        raise _unavailable(f"`{file}` cannot be written: `{file.parent}` is not a writable directory")


def write_new(file: Path, text: str | bytes) -> None:
    """Write a file that does not exist yet; raise Unavailable if it does, or cannot be written."""
    check_new(file)
    try:
        with file.open("xb") as new:
            new.write(text.encode() if isinstance(text, str) else text)
    except OSError as error:
        raise _unavailable(f"`{file}` cannot be written: {error.strerror}") from None


def write_back(file: Path, text: str) -> None:
    """Swap a new text in for an old one, whole, with the permissions the file had; links are followed."""
    target = file.resolve()
    if not os.access(target, os.W_OK):
        raise _unavailable(f"`{file}` cannot be written", "change its permissions first")
    try:
        mode = target.stat().st_mode
        write_whole(target, text)
        target.chmod(mode)
    except OSError as error:
        raise _unavailable(f"`{file}` cannot be written: {error.strerror}") from None


def _unavailable(message: str, hint: str | None = None) -> "Unavailable":
    from zlaunch.errors import Unavailable  # the ranks import this module, and wait for all it imports

    return Unavailable(message, hint)
