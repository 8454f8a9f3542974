"""Make a Python that has torch and transformers, what these need, pip, and nothing else.

    python -m tools.bare_python FOLDER

What `make gpu-rehearsal` takes for the Python of a machine with a GPU. The packages are links to those here.
"""

import importlib.metadata
import subprocess
import sys
import sysconfig
from pathlib import Path

from tools.gather_wheels import GIVEN, with_needs

TORCHRUN = "#!{python}\nfrom torch.distributed.run import main\n\nmain()\n"


def make(folder: Path) -> Path:
    """Make it; return its program."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    python = folder.resolve() / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for name in with_needs(GIVEN):
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
