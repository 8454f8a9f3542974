"""What is said of a profile that is not there, or holds other steps than were asked for."""

import json
from pathlib import Path

import pytest

from zlaunch.rundir.run_files import RunFiles
from zlaunch.runs.profile import profile_note

ASKED = ["/bin/zlaunch", "train", "--profile", "10-12@0,1", "train.py", "--", "--profile", "1"]


def run(
    root: Path,
    began: int,
    recorded: tuple[int, int] | None = None,
    asked: list[str] = ASKED,
    reached: int = 0,
    **more: int,
) -> RunFiles:
    (root / "ranks").mkdir()
    if recorded is not None:
        record = {"version": 1, "first": recorded[0], "last": recorded[1], **more}
        (root / "ranks" / "rank-0.operations.json").write_text(json.dumps(record))
    profile = {"first": 10, "last": 12, "ranks": [0, 1], "with_nsys": False}
    job = {"profile": profile, "asked": asked}
    return RunFiles(root).holding(job=job, heartbeats={0: {"first_step": began, "step": reached}})


@pytest.mark.parametrize("began", [12, 20])
def test_steps_that_were_done_before_a_run_are_told_with_the_command_for_others(
    tmp_path: Path, began: int
) -> None:
    steps = f"{began + 1}-{began + 3}"
    assert profile_note(run(tmp_path, began)) == (
        f"steps 10 to 12 to profile were done before this run began at step {began}: "
        f"`zlaunch train --profile {steps}@0,1 train.py -- --profile 1`"
    )


def test_an_option_that_is_not_in_the_command_line_is_named_alone(tmp_path: Path) -> None:
    note = profile_note(run(tmp_path, 20, asked=["zlaunch", "train", "train.py", "--", "--profile", "1"]))
    assert str(note).endswith("began at step 20: `--profile 21-23`")


def test_a_profile_that_began_later_says_which_steps_it_has(tmp_path: Path) -> None:
    note = profile_note(run(tmp_path, 10, recorded=(11, 12)))
    assert note == "the profile has steps 11 to 12: the run began at step 10"


def test_nothing_is_said_of_a_whole_profile(tmp_path: Path) -> None:
    assert profile_note(run(tmp_path, 0, recorded=(10, 12))) is None


def test_a_profile_of_steps_that_did_not_end_says_how_many_are_whole(tmp_path: Path) -> None:
    note = profile_note(run(tmp_path, 0, recorded=(10, 10), whole_steps=0))
    assert note == "the profile has 0 whole steps of steps 10 to 12: the script ended before step 10 did"


def test_a_run_that_did_not_reach_the_steps_says_how_far_it_came(tmp_path: Path) -> None:
    note = profile_note(run(tmp_path, 0, reached=4))
    assert note == "no profile was written: the last step that the run reported is 4, before step 10"


def test_a_run_that_may_have_been_in_the_steps_is_not_said_to_have_ended_before_them(tmp_path: Path) -> None:
    note = profile_note(run(tmp_path, 0, reached=9))
    assert note == (
        "no profile was written: the last step that the run reported is 9, and the rank ended without writing one"
    )
