"""Atomic writes, writes that never overwrite, and reads of files that may be incomplete."""

import contextlib
import io
import os
from pathlib import Path

BLOCK_BYTES = 1 << 16


PRIVATE = 0o600
"""Permissions of files with arguments and variables of the user, which may be secret."""


def write_whole(file: Path, text: str, mode: int = 0o666) -> None:
    """Write a file atomically: other processes read the old or the new text. Raise OSError if it fails.

    The umask takes from the permissions in `mode`.
    """
    partial = file.with_name(f".{file.name}.partial")
    try:
        with os.fdopen(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", -1, "utf-8"
        ) as new:
            new.write(text)
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
    """Return the path if it exists, or its nearest existing parent."""
    found = path.absolute()
    while not os.path.exists(found) and found != found.parent:  # noqa: PTH110 - Path's raises below a closed one
        found = found.parent
    return found


def check_new(file: Path) -> None:
    """Raise Unavailable if a file exists already or cannot be created."""
    if file.exists():
        raise _unavailable(
            f"`{file}` already exists", "choose another file: zlaunch does not overwrite files"
        )
    if not (file.parent.is_dir() and os.access(file.parent, os.W_OK | os.X_OK)):
        raise _unavailable(f"`{file}` cannot be written: `{file.parent}` is not a writable directory")


def write_new(file: Path, text: str | bytes) -> None:
    """Write a new file; raise Unavailable if it exists or cannot be written."""
    check_new(file)
    try:
        with file.open("xb") as new:
            new.write(text.encode() if isinstance(text, str) else text)
    except OSError as error:
        raise _unavailable(f"`{file}` cannot be written: {error.strerror}") from None


def write_back(file: Path, text: str) -> None:
    """Replace the text of a file atomically; keep its permissions and follow links.

    Raise Unavailable if it cannot be written.
    """
    target = file.resolve()
    if not os.access(target, os.W_OK):
        raise _unavailable(f"`{file}` cannot be written", "change its permissions first")
    try:
        mode = target.stat().st_mode
        write_whole(target, text)
        target.chmod(mode)
    except OSError as error:
        raise _unavailable(f"`{file}` cannot be written: {error.strerror}") from None


def _unavailable(message: str, hint: str | None = None) -> Exception:
    from zlaunch.errors import Unavailable  # keeps imports of the ranks fast

    return Unavailable(message, hint)
