"""What tests of a machine share."""

import pytest


@pytest.fixture(autouse=True)
def _builds_release_their_locks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No torch is between closing its lock and deleting it here, so nothing is waited for."""
    monkeypatch.setattr("zlaunch.hosts.machine.build_lock._RELEASE_SECONDS", 0.0)
