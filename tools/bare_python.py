"""Create a virtual environment with only torch, transformers, their dependencies, and pip.

    python -m tools.bare_python FOLDER

`make gpu-rehearsal` uses it like the Python of a GPU machine. The packages are links to the installed ones.
"""

import importlib.metadata
import subprocess
import sys
import sysconfig
from pathlib import Path

from tools.gather_wheels import PREINSTALLED, with_requirements

TORCHRUN = "#!{python}\nfrom torch.distributed.run import main\n\nmain()\n"


def make(folder: Path) -> Path:
    """Create the environment; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    python = folder.resolve() / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for name in with_requirements(PREINSTALLED):
        distribution = importlib.metadata.distribution(name)
        tops = {
            file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")
        }
        for top in tops:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))).resolve())
    torchrun = python.parent / "torchrun"
    torchrun.write_text(TORCHRUN.format(python=python))
    torchrun.chmod(0o755)
    return python


if __name__ == "__main__":
    make(Path(sys.argv[1]))
