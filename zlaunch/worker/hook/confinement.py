"""Keep a program from what a question to it must not do: write files, connect elsewhere, delete anything.

Files that it opens to write outside of temporary directories and caches are other, temporary ones; it reads
there what it wrote. Nothing outside may be deleted or renamed, no other machine is connected to, and of other
programs only those are started that tell something. Native code is not watched.
"""

import _posixsubprocess
import builtins
import contextlib
import errno
import io
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from zlaunch.worker.hook.other_programs import (
    STARTS,
    NotStarted,
    program_among,
    program_of,
)

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ENTRIES: Final = {
    **dict.fromkeys(("os.remove", "os.rmdir", "shutil.rmtree"), ((0, 1),)),
    "os.rename": ((0, 2), (1, 3)),
    "shutil.move": ((0, 2), (1, 2)),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
}
"""Event of the audit → where the path and the `dir_fd` of each changed entry of a directory stand."""
_FILES: Final = {"os.truncate": (0, 2), "os.chmod": (0, 2), "os.chown": (0, 3)}
"""The same for events that change what a link leads to."""
_CACHES: Final = ("HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "XDG_CACHE_HOME", "TRITON_CACHE_DIR")
_NOT_FOUND: Final = 127 << 8
"""What `os.system` returns for a program that the shell does not find."""
_LOCAL: Final = ("127.", "localhost", "::1", "0.0.0.0")  # noqa: S104 - nothing listens there


class MadeDirectories:
    """The directories that a program makes or renames."""

    def __init__(self) -> None:
        """None yet."""
        self.paths: list[str] = []

    def install(self) -> None:
        """From here on, note them."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "os.mkdir":
            path = _entry(args[0], args[2])
            if not os.path.exists(path):  # noqa: PTH110 - in each call
                self.paths.append(path)


def remove_empty(directories: Iterable[str]) -> None:
    """Remove directories that were made in vain: the job may fail where they exist already."""
    for directory in sorted(set(directories), key=len, reverse=True):
        with contextlib.suppress(OSError):
            Path(directory).rmdir()


class Confinement:
    """What a program may change: temporary files, caches, and what it made itself."""

    def __init__(
        self,
        folder: Path,
        by: str = "a rehearsal",
        not_started: Callable[[str], None] = lambda _: None,
        *,
        only_files: bool = False,
    ) -> None:
        """Put files that it writes elsewhere into a temporary directory; `by` is named in errors.

        `not_started` is called with the name of each program that it would start. With `only_files`, it may
        start any, and connect to any machine.
        """
        self._by, self._not_started, self._only_files = by, not_started, only_files
        caches = [os.environ[name] for name in _CACHES if os.environ.get(name)]
        roots = [*caches, str(folder), tempfile.gettempdir(), os.path.expanduser("~/.cache")]  # noqa: PTH111
        roots += ["/dev", "/proc"]
        self._free = tuple(os.path.realpath(root) for root in roots)
        self._folder = folder
        self.made = MadeDirectories()
        self._is_on = True

    def install(self) -> None:
        """From here on, watch what the program does."""
        opens, os_opens = builtins.open, os.open

        def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            writes, replaces = (any(letter in mode for letter in letters) for letters in ("wax+", "wx"))
            return opens(self._place(file, writes, replaces=replaces), mode, *args, **kwargs)

        def open_descriptor(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            path = _from(path, kwargs.pop("dir_fd", None))
            place = self._place(path, bool(flags & _WRITING), replaces=bool(flags & os.O_TRUNC))
            return os_opens(place, flags, *args, **kwargs)

        builtins.open = io.open = open_file
        os.open = open_descriptor
        for name in ("rename", "replace"):
            setattr(os, name, self._moving(getattr(os, name)))
        os.symlink, os.link = self._symlinking(os.symlink), self._linking(os.link)
        for name in ("remove", "unlink"):
            setattr(os, name, self._removing(getattr(os, name)))
        self._place_databases()
        if not self._only_files:
            self._watch_starts()
        self.made.install()
        sys.addaudithook(self._hear)

    def _watch_starts(self) -> None:
        """Watch also what no audit hears of; `os.system` fails as for a program that is not there."""
        run, fork = os.system, _posixsubprocess.fork_exec  # noqa: TID251 - to watch who calls it

        def system(command: Any) -> int:
            try:
                return run(command)
            except NotStarted:
                return _NOT_FOUND

        def fork_exec(words: Any, *args: Any) -> int:
            self._refuse_start(program_among(words))
            return fork(words, *args)

        os.system, _posixsubprocess.fork_exec = system, fork_exec  # noqa: TID251

    def _place_databases(self) -> None:
        try:
            import sqlite3
        except ImportError:  # a Python may be built without it
            return
        connect = sqlite3.connect

        def connected(database: Any, *args: Any, **kwargs: Any) -> Any:
            if not str(database).startswith((":", "file:")):
                database = self._place(database, True)
            return connect(database, *args, **kwargs)

        sqlite3.connect = connected

    def lift(self) -> tuple[str, ...]:
        """End this, and return the directories that the program made, all of which are empty."""
        self._is_on = False
        return tuple(path for path in self.made.paths if not self._is_free(path))

    def _is_free(self, path: str) -> bool:
        return any(path == root or path.startswith(root + os.sep) for root in self._free)

    def _place(self, file: Any, writes: bool, *, replaces: bool = False) -> Any:
        """Return the file to open in place of another one, of which it is a copy unless that is replaced."""
        if not self._is_on or not isinstance(file, (str, os.PathLike)) or isinstance(os.fspath(file), bytes):
            return file
        path = os.path.realpath(os.fspath(file))
        if self._is_free(path):
            return file
        other = self._other(path)
        is_there = os.path.exists(other)  # noqa: PTH110 - in each call
        if writes and not is_there and not replaces and os.path.isfile(path):  # noqa: PTH113
            shutil.copyfile(path, other)
        if writes or is_there:
            return other
        return file

    def _other(self, path: Any) -> str:
        """Return the file that is written in place of another one; all ranks with this directory find it."""
        path = os.path.realpath(path)
        return str(self._folder / f"{zlib.crc32(path.encode()):x}-{os.path.basename(path)[-64:]}")  # noqa: PTH119

    def _moving(self, move: Callable[..., None]) -> Callable[..., None]:
        def moved(
            source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
        ) -> None:
            source, target = _from(source, src_dir_fd), _from(target, dst_dir_fd)
            if not self._is_on:
                return move(source, target)
            if os.path.isdir(source):  # noqa: PTH112 - in each call
                move(source, target)
                return self.made.paths.append(_entry(target))
            if os.path.exists(other := self._other(source)):  # noqa: PTH110
                source = other
            if not self._is_free(_entry(target)):
                target = self._other(target)
            return move(source, target)

        return moved

    def _removing(self, remove: Callable[..., None]) -> Callable[..., None]:
        def removed(path: Any, *, dir_fd: int | None = None) -> None:
            path = _from(path, dir_fd)
            if os.path.exists(other := self._other(path)):  # noqa: PTH110
                path = other
            remove(path)

        return removed

    def _symlinking(self, link: Callable[..., None]) -> Callable[..., None]:
        def linked(source: Any, target: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any) -> None:
            target = _from(target, dir_fd)
            if self._may_link(target):
                link(source, target, *args, **kwargs)

        return linked

    def _linking(self, link: Callable[..., None]) -> Callable[..., None]:
        def linked(
            source: Any,
            target: Any,
            *,
            src_dir_fd: int | None = None,
            dst_dir_fd: int | None = None,
            **kwargs: Any,
        ) -> None:
            source, target = _from(source, src_dir_fd), _from(target, dst_dir_fd)
            if self._may_link(target):
                link(source, target, **kwargs)
            else:  # what is written to one name of a file would be written to the other, too
                shutil.copyfile(self._place(source, False), self._other(target))

        return linked

    def _may_link(self, target: Any) -> bool:
        """Whether a link may be made; raise FileExistsError, which a program may expect, if it is there."""
        if not self._is_on or self._is_free(_entry(target)):
            return True
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        return False

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_on:
            return
        if event in _ENTRIES:
            for places in _ENTRIES[event]:
                self._refuse_change(args, places, _entry)
        elif event in _FILES:
            self._refuse_change(args, _FILES[event], _target)
        elif self._only_files:
            return
        elif event in STARTS:
            self._refuse_start(program_of(event, args))
        elif event == "socket.connect" and not _is_local(args[1]):
            raise ConnectionRefusedError(f"{self._by} connects to no other machine")

    def _refuse_start(self, program: str | None) -> None:
        if self._is_on and program is not None:
            self._not_started(program)
            raise NotStarted(self._by, program)

    def _refuse_change(
        self, args: tuple[Any, ...], places: tuple[int, int], found: Callable[..., str]
    ) -> None:
        at, folder_at = places
        if not isinstance(args[at], (str, os.PathLike)):
            return
        path = found(args[at], *args[folder_at : folder_at + 1])
        if not self._is_free(path) and path not in self.made.paths and os.path.lexists(path):
            raise PermissionError(f"{self._by} changes nothing: {path}")


def _from(path: Any, folder: int | None) -> Any:
    """Return a path that counts from an open directory as one that does not."""
    if folder is None or folder < 0 or not isinstance(path, (str, os.PathLike)):
        return path
    return os.path.join(f"/proc/self/fd/{folder}", os.fspath(path))  # noqa: PTH118 - in each call


def _target(path: Any, folder: int | None = None) -> str:
    """Return what a path leads to."""
    return str(os.path.realpath(_from(path, folder)))


def _entry(path: Any, folder: int | None = None) -> str:
    """Return the entry of a directory that a path names, which may be a link to elsewhere."""
    parent, name = os.path.split(os.path.abspath(_from(path, folder)))  # noqa: PTH100
    return str(os.path.join(os.path.realpath(parent), name))  # noqa: PTH118


def _is_local(address: Any) -> bool:
    return not isinstance(address, tuple) or str(address[0]).startswith(_LOCAL)
