"""Collect wheels for a machine that has torch and transformers, but no network.

    python -m tools.gather_wheels FOLDER PYTHON_VERSION

They are zlaunch's dependencies that those two do not require, in the versions that are installed here.
DeepSpeed is published only as source, so its wheel is built here, without native ops.
"""

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PREINSTALLED = ("torch", "transformers")
EXCLUDED = ("datasets", "huggingface-hub")
"""A package that only the recipe needs, and one that must match the preinstalled transformers."""
FROM_SOURCE = "deepspeed"
MAX_BYTES = 60 << 20


def requirements(name: str) -> Iterator[str]:
    """Yield the requirements of an installed package, without extras."""
    for line in importlib.metadata.requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def with_requirements(names: Iterable[str], excluded: Iterable[str] = ()) -> set[str]:
    """Return packages with all transitive requirements, without excluded ones and theirs."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        if (name := waiting.pop()) not in found and name not in excluded:
            found.add(name)
            waiting += requirements(name)
    return found


def packages() -> list[str]:
    """Return the packages to collect; the checks also train adapters, with peft.

    Of transformers, only the direct requirements are certainly preinstalled: another release of it uses
    another huggingface_hub.
    """
    own = {*requirements("zlaunch"), "peft"} - {*PREINSTALLED, *EXCLUDED}
    torch = with_requirements(["torch"])
    preinstalled = {*torch, *PREINSTALLED, *EXCLUDED, *requirements("transformers")}
    return sorted(with_requirements(own, preinstalled - own))


def gather(folder: Path, python_version: str) -> int:
    """Collect all wheels in a folder; return their size in bytes."""
    for old in folder.glob("*.whl"):
        old.unlink()
    pinned = [f"{name}=={importlib.metadata.version(name)}" for name in packages() if name != FROM_SOURCE]
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    only = ("--no-deps", "--only-binary=:all:", "--python-version", python_version)
    subprocess.run([*pip, "download", *only, "--dest", folder, *pinned], check=True)
    source = f"{FROM_SOURCE}=={importlib.metadata.version(FROM_SOURCE)}"
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    subprocess.run([*pip, *build, source], env={**os.environ, "DS_BUILD_OPS": "0"}, check=True)
    return sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))


def main() -> None:
    """Collect the wheels; exit with an error if they are too large."""
    folder, version = Path(sys.argv[1]), sys.argv[2]
    nbytes = gather(folder, version)
    number = len(list(folder.glob("*.whl")))
    sys.stdout.write(f"{folder}: {number} wheels for Python {version}, {nbytes / 2**20:.1f} MiB\n")
    if nbytes > MAX_BYTES:
        sys.exit(f"that is more than {MAX_BYTES >> 20} MiB")


if __name__ == "__main__":
    main()
