"""Atomic writes, writes that never overwrite, and reads of files that may be incomplete."""

import contextlib
import errno
import itertools
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

BLOCK_BYTES = 1 << 18

LONGEST_LINE_BYTES = 1 << 20
"""A log without line breaks may be as large as the disk; nobody reads such a line."""

PRIVATE = 0o600
"""Permissions of files with arguments and variables of the user, which may be secret."""


def shown(path: Path) -> str:
    """Write a path as a user would type it: relative if that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)


def argument(path: Path) -> str:
    """Write a path as an argument of a command, where it is no option."""
    word = shown(path)
    if word.startswith("-"):
        return f"./{word}"
    return word


def typed(path: Path) -> str:
    """Write a path as a word of a command that a user can copy."""
    return shlex.quote(argument(path))


_SAFE = r"(?a)[\w@%+=:,./-]+"
_CODED = "hex:"


def is_safe_word(text: str) -> bool:
    """Whether a shell takes a word as it is, also without quotes."""
    return re.fullmatch(_SAFE, text) is not None


def as_safe_word(path: Path) -> str:
    """Write a path as a word that needs no quotes: DeepSpeed's runner hands it to shells of other hosts."""
    text = str(path)
    if is_safe_word(text) and not text.startswith(_CODED):
        return text
    return _CODED + os.fsencode(text).hex()


def from_safe_word(word: str) -> Path:
    """Read what `as_safe_word` wrote."""
    if not word.startswith(_CODED):
        return Path(word)
    return Path(os.fsdecode(bytes.fromhex(word.removeprefix(_CODED))))


_KINDS: Final = (
    (stat.S_ISDIR, errno.EISDIR, "it is a directory"),
    (stat.S_ISFIFO, errno.EINVAL, "it is a named pipe, not a file"),
    (stat.S_ISSOCK, errno.EINVAL, "it is a socket, not a file"),
)


def open_regular(file: Path) -> IO[bytes]:
    """Open a file to read its bytes. Raise OSError if it is of another kind: a pipe may wait for ever."""
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        kinds = [(number, text) for is_kind, number, text in _KINDS if is_kind(mode)]
        number, text = kinds[0] if kinds else (errno.EINVAL, "it is a device, not a file")
        raise OSError(number, text, str(file))
    # It may have become a pipe by now.
    return os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def read_regular(file: Path) -> bytes:
    """Read a whole file. Raise OSError as `open_regular` does."""
    with open_regular(file) as opened:
        return opened.read()


def write_whole(file: Path, text: str, mode: int = 0o666) -> None:
    """Write a file atomically: other processes read the old or the new text. Raise OSError if it fails.

    The umask takes from the permissions in `mode`. Bytes that are not UTF-8, of an argument, are kept.
    """
    partial = file.with_name(f".{file.name}.partial")
    try:
        with os.fdopen(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", -1, "utf-8", "surrogateescape"
        ) as new:
            new.write(text)
        partial.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def overwrite(file: Path, content: bytes) -> None:
    """Replace what is in a file, in the space that it has on a full disk. Raise OSError if it is gone."""
    with file.open("r+b") as old:
        old.write(content)
        old.truncate()


def print_line(text: str) -> None:
    """Write to stdout unless its disk is full: `print` would keep the text, and Python exit with 120."""
    with contextlib.suppress(OSError):
        os.write(1, f"{text}\n".encode("utf-8", "replace"))


def start_of_lines(file: Path, count: int) -> int:
    """Where the last lines of a file begin, in bytes; within a line that is longer than 1 MiB.

    Only one block is held at a time, and only the lines themselves are read. Raises OSError.
    """
    with open_regular(file) as log:
        size = start = offset = log.seek(0, os.SEEK_END)
        while count > 0 and offset > 0 and start - offset <= LONGEST_LINE_BYTES:
            end, offset = offset, max(0, offset - BLOCK_BYTES)
            log.seek(offset)
            block = log.read(end - offset)
            line_break = len(block) - (end == size)  # the last break ends the last line
            while count > 0 and (line_break := block.rfind(b"\n", 0, line_break)) >= 0:
                start, count = offset + line_break + 1, count - 1
    if count > 0:
        return max(offset, start - LONGEST_LINE_BYTES)
    return start


def read_from(file: Path, offset: int) -> Iterator[bytes]:
    """Read a file from an offset to its end, block by block."""
    with open_regular(file) as opened:
        opened.seek(offset)
        while block := opened.read(BLOCK_BYTES):
            yield block


def end_of(file: IO[bytes], num_bytes: int) -> str:
    """Read the end of an open file, which may be deleted already; empty if it cannot be read."""
    with contextlib.suppress(OSError):
        file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
        return file.read().decode("utf-8", "replace")
    return ""


def nearest(path: Path) -> Path:
    """Return the path if it exists, or its nearest existing parent."""
    existing = path.absolute()
    while not os.path.exists(existing) and existing != existing.parent:  # noqa: PTH110 - Path's raises below a closed one
        existing = existing.parent
    return existing


def why_not_directory(path: Path) -> str | None:
    """Say why nothing can be found in a directory; None if it is one."""
    if path.is_dir():
        return None
    if os.path.lexists(path):
        return f"`{path}` is not a directory"
    return f"there is no directory `{path}`"


def why_not_writable(directory: Path) -> str | None:
    """Say why nothing can be created in a directory, or the directory itself; None if it can."""
    existing = nearest(directory)
    if not existing.is_dir():
        return f"{os.path.normpath(existing)} is not a directory"
    first = existing.joinpath(*directory.absolute().relative_to(existing).parts[:1])
    if first != existing and first.is_symlink():
        return f"{os.path.normpath(first)} is a link to nothing"
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{os.path.normpath(existing)} cannot be written"
    return None


def check_writable(directory: Path, flag: str) -> None:
    """Raise Unavailable if the directory that a flag names cannot be created or written."""
    if (reason := why_not_writable(directory)) is not None:
        raise _unavailable(
            f"`{flag} {os.path.normpath(directory)}`: {reason}", f"choose another directory with `{flag}`"
        )


def identities(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    """Identify files by inode and the time it last changed; hosts that share a file system agree on both.

    The inode alone is not enough: the root of every tmpfs has the same one, and so have directories that
    were made in the same order on new disks.
    """
    states = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            states[path] = (status.st_ino, status.st_ctime_ns)
    return states


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
    if isinstance(text, str):
        text = text.encode()
    try:
        _create(file, text)
    except OSError as error:
        raise _unavailable(f"`{file}` cannot be written: {error.strerror}") from None


def _create(file: Path, data: bytes) -> None:
    """Write a whole new file; on a full disk there is none. Raise FileExistsError if there is one already."""
    try:
        with file.open("xb") as new:
            new.write(data)
    except FileExistsError:
        raise
    except OSError:
        file.unlink(missing_ok=True)
        raise


def write_back(file: Path, text: str, *, keep: bool = False) -> Path | None:
    """Replace the text of a file atomically; keep its permissions and follow links.

    With `keep`, the old file is copied beside it, and the copy is returned. Raise Unavailable if one of them
    cannot be written.
    """
    target = file.resolve()
    if not os.access(target, os.W_OK):
        raise _unavailable(f"`{file}` cannot be written", "change its permissions first")
    try:
        mode = target.stat().st_mode
        copy = None
        if keep:
            copy = _keep(file)
        write_whole(target, text)
        target.chmod(mode)
    except OSError as error:
        raise _unavailable(f"`{file}` cannot be written: {error.strerror}") from None
    return copy


def _keep(file: Path) -> Path:
    """Copy a file to the first free name of `.bak`, `.bak2`, …; an equal copy is enough."""
    data = file.read_bytes()
    for number in itertools.chain([""], itertools.count(2)):
        copy = file.with_name(f"{file.name}.bak{number}")
        try:
            _create(copy, data)
            copy.chmod(stat.S_IMODE(file.stat().st_mode))
        except FileExistsError:
            if not copy.is_file() or copy.read_bytes() != data:
                continue
        return copy
    raise AssertionError("numbers do not end")


def _unavailable(message: str, hint: str | None = None) -> Exception:
    from zlaunch.errors import Unavailable  # keeps imports of the ranks fast

    return Unavailable(message, hint)


def cache_directory(environ: Mapping[str, str]) -> Path | None:
    """Return the cache directory; None if the cache is off."""
    named = environ.get("ZLAUNCH_CACHE")
    if named and named.lower() == "off":
        return None
    directory = Path(environ.get("XDG_CACHE_HOME") or "~/.cache", "zlaunch")
    if named:
        directory = Path(named)
    try:
        return directory.expanduser()
    except RuntimeError:  # a user without a home directory, as in a container
        return None


def cached_lines(name: str) -> list[bytes]:
    """Return the lines of a file of the cache; none if there is no file, or it cannot be read."""
    directory = cache_directory(os.environ)
    if directory is None:
        return []
    try:
        return read_regular(directory / name).splitlines()
    except OSError:
        return []


def append_to_cache(name: str, lines: Iterable[str]) -> None:
    """Add lines to a file of the cache; if it cannot be written, nothing is kept."""
    directory = cache_directory(os.environ)
    if directory is not None:
        with contextlib.suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (directory / name).open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
