import fcntl
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.running import ROOT, run, with_own_programs


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints that two real ranks have saved, by `save`; all workers of the tests share them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "checkpoints"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "saved").exists():
            program = (
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node",
                2,
                "-m",
                "tests.checkpoint.save",
            )
            result = run(*program, folder / "saving", cwd=ROOT, env=with_own_programs())
            assert result.status == 0, result.err
            (folder / "saving").rename(folder / "saved")
    return folder / "saved"


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copy one of the saved checkpoints, to change it."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(saved / name, tmp_path / name))

    return copy
