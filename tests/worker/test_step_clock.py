"""What belongs to which part of a step, with functions that stand for those of torch and DeepSpeed."""

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.rundir import phases
from zlaunch.worker.hook import step_clock
from zlaunch.worker.hook.step_clock import PARTS, WARM_UP, StepClock

names = st.sampled_from([*phases.STEPS, phases.SAVING])


class Time:
    """Stands for the module `time`; to read the clock takes a second, in which the thread computes."""

    def __init__(self) -> None:
        self.now = self.slept = 0.0

    def perf_counter(self) -> float:
        self.now += 1
        return self.now

    monotonic = perf_counter

    def thread_time(self) -> float:
        return self.now - self.slept

    def compute(self, seconds: float) -> None:
        self.now += seconds

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


@pytest.fixture
def own_time(monkeypatch: pytest.MonkeyPatch) -> Time:
    own = Time()
    monkeypatch.setattr(step_clock, "time", own)
    return own


@given(st.lists(st.tuples(names, st.sampled_from([None, *phases.PARTS])), min_size=1, max_size=20))
def test_all_time_belongs_to_exactly_one_part(visits: list[tuple[str, str | None]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_clock, "time", own := Time())
        clock = StepClock()
        began = own.now
        for phase, part in visits:
            clock.enter_phase(phase)
            if part is not None and (outer := clock.enter(part)) is not None:
                clock.leave(outer)
        clock.enter_phase(phases.EXITING)
    assert sum(clock.spent.values()) == own.now - began


def module(name: str, **functions: Any) -> Any:
    made = ModuleType(name)
    vars(made).update(functions)
    return made


def timed(clock: StepClock, name: str, **functions: Any) -> Any:
    made = module(name, **functions)
    clock.watch(made)
    return made


def test_communication_within_a_pass_is_no_time_of_the_pass(own_time: Time) -> None:
    clock = StepClock()
    c10d = timed(clock, "torch.distributed.distributed_c10d", all_reduce=lambda: own_time.sleep(20))
    clock.enter_phase(phases.BACKWARD)
    c10d.all_reduce()
    own_time.compute(50)
    clock.enter_phase(phases.TRAINING)
    assert 20 <= clock.spent[phases.COMMUNICATION] < 50 <= clock.spent[phases.BACKWARD] < 70


def test_a_collective_that_waits_for_its_own_work_is_counted_once(own_time: Time) -> None:
    clock = StepClock()

    class Work:
        def wait(self) -> None:
            own_time.sleep(20)

    c10d = timed(clock, "torch.distributed.distributed_c10d", all_reduce=lambda: Work().wait(), Work=Work)
    clock.enter_phase(phases.BACKWARD)
    c10d.all_reduce()
    clock.enter_phase(phases.TRAINING)
    assert 20 <= clock.spent[phases.COMMUNICATION] < 40


def test_data_of_an_evaluation_belongs_to_the_evaluation() -> None:
    clock = StepClock()

    class _BaseDataLoaderIter:
        def __next__(self) -> None: ...

    loader = timed(clock, "torch.utils.data.dataloader", _BaseDataLoaderIter=_BaseDataLoaderIter)
    clock.enter_phase(phases.EVALUATING)
    loader._BaseDataLoaderIter().__next__()
    clock.enter_phase(phases.TRAINING)
    assert phases.DATA not in clock.spent


@pytest.mark.parametrize(("phase", "counts"), [(phases.BACKWARD, True), (phases.FORWARD, False)])
def test_another_thread_counts_only_while_the_main_one_waits_for_the_backward_pass(
    phase: str, counts: bool
) -> None:
    clock = StepClock()
    c10d = timed(clock, "torch.distributed.distributed_c10d", all_reduce=lambda: None)
    clock.enter_phase(phase)
    thread = threading.Thread(target=c10d.all_reduce)
    thread.start()
    thread.join()
    clock.enter_phase(phases.TRAINING)
    assert (phases.COMMUNICATION in clock.spent) is counts


def test_an_error_within_a_part_ends_the_part_and_hides_the_wrapper() -> None:
    clock = StepClock()

    def all_reduce() -> None:
        raise ValueError("lost a peer")

    c10d = timed(clock, "torch.distributed.distributed_c10d", all_reduce=all_reduce)
    clock.enter_phase(phases.BACKWARD)
    with pytest.raises(ValueError, match="lost a peer") as raised:
        c10d.all_reduce()
    assert [entry.name for entry in raised.traceback][1:] == ["all_reduce"]
    assert clock.enter(phases.DATA) == phases.BACKWARD


def test_a_module_without_a_function_of_the_table_keeps_the_others_timed() -> None:
    clock = StepClock()
    name = "torch.distributed.distributed_c10d"
    made = timed(clock, name, broadcast=lambda: 7)
    assert made.broadcast() == 7
    assert made.broadcast.__name__ == "<lambda>"
    assert len(PARTS[name]) > 1


def test_steps_of_the_warm_up_are_not_counted(own_time: Time) -> None:
    clock = StepClock()
    for step in range(WARM_UP + 2):
        clock.enter_phase(phases.FORWARD)
        own_time.sleep(100 if step < WARM_UP else 10)
        clock.enter_phase(phases.TRAINING)
        facts = clock.step_ended()
    assert facts["timed_steps"] == 2
    assert facts["parts"][phases.FORWARD] < 100  # type: ignore[index]


def test_steps_that_something_else_makes_slow_are_not_counted(own_time: Time) -> None:
    clock = StepClock()
    facts: dict[str, object] = {}
    for number in range(WARM_UP + 6):
        is_slow = number in (WARM_UP + 2, WARM_UP + 3)
        if is_slow:
            clock.leave_out()
        else:
            clock.count_again()
        clock.enter_phase(phases.FORWARD)
        own_time.sleep(1000 if is_slow else 10)
        clock.enter_phase(phases.TRAINING)
        facts = clock.step_ended() or facts
    assert facts["timed_steps"] == 4
    assert 40 <= facts["parts"][phases.FORWARD] < 60  # type: ignore[index]
    assert facts["step_seconds"] < 100  # type: ignore[operator]


class Event:
    """Stands for an event of CUDA on a GPU whose clock the test moves."""

    now = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.time = Event.now

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "Event") -> float:
        return end.time - self.time


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(
        is_initialized=lambda: True,
        stream="main",
        Event=Event,
        get_device_name=lambda: "NVIDIA H100 80GB HBM3",
        retries=3,
    )
    made.memory_stats = lambda: {"num_alloc_retries": made.retries}
    made.current_stream = lambda: made.stream
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=made))
    monkeypatch.setattr(step_clock, "GPU_SAMPLE_SECONDS", 0.0)
    return made


def step(clock: StepClock, **milliseconds: float) -> dict[str, Any]:
    for phase, duration in milliseconds.items():
        clock.enter_phase(phase)
        Event.now += duration
    clock.enter_phase(phases.TRAINING)
    return clock.step_ended()


def test_a_step_on_a_gpu_is_measured_with_events(cuda: SimpleNamespace) -> None:
    clock = StepClock()
    for _ in range(WARM_UP + 1):
        step(clock)
    cuda.retries += 2
    step(clock, forward=70, backward=130)
    facts = step(clock, forward=70, backward=130)
    assert facts["gpu_parts"] == {"training": 0.0, "forward": 0.14, "backward": 0.26}
    assert (facts["gpu_steps"], facts["device"], facts["allocator_retries"]) == (2, cuda.get_device_name(), 2)


def test_what_waits_in_another_stream_of_a_gpu_delays_no_step(cuda: SimpleNamespace) -> None:
    clock = StepClock()
    c10d = timed(clock, "torch.distributed.distributed_c10d", all_reduce=lambda: None)
    for _ in range(WARM_UP + 1):
        step(clock)
    clock.enter_phase(phases.BACKWARD)
    cuda.stream = "reductions"
    c10d.all_reduce()
    cuda.stream = "main"
    assert phases.COMMUNICATION not in step(clock, backward=10)["gpu_parts"]


def test_the_time_of_a_step_is_without_what_lies_between_steps(own_time: Time) -> None:
    clock = StepClock()
    for number in range(WARM_UP + 2):
        clock.enter_phase(phases.FORWARD)
        own_time.sleep(20)
        clock.enter_phase(phases.TRAINING)
        facts = clock.step_ended()
        clock.enter_phase(phases.SAVING)
        own_time.sleep(300)
        clock.enter_phase(phases.TRAINING)
        assert number < WARM_UP or 20 <= facts["step_seconds"] < 300  # type: ignore[operator]


def test_a_thread_that_waits_for_others_is_as_busy_as_it_computes(own_time: Time) -> None:
    clock = StepClock()
    c10d = timed(clock, "torch.distributed.distributed_c10d", all_reduce=lambda: own_time.sleep(5000))
    for _ in range(WARM_UP + 1):
        clock.enter_phase(phases.BACKWARD)
        own_time.compute(3000)
        own_time.sleep(1000)  # something else has the CPU
        c10d.all_reduce()
        clock.enter_phase(phases.TRAINING)
        facts = clock.step_ended()
    assert facts["busy"] == pytest.approx(0.75, abs=0.01)
