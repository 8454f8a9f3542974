"""The installed packages, asked offline: DeepSpeed takes this machine for a CPU, whatever it has."""

import logging
import os
from pathlib import Path

import pytest

os.environ.setdefault("DS_ACCELERATOR", "cpu")
logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)


HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup` one worker asks all packages, and no other imports them."""
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("job"):
            item.add_marker(pytest.mark.xdist_group("packages"))


@pytest.fixture(autouse=True)
def no_settings_of_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate fills in from these variables before it falls back to its own defaults."""
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
