"""Settings that all tests share."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.abilities import unable
from tests.running import end_server

# A suite started in the background, or by nohup, ignores signals that its tests send to programs.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("same-every-time", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("same-every-time")


@pytest.fixture
def libaio() -> None:
    """NVMe offload needs the headers of libaio; `make test` installs them where it can."""
    if not Path("/usr/include/libaio.h").exists():
        unable("libaio-dev is not installed")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep forecasts where no other run of the tests finds them; the workers of this one share them."""
    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "ZLAUNCH_CACHE", str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache")
        )
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_fork_server_is_left() -> Iterator[None]:
    yield
    end_server()
