"""Which native ops are compiled for an environment: those that torch and ninja would only load.

Torch asks ninja, which compiles again if a source, an object file or a command has changed. It does not
notice that torch itself was replaced: then the library fails to load. Which commands torch would give is
known only to torch. So once it has loaded an op, a mark beside the library says in which environment.
"""

import hashlib
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from zlaunch.dsconfig.native_ops import OPS, NativeOp
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.build_lock import lock_state
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.process import output_of

MARK = "zlaunch.txt"
"""In the folder of an op."""


@dataclass(frozen=True)
class CompiledOps:
    """The ops in a directory, as an environment sees them."""

    folder: Path
    python: Interpreter
    key: str
    """What makes torch compile them again, as in `OpCache`."""
    path: str | None
    """PATH of the ranks, with their ninja."""

    def why_not_ready(self, op: NativeOp) -> str | None:
        """Say why a rank would not just load an op; None if it would, empty if there is nothing to say."""
        return next((why for one in self._folders(op) if (why := self._why_not_ready(one)) is not None), None)

    def _why_not_ready(self, folder: Path) -> str | None:
        mark, is_compiled = _mark(folder), _library(folder).exists()
        if self._is_locked(folder) or (mark is None and not is_compiled):
            return ""
        if not self._fits(folder):
            return "its library was built for another environment"
        if mark is None:
            return "its library was built without zlaunch"
        if mark != self.key + _stamp(folder) or not self._is_up_to_date(folder):
            return "its files have changed since it was compiled"
        return None

    def _is_locked(self, folder: Path) -> bool:
        return lock_state(folder / "lock", self.python) != "free"

    def is_compiled(self, op: NativeOp) -> bool:
        """Whether torch may find that nothing has to be compiled."""
        return all(_library(one).exists() and self._fits(one) for one in self._folders(op))

    def _fits(self, folder: Path) -> bool:
        """Whether a library may be from this environment: no older than its packages, and not of another."""
        with suppress(FileNotFoundError):
            if _library(folder).stat().st_mtime < self._installed():
                return False
        return (_mark(folder) or self.key).startswith(self.key)

    def _installed(self) -> float:
        """When the packages were installed that an op is compiled for."""
        packages = (self.python.packages[name] for name in ("torch", "deepspeed"))
        return max(0.0 if package is None else package.installed for package in packages)

    def _is_up_to_date(self, folder: Path) -> bool:
        """Whether ninja has nothing to do."""
        if not (folder / "build.ninja").exists():
            return True  # the library was installed with DeepSpeed
        ninja = shutil.which("ninja", path=self.path)
        said = ninja and output_of([ninja, "-n", "-C", str(folder)], timeout=60)
        return "no work to do" in (said or "")

    def delete_others(self, op: NativeOp) -> None:
        """Delete libraries and objects of another environment, so that ninja makes all of them again."""
        for folder in self._folders(op):
            if not self._fits(folder):
                for file in (folder / MARK, *folder.glob("*.o"), *folder.glob("*.so")):
                    file.unlink(missing_ok=True)

    def mark(self, op: NativeOp) -> None:
        """Note that torch has loaded an op in this environment."""
        for folder in self._folders(op):
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                (folder / MARK).write_text(self.key + _stamp(folder), "utf-8")

    def _folders(self, op: NativeOp) -> list[Path]:
        return [self.folder / name for name in (op.name, *op.along)]

    def adopt(self, standard: Path) -> list[str]:
        """Copy what was compiled for this environment without zlaunch; return the names."""
        return [one.name for one in sorted(standard.glob("*/")) if self._adopt(one)]

    def _adopt(self, theirs: Path) -> bool:
        own = self.folder / theirs.name
        if own.exists() or self._is_locked(theirs) or not self._is_for_these_packages(theirs):
            return False
        with suppress(OSError, shutil.Error):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".partial-", dir=self.folder) as partial:
                copied = shutil.copytree(theirs, Path(partial) / own.name)  # ninja compares the times
                copied.rename(own)  # fails if another run was faster
            return True
        return False

    def _is_for_these_packages(self, folder: Path) -> bool:
        """Whether the commands in a folder use the headers and sources of this environment."""
        try:
            commands = (folder / "build.ninja").read_text("utf-8", "replace")
        except OSError:
            return False
        used = [str(self.python.folder("torch") / "include"), self.python.include]
        if any(folder.name in (op.name, *op.along) for op in OPS.values()):
            used.append(str(self.python.folder("deepspeed")))
        return _library(folder).exists() and self._fits(folder) and all(path in commands for path in used)


def _library(folder: Path) -> Path:
    return folder / f"{folder.name}.so"


def _mark(folder: Path) -> str | None:
    with suppress(OSError):
        return (folder / MARK).read_text("utf-8")
    return None


def _stamp(folder: Path) -> str:
    """Identify a library and the commands that made it: another environment may replace both."""
    try:
        commands = hashlib.sha256((folder / "build.ninja").read_bytes()).hexdigest()[:16]
        return f"library {_library(folder).stat().st_mtime_ns} made by {commands}\n"
    except OSError:
        return "library of the package\n"
