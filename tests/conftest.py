"""Settings that all tests share."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.abilities import unable
from tests.distribution import PACKAGES, RECORDED_FROM, SECONDS, Units, left_out, seconds_of_units, unit_of
from tests.running import end_servers
from tools.run_tests import NODE, PART

# Thousands of tests on top of torch and transformers: the collector would search all of that again and again.
gc.set_threshold(100_000, 20, 100)

# A suite started in the background, or by nohup, ignores signals that its tests send to programs.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What is the same every time finds no more the more often it runs; `--hypothesis-profile=thorough` looks further.
settings.register_profile("same-every-time", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("same-every-time")


PROGRAM = "program"
"""The marker of a test that no other part has, and that is slow, nearly always because it starts a program.

What was recorded as slow has it. A file whose tests share something slow, the import of torch for instance, says so
itself, since the first one to run waits for it.
"""


IMPORTED = pytest.StashKey[set[str]]()
"""The modules that are imported once all tests are collected."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--short", action="store_true", help="leave out what is marked `full`")
    parser.addoption(
        "--also", action="append", default=[], metavar="PATH", help="but none of these, if short"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `--short` does, put first what takes longest, and tell the report the part of each test."""
    config.stash[IMPORTED] = {*sys.modules}
    if config.option.short:
        full = [item.nodeid for item in items if item.get_closest_marker("full")]
        left = {*left_out(full, tuple(config.option.also))}
        items[:] = [item for item in items if item.nodeid not in left]
    total = seconds_of_units(item.nodeid for item in items)
    items.sort(key=lambda item: -total[unit_of(item.nodeid)])
    for item in items:
        part = part_of(item)
        if part in (PACKAGES, PROGRAM):
            item.add_marker(part)
        item.user_properties += [(PART, part), (NODE, item.nodeid)]


def part_of(item: pytest.Item) -> str:
    if item.get_closest_marker("hosts"):
        return "hosts"
    if item.get_closest_marker("job"):
        return "deaths" if item.nodeid.startswith("tests/deaths/") else "jobs"
    if unit_of(item.nodeid) == PACKAGES:
        return PACKAGES
    is_slow = item.get_closest_marker(PROGRAM) or SECONDS.get(item.nodeid, 0) >= RECORDED_FROM
    return PROGRAM if is_slow else "fast"


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
def _a_plain_shell_around() -> Iterator[None]:
    """Forget the terminal, the job of Slurm and the umask that the tests are started with."""
    umask = os.umask(0o022)
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR") or name.startswith("SLURM_"):
                patch.delenv(name)
        yield
    os.umask(umask)


@pytest.fixture(scope="session", autouse=True)
def _no_fork_servers_are_left() -> Iterator[None]:
    yield
    end_servers()
