"""The installed packages, asked offline: DeepSpeed takes this machine for a CPU, whatever it has."""

import logging
import os

import pytest

os.environ.setdefault("DS_ACCELERATOR", "cpu")
logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)


@pytest.fixture(autouse=True)
def no_settings_of_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accelerate fills in from these variables before it falls back to its own defaults."""
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
