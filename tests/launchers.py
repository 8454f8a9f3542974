"""What a test runs with, such as launchers: one of them on a commit, in turn, and all of them in `make deaths`."""

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

LAUNCHERS = ("torchrun", "deepspeed")
EVERY_LAUNCHER = "ZLAUNCH_EVERY_LAUNCHER"

FIRST_OF_EACH = [LAUNCHERS[0], pytest.param(LAUNCHERS[1], marks=pytest.mark.full)]
LAST_OF_EACH = [pytest.param(LAUNCHERS[0], marks=pytest.mark.full), LAUNCHERS[1]]
"""The launchers, of which `make test` takes one."""

Launcher = TypeVar("Launcher")


def taken(launchers: Sequence[Launcher], number: int) -> Sequence[Launcher]:
    """Take a launcher in turn; with ZLAUNCH_EVERY_LAUNCHER, as in `make deaths`, take all."""
    return launchers if os.environ.get(EVERY_LAUNCHER) else [launchers[number % len(launchers)]]
