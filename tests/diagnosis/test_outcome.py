import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.diagnosis.evidence import ErrorEvidence, Evidence, RankEvidence, SaveEvidence
from zlaunch.diagnosis.outcome import Outcome, exit_status
from zlaunch.diagnosis.outcome import judge_outcome as judge_outcome_of
from zlaunch.diagnosis.stall import StallEvidence
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.rundir import phases

FINISHED = RankEvidence(0, returncode=0, ended=1.0, phase=phases.EXITING)
UNKNOWN = Verdict("unknown", "nobody knows")


def judge_outcome(
    launcher: int, stopped_by: int | None, ranks: Sequence[RankEvidence], verdict: Verdict = UNKNOWN
) -> Outcome:
    evidence = Evidence(ranks=tuple(ranks), launcher_returncode=launcher, stopped_by=stopped_by)
    return judge_outcome_of(evidence, verdict)


def failed(rank: int, returncode: int | None, ended: float, stopped_by: int | None = None) -> RankEvidence:
    return RankEvidence(rank, returncode=returncode, ended=ended, stopped_by=stopped_by, phase=phases.FORWARD)


def leaving(rank: int, returncode: int, error: ErrorEvidence | None = None) -> RankEvidence:
    return RankEvidence(rank, returncode=returncode, ended=2.0, phase=phases.EXITING, error=error)


def test_a_job_whose_ranks_all_return_zero_finished() -> None:
    assert judge_outcome(0, None, [FINISHED, FINISHED]) == Outcome("finished", 0, 0)


@pytest.mark.parametrize("code", ["loss-not-a-number", "autotuning-left-on"])
def test_a_job_that_finished_in_vain_says_so(code: str) -> None:
    verdict = Verdict(code, "nothing came of it")
    assert judge_outcome(0, None, [FINISHED, FINISHED], verdict) == Outcome("finished", 0, 0, verdict)


def test_a_job_whose_ranks_all_return_zero_is_done_even_if_its_launcher_falls() -> None:
    outcome = judge_outcome(-9, None, [FINISHED, FINISHED])
    assert (outcome.how, outcome.exit_status) == ("stumbled", 0)


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_job_that_a_signal_stopped_says_which(signum: int, status: int) -> None:
    assert judge_outcome(0, signum, []) == Outcome("stopped", status, -signum, UNKNOWN)


def test_a_job_that_was_stopped_did_not_fail() -> None:
    assert judge_outcome(1, signal.SIGINT, [failed(0, 1, 1.0)]).how == "stopped"


def test_a_job_that_was_ended_for_its_stall_says_so() -> None:
    evidence = Evidence(ranks=(failed(0, -15, 1.0, 15),), launcher_returncode=1, stall=StallEvidence(61.0))
    assert judge_outcome_of(evidence, UNKNOWN) == Outcome("stalled", 124, -15, UNKNOWN)


def test_a_job_that_its_time_limit_ended_unsaved_has_the_status_of_timeout() -> None:
    unsaved = SaveEvidence("`--time-limit` (60 s)", why_not="it had not taken its first step", is_limit=True)
    ended = Evidence(ranks=(failed(0, -15, 1.0, 15),), stopped_by=signal.SIGTERM, save=unsaved)
    assert judge_outcome_of(ended, UNKNOWN) == Outcome("stopped", 124, -15, UNKNOWN)
    by_user = replace(ended, save=replace(unsaved, is_limit=False))
    assert judge_outcome_of(by_user, UNKNOWN).exit_status == 143


def test_a_stall_that_was_only_told_decides_nothing() -> None:
    told = StallEvidence(61.0, ended_job=False)
    died = Evidence(ranks=(failed(0, 3, 1.0),), launcher_returncode=1, stall=told)
    assert judge_outcome_of(died, UNKNOWN).exit_status == 3
    assert judge_outcome_of(replace(died, stopped_by=signal.SIGINT), UNKNOWN).how == "stopped"


def test_the_rank_that_failed_first_decides_the_status() -> None:
    assert judge_outcome(1, None, [failed(0, 9, 2.0), failed(1, 3, 1.0)]).exit_status == 3


def test_the_rank_that_is_blamed_decides_the_status() -> None:
    blamed = Verdict("killed", "rank 0 was killed", rank=0)
    assert judge_outcome(1, None, [failed(0, -9, 2.0), failed(1, 1, 1.0)], blamed).exit_status == 137


def test_a_lost_rank_was_killed_but_nothing_is_known_of_one_on_a_lost_host() -> None:
    ranks = [failed(0, 3, 2.0), failed(1, None, 1.0)]
    for code, status in (("rank-lost", 137), ("host-lost", 3)):
        assert judge_outcome(1, None, ranks, Verdict(code, "rank 1 is gone", rank=1)).exit_status == status


def test_a_rank_that_was_told_to_stop_decides_nothing() -> None:
    stopped, cause = failed(0, -15, 1.0, stopped_by=15), failed(1, 3, 2.0)
    assert judge_outcome(1, None, [stopped, cause]).exit_status == 3


@pytest.mark.parametrize("launcher", [0, 1])
def test_a_job_with_a_rank_that_was_told_to_stop_is_no_success(launcher: int) -> None:
    assert judge_outcome(launcher, None, [FINISHED, failed(1, -15, 1.0, 15)]).exit_status == 1


def test_a_rank_that_a_signal_killed_has_the_status_of_a_shell() -> None:
    assert judge_outcome(1, None, [failed(0, -9, 1.0)]).exit_status == 137


def test_a_launcher_that_fails_alone_decides_the_status() -> None:
    assert judge_outcome(4, None, [failed(0, None, 1.0)]) == Outcome("failed", 4, 4, UNKNOWN)


def test_a_rank_without_a_return_code_was_lost() -> None:
    assert judge_outcome(0, None, [FINISHED, failed(1, None, 1.0)]) == Outcome("failed", 137, -9, UNKNOWN)


@pytest.mark.parametrize("launcher", [0, 1, 247])
def test_a_lost_rank_was_killed_whatever_its_launcher_says(launcher: int) -> None:
    lost = Verdict("rank-lost", "rank 1 is gone", rank=1)
    ranks = [failed(0, -15, 2.0, 15), failed(1, None, 1.0)]
    assert judge_outcome(launcher, None, ranks, lost).exit_status == 137


def test_a_rank_that_falls_while_python_leaves_has_only_stumbled() -> None:
    outcome = judge_outcome(1, None, [FINISHED, leaving(1, -signal.SIGABRT)])
    assert (outcome.how, outcome.exit_status, outcome.returncode) == ("stumbled", 0, -6)


def test_a_rank_that_falls_while_another_trains_has_failed() -> None:
    assert judge_outcome(1, None, [failed(0, -15, 2.0, 15), leaving(1, -signal.SIGABRT)]).how == "failed"


def test_a_rank_that_was_told_to_stop_has_not_trained_to_its_end_although_it_returns_zero() -> None:
    told = RankEvidence(0, returncode=0, stopped_by=15, ended=1.0, phase=phases.EXITING)
    assert judge_outcome(-9, None, [told, told]).how == "failed"


def test_an_exception_is_no_stumbling_although_python_leaves_after_it() -> None:
    error = ErrorEvidence("RuntimeError", "the cause")
    assert judge_outcome(1, None, [FINISHED, leaving(1, -signal.SIGABRT, error)]).how == "failed"


def test_a_rank_that_is_ended_while_it_leaves_with_an_exception_has_the_status_of_the_exception() -> None:
    error = ErrorEvidence("ValidationError", "the cause")
    ranks = [leaving(0, -signal.SIGTERM, error), failed(1, -signal.SIGTERM, 2.0, signal.SIGTERM)]
    assert judge_outcome(1, None, ranks).exit_status == 1


def test_a_rank_that_is_interrupted_says_so() -> None:
    error = ErrorEvidence("KeyboardInterrupt", "")
    assert judge_outcome(1, None, [leaving(0, -signal.SIGINT, error)]).exit_status == 130


def test_a_script_that_exits_with_a_status_has_failed() -> None:
    assert judge_outcome(1, None, [FINISHED, leaving(1, 3)]).exit_status == 3


@given(st.integers(-64, 255).filter(bool))
def test_a_failure_never_looks_like_success(returncode: int) -> None:
    assert exit_status(returncode) != 0


@given(st.lists(st.integers(-64, 255), min_size=1, max_size=4), st.integers(-64, 255))
def test_only_a_job_all_of_whose_ranks_ended_well_looks_like_success(codes: list[int], launcher: int) -> None:
    ranks = [failed(rank, code, float(rank)) for rank, code in enumerate(codes)]
    assert (judge_outcome(launcher, None, ranks).exit_status == 0) == all(code == 0 for code in codes)
