import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.ranks import run_ranks


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints that two real ranks have saved, by `save`; all workers of the tests share them."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "checkpoints"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "saved").exists():
            run_ranks(2, "tests.checkpoint.save", folder / "saving")
            (folder / "saving").rename(folder / "saved")
    return folder / "saved"


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copy one of the saved checkpoints, to change it."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(saved / name, tmp_path / name))

    return copy
