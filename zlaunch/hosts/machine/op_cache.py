"""The directory of compiled native ops on this machine.

Torch has one directory for all environments of a Python version, where each rebuilds what another has built.
zlaunch gives each environment a directory of its own, unless the user has set `TORCH_EXTENSIONS_DIR`.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from zlaunch.files import identities
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.probe import torch_release
from zlaunch.hosts.machine.resources import Machine
from zlaunch.process import output_of

VARIABLE = "TORCH_EXTENSIONS_DIR"

COMPILERS = (
    *("CXX", "CUDA_HOME", "CUDA_PATH", "PYTORCH_NVCC", "TORCH_CUDA_ARCH_LIST"),
    *("ROCM_HOME", "ROCM_PATH", "PYTORCH_ROCM_ARCH", "TORCH_NO_COMPILER_WRAPPER"),
)
"""Variables that change how an op is compiled (`torch/utils/cpp_extension.py`, `op_builder/builder.py`)."""


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
