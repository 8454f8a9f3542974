"""The directory of compiled native ops on this machine, and the locks that builds leave there.

Torch has one directory for all environments of a Python version, where each rebuilds what another has built.
zlaunch gives each environment a directory of its own, unless the user has set `TORCH_EXTENSIONS_DIR`.
"""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from zlaunch.files import identities
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.probe import torch_release
from zlaunch.hosts.machine.resources import Machine
from zlaunch.process import output_of
from zlaunch.whereabouts import whereabouts

VARIABLE = "TORCH_EXTENSIONS_DIR"

COMPILERS = (
    *("CXX", "CUDA_HOME", "CUDA_PATH", "PYTORCH_NVCC", "TORCH_CUDA_ARCH_LIST"),
    *("ROCM_HOME", "ROCM_PATH", "PYTORCH_ROCM_ARCH", "TORCH_NO_COMPILER_WRAPPER"),
)
"""Variables that change how an op is compiled (`torch/utils/cpp_extension.py`, `op_builder/builder.py`)."""

QUIET_SECONDS = 900.0
"""No compiler works longer on one file of an op."""

_NETWORK = re.compile("nfs|lustre|gpfs|beegfs|ceph|cifs|smb|fuse|9p|virtiofs|afs|glusterfs|wekafs")


@dataclass(frozen=True, slots=True)
class OpCache:
    """Where the ops of an environment are kept."""

    folder: Path
    standard: Path
    """Torch's own directory, with the ops that were compiled without zlaunch."""
    key: str
    """Everything that makes torch compile an op again, as text."""
    identity: tuple[int, int] | None = None
    """Of the directory: hosts that share it agree; None if it is not there yet."""


def find_op_cache(python: Interpreter, machine: Machine, environ: Mapping[str, str]) -> OpCache:
    """Find the directory of the ops of an environment; the same packages have the same one."""
    key = "".join(f"{line}\n" for line in _conditions(python, machine, environ))
    standard = extensions_dir(python, environ)
    name = f"{standard.name}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
    folder = standard if VARIABLE in environ else standard.with_name(name)
    return OpCache(folder, standard, key, identities([folder]).get(folder))


def _conditions(python: Interpreter, machine: Machine, environ: Mapping[str, str]) -> Iterator[str]:
    yield f"python {python.tag} {python.include}"
    for name in ("torch", "deepspeed"):
        if (package := python.packages[name]) is None:
            yield f"no {name}"
        else:
            yield f"{name} {package.version} {package.folder}"
    yield f"{torch_release(python)}, {machine.accelerator}"
    yield f"GPUs {sorted({gpu.compute_capability for gpu in machine.gpus})}"
    yield f"CPU {_cpu()}"
    yield f"ninja {_ninja(python, environ)}"
    yield from (f"{name}={environ[name]}" for name in COMPILERS if name in environ)


def _ninja(python: Interpreter, environ: Mapping[str, str]) -> str | None:
    """Ask the ninja that ranks find for its version: it does not read what others have noted."""
    path = os.pathsep.join([*python.not_on_path(environ), environ.get("PATH", os.defpath)])
    ninja = shutil.which("ninja", path=path)
    return ninja and output_of([ninja, "--version"], timeout=10)


def _cpu() -> str:
    """Hash the features of the CPU: ops are compiled with `-march=native`."""
    text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    features = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return hashlib.sha256(features[1].encode()).hexdigest()[:10] if features else "unknown"


def extensions_dir(python: Interpreter, environ: Mapping[str, str]) -> Path:
    """Torch's directory of compiled extensions (`torch/utils/cpp_extension.py`, `_get_build_directory`)."""
    if (chosen := environ.get(VARIABLE)) is not None:
        return Path(chosen)
    cache = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "torch_extensions" / f"{python.tag}_{torch_release(python)}"


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


def stale_locks(folder: Path) -> frozenset[Path]:
    """Locks of builds that were killed."""
    return frozenset(lock for lock in folder.absolute().glob("*/lock") if is_stale(lock))


def is_stale(lock: Path) -> bool:
    """Whether no process builds what a lock stands for, as far as can be seen from here.

    A process of another user, container or host cannot be seen. Then a lock is stale if its build has not
    written a file for a while.
    """
    try:
        if lock_holder(lock) is not None:
            return False
        if _would_be_seen(lock):
            return True
        changed = max(file.stat().st_mtime for file in (lock, *lock.parent.iterdir()))
    except OSError:
        return False  # it is gone
    return time.time() - changed > QUIET_SECONDS


def _would_be_seen(lock: Path) -> bool:
    """Whether a process that has the lock open would be found."""
    is_readable = os.getuid() in (0, lock.stat().st_uid)
    if not is_readable:
        return False
    signed = lock.read_text("utf-8", "replace")
    return signed == " ".join(whereabouts()) if signed else not _is_on_network(lock)


def _is_on_network(file: Path) -> bool:
    import psutil

    mounts = {Path(disk.mountpoint): disk.fstype for disk in psutil.disk_partitions(all=True)}
    here = next((parent for parent in file.resolve().parents if parent in mounts), Path("/"))
    return _NETWORK.match(mounts.get(here, "")) is not None
