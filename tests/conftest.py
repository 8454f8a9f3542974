"""Settings that all tests share."""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.abilities import unable
from tests.distribution import PACKAGES, Units, seconds, unit_of
from tests.running import end_servers
from tools.run_tests import PART

# Thousands of tests on top of torch and transformers: the collector would search all of that again and again.
gc.set_threshold(100_000, 20, 100)

# A suite started in the background, or by nohup, ignores signals that its tests send to programs.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What is the same every time finds no more the more often it runs; `--hypothesis-profile=thorough` looks further.
settings.register_profile("same-every-time", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("same-every-time")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what takes longest, and tell the report which part of the tests each belongs to."""
    items.sort(key=lambda item: -seconds(item.nodeid))
    for item in items:
        if unit_of(item.nodeid) == PACKAGES:
            item.add_marker(PACKAGES)
        item.user_properties.append((PART, part_of(item)))


def part_of(item: pytest.Item) -> str:
    if item.get_closest_marker("hosts"):
        return "hosts"
    if not item.get_closest_marker("job"):
        return PACKAGES if item.get_closest_marker(PACKAGES) else "fast"
    return "deaths" if item.nodeid.startswith("tests/deaths/") else "jobs"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Units | None:
    """Share the tests out by our own units where files would be shared out."""
    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return Units(config, log)


def pytest_sessionfinish() -> None:
    """Spare pytest's last five collections of garbage a walk through torch and transformers."""
    gc.freeze()


@pytest.fixture(scope="session")
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
def _no_fork_servers_are_left() -> Iterator[None]:
    yield
    end_servers()
