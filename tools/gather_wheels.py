"""Fill a folder with wheels for a machine that has torch and transformers, and no network.

    python -m tools.gather_wheels FOLDER PYTHON_VERSION

They are what zlaunch imports and those two do not bring, in the versions that are installed here. DeepSpeed
comes as source only: it is built here, where torch is, and compiles nothing then.
"""

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

GIVEN = ("torch", "transformers")
LEFT_OUT = ("datasets", "huggingface-hub")
"""What only the recipe imports, and what must be as old as the transformers that is there."""
FROM_SOURCE = "deepspeed"
MOST_BYTES = 60 << 20


def needs(name: str) -> Iterator[str]:
    """Name what a package requires here, without extras."""
    for line in importlib.metadata.requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name)


def with_needs(names: Iterable[str], given: Iterable[str] = ()) -> set[str]:
    """Add what packages need, and what that needs; nothing that is given, nor what only that needs."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        if (name := waiting.pop()) not in found and name not in given:
            found.add(name)
            waiting += needs(name)
    return found


def packages() -> list[str]:
    """Name what has to be brought.

    Of what transformers needs only the first generation is sure to be there: another release of it has
    another huggingface_hub.
    """
    own = set(needs("zlaunch")) - {*GIVEN, *LEFT_OUT}
    given = {*with_needs(["torch"]), *GIVEN, *LEFT_OUT, *needs("transformers")}
    return sorted(with_needs(own, given - own))


def gather(folder: Path, python_version: str) -> int:
    """Fill a folder; return the bytes that it holds."""
    for old in folder.glob("*.whl"):  # what else is there is not ours
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
    """Gather, and refuse what is too much to be brought."""
    folder, version = Path(sys.argv[1]), sys.argv[2]
    nbytes = gather(folder, version)
    number = len(list(folder.glob("*.whl")))
    sys.stdout.write(f"{folder}: {number} wheels for Python {version}, {nbytes / 2**20:.1f} MiB\n")
    if nbytes > MOST_BYTES:
        sys.exit(f"that is more than {MOST_BYTES >> 20} MiB")


if __name__ == "__main__":
    main()
