"""The table of systems names tests that exist."""

from tests.running import ROOT
from tools.write_systems import SYSTEMS


def test_every_system_is_proven_by_tests_that_exist() -> None:
    lacking = [
        (one.name, file, test)
        for one in SYSTEMS
        for file, tests in one.proofs
        for test in tests
        if f"\ndef {test}(" not in (ROOT / "tests" / file).read_text("utf-8")
    ]
    assert lacking == []
    assert len(SYSTEMS) == 20
    assert all(one.proofs for one in SYSTEMS)
