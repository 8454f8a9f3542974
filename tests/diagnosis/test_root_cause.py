import itertools
import signal
from dataclasses import replace
from typing import Any

import pytest

from tests.diagnosis.deaths import (
    GLOO_CLOSED,
    GLOO_TIMEOUT,
    WATCHDOG,
    kills,
    printed,
    raised,
    run,
    stopped,
)
from tests.each import each
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.evidence import Evidence, RankEvidence
from zlaunch.diagnosis.outcome import judge_outcome
from zlaunch.diagnosis.root_cause import RankRole, role_of, root_cause

FAILED = {
    "its own exception": raised("KeyError", "'x'"),
    "a SIGKILL": printed("step 3\n", -9),
    "a crash": printed("", -11),
    "a status": printed("no data\n", 3),
    "an exception, then an abort": raised("KeyError", "'x'", returncode=-6),
    "an exception, then a SIGTERM": raised("KeyError", "'x'", returncode=-15, stopped_by=15),
}
DRAGGED = {
    "a peer that closed": raised("RuntimeError", GLOO_CLOSED),
    "a peer that reset": raised(
        "RuntimeError", "[pair.cc:553] Read error [127.0.0.1]:1: Connection reset by peer"
    ),
    "gloo's patience": raised("RuntimeError", GLOO_TIMEOUT),
    "the watchdog": printed(WATCHDOG.format(rank=0, number=3, kind="ALLREDUCE"), -6),
    "an NCCL remote error": raised(
        "DistBackendError", "NCCL error: remote process exited or there was a network error, ncclRemoteError"
    ),
    "a rendezvous": raised(
        "DistStoreError", "Timed out after 5 seconds waiting for clients. 1/2 clients joined."
    ),
    "a SIGTERM that was passed on": stopped(),
    "a SIGTERM to all": printed("", -15),
    "a keyboard": raised("KeyboardInterrupt", ""),
}


def at(rank: RankEvidence, number: int, seconds: float) -> RankEvidence:
    error = rank.error and replace(rank.error, time=seconds)
    return replace(rank, rank=number, ended=seconds, error=error)


def culprit(evidence: Evidence) -> int | None:
    rank = root_cause(evidence)
    return None if rank is None else rank.rank


@each(("failed", "dragged"), [*itertools.product(FAILED, DRAGGED)])
def test_who_was_dragged_down_is_not_blamed_even_if_it_ended_first(failed: str, dragged: str) -> None:
    assert culprit(run(at(DRAGGED[dragged], 0, 1.0), at(FAILED[failed], 1, 2.0))) == 1


@pytest.mark.parametrize("failed", FAILED)
def test_of_two_that_failed_the_first_is_blamed(failed: str) -> None:
    assert culprit(run(at(FAILED[failed], 0, 9.0), at(FAILED["a status"], 1, 8.0))) == 1


def test_an_exception_counts_from_when_it_was_raised() -> None:
    slow_to_leave = replace(raised("KeyError", "'x'", time=5.0), ended=60.0)
    assert culprit(run(at(FAILED["a crash"], 0, 6.0), replace(slow_to_leave, rank=1))) == 1


def test_a_rank_that_is_gone_comes_before_one_that_lost_its_connection() -> None:
    gone = replace(printed("step 3\n", rank=1), returncode=None)
    assert culprit(run(DRAGGED["a peer that closed"], gone)) == 1


def test_a_rank_that_is_gone_is_not_to_blame_if_its_launcher_was_killed() -> None:
    gone = replace(printed("", rank=1), returncode=None, log="importing")
    evidence = run(DRAGGED["a peer that closed"], gone)
    assert culprit(evidence) == 1
    assert culprit(replace(run(stopped(), gone), launcher_returncode=-signal.SIGKILL)) is None


def test_a_rank_that_never_began_is_not_to_blame() -> None:
    assert culprit(run(RankEvidence(0), RankEvidence(1))) is None


def test_nobody_is_blamed_for_a_good_end() -> None:
    assert culprit(run(printed("", 0), printed("", 0, rank=1))) is None


def test_ranks_that_were_only_told_to_stop_are_not_blamed() -> None:
    assert culprit(run(stopped(0), stopped(1))) is None


def test_a_kill_after_a_persons_signal_is_part_of_stopping() -> None:
    assert role_of(printed("", -9), Evidence(stopped_by=signal.SIGINT)) is RankRole.STOPPED


def test_a_crash_is_a_failure_even_if_a_person_then_stopped_the_rest() -> None:
    assert culprit(run(stopped(0), printed("", -11, rank=1), stopped_by=signal.SIGINT)) == 1


def test_a_sigterm_that_hit_only_one_rank_is_where_it_began() -> None:
    asked = at(printed("", -15), 0, 1.04)  # the parent notices an end later than the peers do
    assert culprit(run(asked, raised("RuntimeError", GLOO_CLOSED, rank=1, time=1.0))) == 0


def test_a_rank_that_waited_in_vain_comes_before_those_that_then_lost_it() -> None:
    first = raised("RuntimeError", GLOO_TIMEOUT, time=2.0)
    assert culprit(run(raised("RuntimeError", GLOO_CLOSED, rank=1, time=1.9), replace(first, rank=2))) == 2


def test_a_rank_that_was_ended_after_another_had_waited_in_vain_did_not_begin_it() -> None:
    assert (
        culprit(run(at(printed("", -15), 0, 3.0), raised("RuntimeError", GLOO_TIMEOUT, rank=1, time=2.0)))
        == 1
    )


CTRL_C: dict[str, Any] = {"stopped_by": signal.SIGINT, "stopped_at": 10.0, "stopped_on": "w1"}


@pytest.mark.parametrize("failed", FAILED)
def test_what_fails_after_a_stop_follows_from_it(failed: str) -> None:
    rank = replace(FAILED[failed], stopped_at=10.0)
    assert culprit(run(at(rank, 0, 11.0), stopped(1), **CTRL_C)) is None
    assert culprit(run(at(rank, 0, 9.0), stopped(1), **CTRL_C)) == 0


def test_the_clock_of_another_host_does_not_show_what_came_first() -> None:
    elsewhere = replace(at(FAILED["a crash"], 0, 11.0), host="w2")
    assert culprit(run(elsewhere, stopped(1), **CTRL_C)) == 0


@pytest.mark.parametrize("launcher", [-9, 1])
@pytest.mark.parametrize("ended", [{"stopped_by": 2}, {"is_diverged": True}])
def test_what_zlaunch_kills_itself_is_no_out_of_memory_kill(launcher: int, ended: dict[str, Any]) -> None:
    lost = replace(printed("step 3\n", rank=0), returncode=None)
    killed = run(lost, launcher_returncode=launcher, oom_kills=kills(1, 1), **ended)
    assert diagnose(killed).code != "host-out-of-memory"


def test_a_rank_that_the_kernel_killed_before_a_stop_is_the_cause() -> None:
    evidence = run(at(printed("", -9), 0, 9.0), stopped(1), oom_kills=kills(1, 1), **CTRL_C)
    assert diagnose(evidence).code == "host-out-of-memory"


LOST = replace(printed("step 3\n", rank=0), returncode=None)


@pytest.mark.parametrize(
    ("rank", "launcher", "cause"), [(stopped(0), -9, "launcher-killed"), (LOST, 1, "rank-lost")]
)
@pytest.mark.parametrize(("since", "is_cause"), [(9.0, True), (9.9, False), (10.1, False)])
def test_what_was_killed_before_a_stop_is_the_cause(
    rank: RankEvidence, launcher: int, cause: str, since: float, is_cause: bool
) -> None:
    told = replace(stopped(1), stopped_at=since)
    code = diagnose(run(rank, told, launcher_returncode=launcher, **CTRL_C)).code
    assert code == (cause if is_cause else "stopped")


def test_a_rank_that_times_out_after_a_stop_follows_from_it() -> None:
    late, early = (at(raised("RuntimeError", GLOO_TIMEOUT), 0, 10.0 + seconds) for seconds in (5.0, -5.0))
    codes = [diagnose(run(rank, stopped(1), **CTRL_C)).code for rank in (late, early)]
    assert codes == ["stopped", "collective-timeout"]


@pytest.mark.parametrize("words", [GLOO_CLOSED, GLOO_TIMEOUT])
@pytest.mark.parametrize(("raised_at", "is_cause"), [(9.0, True), (10.1, False)])
def test_a_rank_whose_peer_ended_with_a_killed_launcher_is_not_to_blame(
    words: str, raised_at: float, is_cause: bool
) -> None:
    cut_off = at(raised("RuntimeError", words), 0, raised_at)
    evidence = run(cut_off, replace(stopped(1), stopped_at=10.0), launcher_returncode=-signal.SIGKILL)
    outcome = judge_outcome(evidence, diagnose(evidence))
    assert (outcome.exit_status, culprit(evidence)) == ((1, 0) if is_cause else (137, None))


def test_a_rank_that_fails_while_its_killed_launcher_takes_the_others_down_is_to_blame() -> None:
    told = replace(stopped(1), stopped_at=10.0)
    failed = at(FAILED["its own exception"], 0, 10.1)
    assert culprit(run(failed, told, launcher_returncode=-signal.SIGKILL)) == 0


@each(
    ("rank", "when"),
    [
        (raised("ValueError", "x", rank=1, phase="backward", step=2), "in step 3"),
        (raised("ValueError", "x", rank=1, phase="forward", step=2), "in step 3"),
        (raised("ValueError", "x", rank=1, phase="training", step=2), "after step 2"),
        (raised("ValueError", "x", rank=1, phase="loading the model", step=0), None),
        (raised("ValueError", "x", rank=1, phase="backward", step=0), None),
        (
            raised("ValueError", "x", rank=1, phase="backward", step=0, heartbeat={"first_step": 500}),
            "in step 501",
        ),
        (printed("", -signal.SIGKILL, rank=1, phase="optimizer step", step=2), "in step 3"),
        (printed("", -signal.SIGKILL, rank=1, phase="forward", step=2), "after step 2"),
    ],
)
def test_the_verdict_has_the_step_of_the_rank_that_failed(rank: RankEvidence, when: str | None) -> None:
    other = raised("RuntimeError", GLOO_CLOSED, rank=0, step=7)
    verdict = diagnose(run(other, rank))
    assert (verdict.rank, verdict.when) == (1, when)
