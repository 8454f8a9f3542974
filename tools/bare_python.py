"""Create a virtual environment with only some of the installed packages, their dependencies, and pip.

    python -m tools.bare_python FOLDER

has torch and transformers: `make gpu-rehearsal` uses it like the Python of a GPU machine. The packages are
links to the installed ones.
"""

import importlib.metadata
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tools.gather_wheels import PREINSTALLED, with_requirements


def make(folder: Path, names: Sequence[str], *options: str) -> Path:
    """Create the environment with these packages and options of `python -m venv`; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", *options, folder], check=True)
    python = folder.resolve() / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for name in with_requirements(names):
        distribution = importlib.metadata.distribution(name)
        tops = {
            file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")
        }
        for top in tops:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return python


if __name__ == "__main__":
    make(Path(sys.argv[1]), PREINSTALLED)
