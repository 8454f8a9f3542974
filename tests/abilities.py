"""What a test needs of the machine. Without it the test is skipped; in CI, where tests must be whole, it fails."""

import os

import pytest


def unable(what: str) -> None:
    """Say what this machine does not have or allow."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def need_root(what: str) -> None:
    """End a test that only root can run."""
    if os.geteuid() != 0:
        unable(f"only root can {what}")
