import signal
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.outcome import Outcome, exit_status
from zlaunch.outcome import judge_end as judge_end_of

FINISHED = {"rank": 0, "returncode": 0, "stopped_by": None, "ended": 1.0}


def judge_end(launcher: int, stopped_by: int | None, ranks: Sequence[Mapping[str, object]]) -> Outcome:
    return judge_end_of(launcher, stopped_by, ranks, len(ranks))


def _failed(rank: int, returncode: int, ended: float, stopped_by: int | None = None) -> dict[str, object]:
    return {"rank": rank, "returncode": returncode, "ended": ended, "stopped_by": stopped_by}


def test_a_job_whose_ranks_all_return_zero_finished() -> None:
    assert judge_end(0, None, [FINISHED, FINISHED]) == Outcome("finished", 0, 0)


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_job_that_a_signal_stopped_says_which(signum: int, status: int) -> None:
    assert judge_end(0, signum, []) == Outcome("stopped", status, -signum)


def test_a_job_that_was_stopped_did_not_fail() -> None:
    assert judge_end(1, signal.SIGINT, [_failed(0, 1, 1.0)]).how == "stopped"


def test_the_rank_that_failed_first_decides_the_status() -> None:
    assert judge_end(1, None, [_failed(0, 9, 2.0), _failed(1, 3, 1.0)]).exit_status == 3


def test_the_rank_that_failed_first_is_the_cause() -> None:
    first = _failed(1, 3, 1.0)
    assert judge_end(1, None, [_failed(0, 9, 2.0), first]).first_failure == first


def test_a_rank_that_was_told_to_stop_is_not_the_cause() -> None:
    stopped, cause = _failed(0, -15, 1.0, stopped_by=15), _failed(1, 3, 2.0)
    assert judge_end(1, None, [stopped, cause]).first_failure == cause


def test_a_rank_that_a_signal_killed_has_the_status_of_a_shell() -> None:
    assert judge_end(1, None, [_failed(0, -9, 1.0)]).exit_status == 137


def test_a_launcher_that_fails_alone_decides_the_status() -> None:
    assert judge_end(4, None, [FINISHED]) == Outcome("failed", 4, 4)


def test_a_rank_without_a_return_code_was_lost() -> None:
    lost = {"rank": 1, "host": "w1"}
    assert judge_end(0, None, [FINISHED, lost]) == Outcome("failed", 137, -9, lost)


@given(st.integers(-64, 255))
def test_only_success_looks_like_success(returncode: int) -> None:
    assert (exit_status(returncode) == 0) == (returncode == 0)


@given(st.integers(-64, 255), st.lists(st.integers(-64, 255), max_size=4))
def test_a_job_finishes_only_if_nothing_failed(launcher: int, returncodes: list[int]) -> None:
    ranks = [_failed(rank, code, float(rank)) for rank, code in enumerate(returncodes)]
    assert (judge_end(launcher, None, ranks).exit_status == 0) == (not any([launcher, *returncodes]))


def test_a_job_that_left_no_records_did_not_finish() -> None:
    assert judge_end_of(0, None, [], 2).exit_status == 1


def test_a_status_above_128_is_no_signal() -> None:
    assert judge_end(1, None, [_failed(0, 255, 1.0)]).returncode == 255
