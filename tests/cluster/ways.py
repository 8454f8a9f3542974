"""The losses of `loop.py`, whatever starts its ranks."""

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.running import zlaunch

MPI_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
LOOP = Path(__file__).with_name("loop.py")


def words(stage: int) -> list[str]:
    """What `zlaunch train` is told, apart from where."""
    return [str(LOOP), "--stage", str(stage), "--run-dir", "r"]


def losses(run: Path, rank: int = 0) -> list[str]:
    """The losses that a rank has printed."""
    return re.findall(
        r"^step \d+: loss (\S+)$", (run / "logs" / f"rank-{rank}.log").read_text(), re.MULTILINE
    )


@cache
def on_one_host(stage: int) -> list[str]:
    """The losses of two ranks on this machine."""
    with TemporaryDirectory() as folder:
        result = zlaunch("train", *words(stage), cwd=Path(folder))
        assert result.status == 0, result.err
        return losses(Path(folder) / "r")
