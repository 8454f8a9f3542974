"""The directory of compiled native ops on this machine, and the locks that builds leave there."""

import sys
from collections.abc import Mapping
from pathlib import Path

from zlaunch.hosts.probe import torch_cuda


def extensions_dir(environment: Mapping[str, str]) -> Path:
    """Torch's directory of compiled extensions (`torch/utils/cpp_extension.py`, `_get_build_directory`)."""
    if (chosen := environment.get("TORCH_EXTENSIONS_DIR")) is not None:
        return Path(chosen)
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cuda = torch_cuda()
    kind = f"cu{cuda.replace('.', '')}" if cuda else "cpu"
    python = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}"
    return cache / "torch_extensions" / f"{python}_{kind}"


def lock_holder(lock: Path) -> int | None:
    """The process that has the lock open, as torch's FileBaton does during a build."""
    target = str(lock.resolve())
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == target:
                return int(link.parts[2])
        except OSError:
            continue
    return None


def stale_locks(environment: Mapping[str, str]) -> frozenset[Path]:
    """Locks of killed builds: those that no process here holds open."""
    locks = extensions_dir(environment).absolute().glob("*/lock")
    return frozenset(lock for lock in locks if lock_holder(lock) is None)
