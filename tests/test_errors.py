import pytest

from zlaunch.errors import (
    ExitStatus,
    Finding,
    InputMissing,
    Refused,
    Unavailable,
    WrongUsage,
    ZlaunchError,
)


def test_the_exit_statuses_are_those_that_were_frozen() -> None:
    assert {status.name: status.value for status in ExitStatus} == {
        "OK": 0,
        "USAGE": 2,
        "REFUSED": 65,
        "NO_INPUT": 66,
        "UNAVAILABLE": 69,
        "SAVED": 75,
    }


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WrongUsage("no"), ExitStatus.USAGE),
        (InputMissing("no"), ExitStatus.NO_INPUT),
        (Unavailable("no"), ExitStatus.UNAVAILABLE),
        (Refused([]), ExitStatus.REFUSED),
    ],
)
def test_each_kind_of_error_has_its_exit_status(error: ZlaunchError, status: ExitStatus) -> None:
    assert error.status is status


@pytest.mark.parametrize(("count", "text"), [(1, "1 problem found"), (2, "2 problems found")])
def test_a_refusal_counts_its_findings(count: int, text: str) -> None:
    assert Refused([Finding("code", "message")] * count).message == text
