"""A stall in words."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.diagnosis.deaths import GLOO_CLOSED, printed, raised, run, stopped
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.stall import StallEvidence, rank_names, silence, stall_lines
from zlaunch.diagnosis.uneven import unevenness
from zlaunch.rundir.record import SampleRecord


def test_ranks_in_one_place_stand_together_and_the_odd_one_is_marked() -> None:
    where = {
        0: "c10d.py:3 all_reduce",
        1: "train.py:7 read",
        2: "c10d.py:3 all_reduce",
        3: "c10d.py:3 all_reduce",
    }
    assert stall_lines(StallEvidence(75.0, 41, where, (1,)), 1.5, 80) == [
        "no progress for 1:15, in step 42; a step took 1.5 s:",
        "  ranks 0, 2-3: c10d.py:3 all_reduce",
        "  rank 1 (differs from the others): train.py:7 read",
    ]


def test_a_stall_without_a_known_step_time_names_only_the_step() -> None:
    (line, _) = stall_lines(StallEvidence(65.0, 7, {0: "a:1 f"}), None, 80)
    assert line == "no progress for 1:05, in step 8:"


def test_a_rank_that_did_not_answer_is_not_said_to_be_elsewhere() -> None:
    lines = stall_lines(
        StallEvidence(75.0, 0, {0: "a:1 f", 1: "did not answer; its process is stopped"}, (1,)), None, 80
    )
    assert lines == [
        "no progress for 1:15, before the end of the first step:",
        "  rank 0: a:1 f",
        "  rank 1: did not answer; its process is stopped",
    ]


@given(
    st.dictionaries(
        st.integers(0, 600), st.text(st.characters(min_codepoint=33, max_codepoint=126)), max_size=30
    )
)
def test_the_words_fit_and_name_every_rank(where: dict[int, str]) -> None:
    lines = stall_lines(StallEvidence(75.0, 3, where, tuple(where)[:1]), 2.0, 80)
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize(
    ("sample", "age", "words"),
    [
        ({"status": "stopped"}, 2.0, "did not answer; its process is stopped"),
        ({"status": "disk-sleep"}, 2.0, "did not answer; it is waiting for a disk or a network file system"),
        ({"status": "tracing-stop"}, 2.0, "did not answer; a debugger has stopped it"),
        ({"status": "running"}, 2.0, "did not answer"),
        ({"status": "running", "host": "w1"}, 61.0, "did not answer; no sample from `w1` for 1:01"),
        ({}, 0.0, "did not answer; it never sent a sample"),
    ],
)
def test_what_is_known_of_a_rank_that_did_not_answer_is_said(
    sample: SampleRecord, age: float, words: str
) -> None:
    assert silence(sample, age) == words


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0-1"),
        ([0, 1, 2, 5], "ranks 0-2, 5"),
        ([1, 3], "ranks 1, 3"),
        (list(range(0, 40, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_ranks_are_named_in_spans(ranks: list[int], name: str) -> None:
    assert rank_names(ranks) == name


def test_a_rank_that_had_finished_explains_the_stall_of_those_that_wait_for_it() -> None:
    stall = StallEvidence(60.0, step=4, where={0: "did not answer; it has ended", 1: "x.py:9 f"}, odd=(0,))
    verdict = diagnose(run(printed("", 0, phase="exiting", step=4), stopped(1, step=4), stall=stall))
    assert verdict.code == "stalled"
    assert "rank 0 had ended with status 0 after 4 steps while rank 1 was in step 5" in verdict.cause


@pytest.mark.parametrize(
    ("step", "known", "cause"),
    [
        (4, {}, "in step 5, and communicated with it"),
        (4, {"phase": "saving"}, "in `saving`, and communicated with it"),
        (4, {"heartbeat": {"steps": 4}}, "in `training`, and communicated with it"),
        (4, {"heartbeat": {"trained": True}}, "in `training`, and communicated with it"),
        (3, {}, None),
    ],
)
def test_uneven_ranks_are_told_apart_by_where_the_last_one_was(
    step: int, known: dict[str, Any], cause: str | None
) -> None:
    last = raised("RuntimeError", GLOO_CLOSED, rank=1, step=step, **known)
    found = unevenness(run(printed("", 0, phase="exiting", step=4), last))
    assert (found and found.cause) == (
        cause and f"rank 0 had ended with status 0 after 4 steps while rank 1 was {cause}"
    )
