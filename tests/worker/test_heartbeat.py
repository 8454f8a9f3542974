"""What a script's process says of itself, in a file that others read meanwhile."""

import json
import math
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.running import Program
from zlaunch.rundir import phases
from zlaunch.worker.hook.heartbeat import Heartbeat
from zlaunch.worker.hook.own_file import FIRST_DESCRIPTOR

values = st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=400)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rank-0.pulse.json"


@pytest.fixture
def pulse(file: Path) -> Heartbeat:
    return Heartbeat(file)


@given(st.lists(st.dictionaries(st.sampled_from(["step", "loss", "tokens", "note"]), values), max_size=4))
def test_the_file_always_says_what_was_noted_last(
    tmp_path_factory: pytest.TempPathFactory, notes: list[dict[str, object]]
) -> None:
    file = tmp_path_factory.mktemp("pulse") / "rank-0.pulse.json"
    pulse = Heartbeat(file)
    for facts in notes:
        pulse.enter(phases.FORWARD, **facts)
        found = json.loads(file.read_text())
        assert {name: found[name] for name in facts} == facts
        assert found["phase"] == phases.FORWARD


def test_a_loss_that_is_no_number_is_written_as_such(pulse: Heartbeat, file: Path) -> None:
    pulse.note(loss=math.nan)
    assert math.isnan(json.loads(file.read_text())["loss"])


def test_a_loss_is_that_of_the_step_at_which_it_was_told(pulse: Heartbeat) -> None:
    pulse.note(step=1000, loss=2.0)
    pulse.note(step=1234)
    assert pulse.get("loss_step") == 1000


def test_a_number_is_lost_since_the_first_step_of_the_last_time(pulse: Heartbeat) -> None:
    for step, loss in enumerate((1.0, math.nan, 1.0, math.inf, math.nan), start=1):
        pulse.note(step=step, loss=loss)
    assert (pulse.get("loss_lost"), pulse.get("finite_loss_step")) == (4, 3)
    assert pulse.get("grad_norm_lost") is None


def test_what_a_trainer_logs_says_nothing_about_a_loss_that_the_engine_was_given(pulse: Heartbeat) -> None:
    pulse.note(step=6, step_loss=1.0, seen_loss_step=7)
    pulse.note(step=7, step_loss=math.nan, seen_loss_step=8)
    pulse.note(step=10, loss=0.0)
    assert (pulse.get("loss_lost"), pulse.get("finite_loss_step"), pulse.get("loss")) == (8, 7, 0.0)


def test_losses_of_the_engine_count_and_not_the_means_that_a_trainer_logs(tmp_path: Path) -> None:
    pulse = Heartbeat(tmp_path / "pulse")
    for step, loss in enumerate((5.0, 4.0, 3.0), start=1):
        pulse.note(step=step, step_loss=loss)
    assert (pulse.get("first_loss"), pulse.get("end_loss")) == (5.0, 3.0)
    pulse.note(step=3, loss=4.5)
    pulse.note(step=4, step_loss=1.0)
    assert (pulse.get("first_loss"), pulse.get("end_loss")) == (5.0, 1.0)


def test_what_cannot_be_written_leaves_what_was_there(pulse: Heartbeat, file: Path) -> None:
    pulse.note(step=7)
    circle: list[object] = []
    circle.append(circle)
    pulse.note(odd=circle)
    assert json.loads(file.read_text())["step"] == 7
    pulse.note(odd=None, step=8)
    assert json.loads(file.read_text())["step"] == 8


@pytest.mark.parametrize("name", ["since", "time"])
def test_no_number_of_a_script_takes_the_place_of_our_own(name: str, tmp_path: Path) -> None:
    own = Heartbeat(tmp_path / "pulse")
    own.enter(phases.TRAINING, **{name: 1.5})
    found = json.loads((tmp_path / "pulse").read_text())
    assert found["phase"] == phases.TRAINING
    assert found["time"] > 1e9
    assert found["since"] > 1e9


def test_only_the_process_that_began_it_writes(tmp_path: Path) -> None:
    own = Heartbeat(tmp_path / "pulse")
    if (child := os.fork()) == 0:
        own.note(step=99)
        os._exit(0)
    os.waitpid(child, 0)
    assert json.loads((tmp_path / "pulse").read_text())["step"] == 0


def test_a_file_of_the_script_is_never_written_to(tmp_path: Path) -> None:
    own = Heartbeat(tmp_path / "pulse")
    assert own._file.descriptor >= FIRST_DESCRIPTOR
    theirs = os.open(tmp_path / "theirs", os.O_CREAT | os.O_RDWR)
    os.dup2(theirs, own._file.descriptor)
    own.note(step=5)
    assert (tmp_path / "theirs").read_bytes() == b""


def test_a_directory_that_is_gone_is_no_reason_to_fail(tmp_path: Path) -> None:
    Heartbeat(tmp_path / "not there" / "pulse").note(step=1)


def test_a_reader_sees_no_half_of_a_pulse(tmp_path: Path) -> None:
    writing = (
        "import sys\nfrom pathlib import Path\nfrom zlaunch.worker.hook.heartbeat import Heartbeat\n"
        "own = Heartbeat(Path(sys.argv[1]))\nwhile True: own.enter('forward', step=own.get('step') + 1)"
    )
    file = tmp_path / "pulse"
    with Program([sys.executable, "-c", writing, file]) as writer:
        steps: list[int] = []
        until = time.monotonic() + 20
        while len(steps) < 500 and time.monotonic() < until:
            text = file.read_text() if file.exists() else ""
            steps += [json.loads(text)["step"]] if text else []
        writer.kill()
    assert steps
    assert steps == sorted(steps)


@pytest.mark.parametrize(
    ("losses", "end", "count"), [([9, 5], 5, 1), ([9, 8, 7, 6, 5, 5, 5, 4, 4, 4, 4, 44], 4, 3)]
)
def test_the_loss_at_the_end_is_a_median_that_one_small_batch_does_not_move(
    losses: list[float], end: float, count: int, tmp_path: Path
) -> None:
    pulse = Heartbeat(tmp_path / "pulse")
    for step, loss in enumerate(losses, start=1):
        pulse.note(step=step, loss=loss)
    assert (pulse.get("end_loss"), pulse.get("end_losses")) == (end, count)
