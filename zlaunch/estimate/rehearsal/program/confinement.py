"""Keep a program from what a rehearsal or check must not do: write files, connect elsewhere, delete anything.

Files that it opens to write outside of temporary directories and caches are other, temporary ones; it reads
there what it wrote. Nothing outside may be deleted or renamed, no other machine is connected to, and of other
programs only those are started that tell something. Native code is not watched.
"""

import _posixsubprocess
import builtins
import io
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from zlaunch.estimate.rehearsal.program.other_programs import (
    STARTS,
    NotStarted,
    program_among,
    program_of,
)

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES: Final = {
    **dict.fromkeys(("os.remove", "os.rmdir", "shutil.rmtree", "os.truncate", "os.chmod", "os.chown"), 1),
    **dict.fromkeys(("os.rename", "shutil.move", "os.link", "os.symlink"), 2),
}
"""Event of the audit → how many paths it changes."""
_CACHES: Final = ("HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE", "XDG_CACHE_HOME", "TRITON_CACHE_DIR")
_NOT_FOUND: Final = 127 << 8
"""What `os.system` returns for a program that the shell does not find."""
_LOCAL: Final = ("127.", "localhost", "::1", "0.0.0.0")  # noqa: S104 - nothing listens there


class Confinement:
    """What a program may change: temporary files, caches, and what it made itself."""

    def __init__(
        self, folder: Path, by: str = "a rehearsal", not_started: Callable[[str], None] = lambda _: None
    ) -> None:
        """Put files that it writes elsewhere into a temporary directory; `by` is named in errors.

        `not_started` is called with the name of each program that it would start.
        """
        self._by, self._not_started = by, not_started
        caches = [os.environ[name] for name in _CACHES if os.environ.get(name)]
        roots = [*caches, str(folder), tempfile.gettempdir(), os.path.expanduser("~/.cache")]  # noqa: PTH111
        roots += ["/dev", "/proc"]
        self._free = tuple(os.path.realpath(root) for root in roots)
        self._folder = folder
        self._made: list[str] = []
        self._is_on = True

    def install(self) -> None:
        """From here on, watch what the program does."""
        opens, os_opens = builtins.open, os.open

        def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            writes, replaces = (any(letter in mode for letter in letters) for letters in ("wax+", "wx"))
            return opens(self._place(file, writes, replaces=replaces), mode, *args, **kwargs)

        def open_descriptor(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            place = self._place(path, bool(flags & _WRITING), replaces=bool(flags & os.O_TRUNC))
            return os_opens(place, flags, *args, **kwargs)

        builtins.open = io.open = open_file
        os.open = open_descriptor
        for name in ("rename", "replace"):
            setattr(os, name, self._moving(getattr(os, name)))
        for name in ("remove", "unlink"):
            setattr(os, name, self._removing(getattr(os, name)))
        self._place_databases()
        self._watch_starts()
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
        return tuple(self._made)

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
        def moved(source: Any, target: Any, **kwargs: Any) -> None:
            other = self._other(source)
            if os.path.exists(other):  # noqa: PTH110
                move(other, self._other(target), **kwargs)
            else:
                move(source, target, **kwargs)

        return moved

    def _removing(self, remove: Callable[..., None]) -> Callable[..., None]:
        def removed(path: Any, **kwargs: Any) -> None:
            other = self._other(path)
            if os.path.exists(other):  # noqa: PTH110
                remove(other)
            else:
                remove(path, **kwargs)

        return removed

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_on:
            return
        if event == "os.mkdir":
            path = os.path.realpath(args[0])
            if not self._is_free(path) and not os.path.exists(path):  # noqa: PTH110 - in each call
                self._made.append(path)
        elif event in _CHANGES:
            for changed in args[: _CHANGES[event]]:
                self._refuse_change(changed)
        elif event in STARTS:
            self._refuse_start(program_of(event, args))
        elif event == "socket.connect" and not _is_local(args[1]):
            raise ConnectionRefusedError(f"{self._by} connects to no other machine")

    def _refuse_start(self, program: str | None) -> None:
        if self._is_on and program is not None:
            self._not_started(program)
            raise NotStarted(self._by, program)

    def _refuse_change(self, changed: Any) -> None:
        if not isinstance(changed, (str, os.PathLike)):
            return
        path = os.path.realpath(changed)
        if not self._is_free(path) and path not in self._made and os.path.lexists(path):
            raise PermissionError(f"{self._by} changes nothing: {path}")


def _is_local(address: Any) -> bool:
    return not isinstance(address, tuple) or str(address[0]).startswith(_LOCAL)
