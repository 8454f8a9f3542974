"""What is read from an engine: the loss of a step, and gradients that it throws away."""

import atexit
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zlaunch.rundir import phases
from zlaunch.worker.hook.engine_callback import EngineFacts
from zlaunch.worker.hook.heartbeat import Heartbeat


class Loss:
    """Stands for a tensor."""

    device = SimpleNamespace(type="cpu")

    def __init__(self, value: float, size: int = 1) -> None:
        self.value, self.size = value, size

    def numel(self) -> int:
        return self.size

    def __getattr__(self, name: str) -> Any:
        assert name in ("detach", "float")
        return lambda: self

    def dim(self) -> int:
        return int(self.size > 1)

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(self.value + other.value)

    def __truediv__(self, count: int) -> "Loss":
        return Loss(self.value / count)

    def __float__(self) -> float:
        return self.value


class DeepSpeedZeroOptimizer:
    """Stands for that of stages 1 and 2."""

    cpu_offload = False
    param_groups = ({"lr": 0.1},)


class Engine:
    """Counts as DeepSpeed's engine does."""

    skipped_steps = 0

    def __init__(self, accumulation: int, optimizer: object = None, *, is_managed: bool = True) -> None:
        self.accumulation, self.is_managed = accumulation, is_managed
        self.optimizer = optimizer or DeepSpeedZeroOptimizer()
        self.micro_steps = self.global_steps = 0

    def fp16_enabled(self) -> bool:
        return False

    def gradient_accumulation_steps(self) -> int:
        return self.accumulation

    def is_gradient_accumulation_boundary(self) -> bool:
        return self.is_managed and (self.micro_steps + 1) % self.accumulation == 0

    def _backward_epilogue(self) -> None:
        pass

    def step(self) -> None:
        self.global_steps += self.is_gradient_accumulation_boundary() or not self.is_managed
        self.micro_steps += 1


class Loop:
    """A script that calls an engine in the phases of the hook."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.engine, self.facts = engine, EngineFacts(Heartbeat(folder / "pulse"))
        self.watched = type("Watched", (), {"_backward_epilogue": Engine._backward_epilogue})
        self.facts.watch(self.watched)

    def forward(self) -> None:
        self.facts.before(phases.FORWARD, [self.engine], {})

    def backward(self, loss: float, **options: bool) -> None:
        self.facts.before(phases.BACKWARD, [self.engine, Loss(loss)], options)
        self.watched._backward_epilogue(self.engine)  # type: ignore[attr-defined]

    def step(self) -> dict[str, Any]:
        self.facts.before(phases.STEPPING, [self.engine], {})
        self.engine.step()
        return self.facts.after(phases.STEPPING, [self.engine])


def trained(loop: Loop, losses: list[float], steps: int = 1, **options: bool) -> dict[str, Any]:
    """Train on micro-batches; the script calls `step` after each `steps` of them."""
    facts: dict[str, Any] = {}
    for count, loss in enumerate(losses, start=1):
        loop.forward()
        loop.backward(loss, **options)
        if count % steps == 0:
            facts |= loop.step()
    return facts


@pytest.mark.parametrize("accumulation", [1, 2, 3, 8])
def test_the_loss_of_a_step_is_the_mean_of_its_micro_batches(accumulation: int, tmp_path: Path) -> None:
    losses = [float(2 * number) for number in range(accumulation)]
    facts = trained(Loop(tmp_path, Engine(accumulation)), losses)
    assert (facts["step_loss"], facts["loss"], facts["step"]) == (accumulation - 1, accumulation - 1, 1)


def test_losses_that_the_script_has_divided_itself_are_added(tmp_path: Path) -> None:
    """As a Trainer does, which divides each by the tokens of the whole step."""
    facts = trained(Loop(tmp_path, Engine(4)), [1.0, 0.5, 0.25, 0.25], scale_wrt_gas=False)
    assert facts["step_loss"] == 2.0


def test_a_shorter_accumulation_at_the_end_of_an_epoch_has_the_mean_of_what_there_was(tmp_path: Path) -> None:
    loop = Loop(tmp_path, Engine(4))
    for loss in (3.0, 5.0):
        loop.forward()
        loop.backward(loss)
    loop.engine.micro_steps = 3  # as accelerate ends an accumulation early
    assert loop.step()["step_loss"] == 4.0


def test_two_losses_of_one_micro_batch_are_added(tmp_path: Path) -> None:
    loop = Loop(tmp_path, Engine(1))
    loop.forward()
    loop.backward(3.0)
    loop.backward(5.0)
    facts = loop.step()
    assert (facts["step_loss"], "discarded_backwards" in facts) == (8.0, False)


def test_a_loss_on_a_gpu_that_was_not_waited_for_can_be_read_once_when_the_program_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loss, "device", SimpleNamespace(type="cuda"))
    loop = Loop(tmp_path, Engine(1))
    shown = [trained(loop, [loss]).get("step_loss") for loss in (9.0, 8.0, 7.0, 6.0)]
    assert shown == [9.0, 8.0, 7.0, None]
    assert [loop.facts.unread_loss().get("step_loss") for _ in range(2)] == [6.0, None]


def test_a_loss_that_is_no_number_is_not_shown(tmp_path: Path) -> None:
    loop = Loop(tmp_path, Engine(1))
    loop.facts.before(phases.BACKWARD, [loop.engine, Loss(1.0, size=2)], {})
    assert "loss" not in loop.step()


@pytest.mark.parametrize(
    ("engine", "steps", "discarded"),
    [
        (Engine(1), 1, None),
        (Engine(4), 1, None),
        (Engine(1), 4, 3),
        (Engine(1, is_managed=False), 4, None),
        (Engine(1, object()), 4, None),
    ],
)
def test_backward_passes_before_one_step_replace_each_others_gradients_at_stages_1_and_2(
    engine: Engine, steps: int, discarded: int | None, tmp_path: Path
) -> None:
    facts = trained(Loop(tmp_path, engine), [1.0] * 4, steps)
    assert facts.get("discarded_backwards") == discarded


def test_backward_passes_are_counted_for_each_call_of_step_also_if_it_takes_none(tmp_path: Path) -> None:
    facts = trained(Loop(tmp_path, Engine(4)), [1.0] * 16, steps=4)
    assert (facts["discarded_backwards"], facts["backwards_of_step"]) == (3, 4)


def test_skipped_steps_of_this_run_are_counted(tmp_path: Path) -> None:
    """A checkpoint sets the engine's counter to what earlier runs skipped."""

    class Overflowing(Engine):
        def step(self) -> None:
            super().step()
            self.skipped_steps += self.global_steps % 2

    engine = Overflowing(1)
    engine.skipped_steps = 7
    facts = trained(Loop(tmp_path, engine), [1.0] * 5)
    assert (facts["taken_steps"], facts["skipped_steps"]) == (5, 3)


class Half(Engine):
    def fp16_enabled(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("optimizer", "known"), [(SimpleNamespace(loss_scale=8.0), {8.0}), (object(), set())]
)
def test_the_loss_scale_is_that_of_any_optimizer_in_fp16(
    optimizer: object, known: set[float], tmp_path: Path
) -> None:
    facts = trained(Loop(tmp_path, Half(1, optimizer)), [1.0])
    assert {facts[name] for name in ("loss_scale", "first_loss_scale") if name in facts} == known


def test_steps_at_a_learning_rate_of_0_count_once_the_rate_was_not_0(tmp_path: Path) -> None:
    loop, idle = Loop(tmp_path, Engine(1)), []
    for rate in (0.0, 0.1, 0.0, 0.0, 0.1, 0.0):
        loop.engine.optimizer = SimpleNamespace(param_groups=[{"lr": rate}, {"lr": 0.0}])
        idle.append(trained(loop, [1.0])["idle_steps"])
    assert idle == [0, 0, 1, 2, 0, 1]


def test_the_peaks_of_a_gpu_are_the_highest_of_the_first_steps_and_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    readings = [10, 30, 20, 25]  # DeepSpeed resets the peaks of torch to log them
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        max_memory_allocated=lambda: readings[0],
        max_memory_reserved=lambda: 2 * readings.pop(0),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    loop = Loop(tmp_path, Engine(accumulation=1))
    seen = []
    for _ in range(3):
        facts = trained(loop, [1.0])
        loop.facts._heartbeat.note(**facts)
        seen.append(loop.facts._heartbeat.get("gpu_allocated_bytes"))
    at_exit[-1]()
    assert seen == [10, 30, 30]
    assert loop.facts._heartbeat.get("gpu_reserved_bytes") == 60
    assert readings == []


class Several:
    """A script with several engines, of which each takes a step when it is named."""

    def __init__(self, folder: Path) -> None:
        self.facts = EngineFacts(Heartbeat(folder / "pulse"))
        self.engines = {name: Engine(1) for name in "ABC"}
        self.tokens = 0

    def forward(self, name: str) -> None:
        ids = SimpleNamespace(is_floating_point=lambda: False, dim=lambda: 2, numel=lambda: 10)
        self.facts.before(phases.FORWARD, [self.engines[name], ids], {})

    def steps_of_program(self, engines: str) -> int:
        """Step in this order; return how many of them were steps of the program."""
        count = 0
        for name in engines:
            self.forward(name)
            self.engines[name].step()
            facts = self.facts.after(phases.STEPPING, [self.engines[name]])
            count += "step" in facts
            self.tokens = int(str(facts.get("tokens", self.tokens)))
        return count


@pytest.mark.parametrize(
    ("engines", "steps"),
    [
        ("AAAA", 4),  # one
        ("ABABABAB", 4),  # a GAN
        ("ABCABCABC", 3),
        ("AAAAABAAAAABAAAAAB", 15),  # a critic that is trained more often
        ("BAAAAABAAAAABAAAAAB", 15),
        ("AAAAABBBBB", 9),  # one after the other: the first step of the next one is taken for a second engine
    ],
)
def test_the_engine_that_steps_most_often_takes_the_steps_of_a_program(
    engines: str, steps: int, tmp_path: Path
) -> None:
    assert Several(tmp_path).steps_of_program(engines) == steps


def test_only_the_tokens_of_the_engine_that_steps_are_counted(tmp_path: Path) -> None:
    script = Several(tmp_path)
    for _ in range(5):
        script.forward("B")
        script.steps_of_program("A")
        script.forward("C")
    assert script.tokens == 50


def test_tokens_of_a_step_that_has_not_ended_do_not_count(tmp_path: Path) -> None:
    script = Several(tmp_path)
    script.steps_of_program("A")
    script.forward("A")
    assert script.tokens == 10


def test_ranks_that_train_on_the_same_sequences_share_their_tokens(tmp_path: Path) -> None:
    script = Several(tmp_path)
    script.engines["A"].autotp_size = lambda: 2  # type: ignore[attr-defined]
    script.steps_of_program("A")
    assert script.tokens == 5


def test_an_engine_that_resumes_in_a_step_of_several_micro_batches_counts_it_when_it_ends(
    tmp_path: Path,
) -> None:
    loop = Loop(tmp_path, Engine(4))
    loop.engine.global_steps = 100
    facts = [trained(loop, [loss]) for loss in (1.0, 3.0, 5.0, 7.0)]
    assert [number for number, one in enumerate(facts, start=1) if "step" in one] == [4]
    assert (facts[3]["step"], facts[3]["step_loss"], facts[3]["taken_steps"]) == (101, 4.0, 1)


def test_an_evaluation_is_told_from_the_forward_pass_of_a_reference_model(tmp_path: Path) -> None:
    script = Several(tmp_path)
    policy, reference = (script.engines[name] for name in "AB")
    modules = [SimpleNamespace(training=True), SimpleNamespace(training=False)]
    policy.module, reference.module = modules  # type: ignore[attr-defined]
    script.steps_of_program("A")
    assert (script.facts.evaluates(reference), script.facts.evaluates(policy)) == (False, False)
    modules[0].training = False
    assert (script.facts.evaluates(reference), script.facts.evaluates(policy)) == (True, True)


def test_the_learning_rate_and_the_norm_are_those_of_the_engine_also_where_a_trainer_counts(
    tmp_path: Path,
) -> None:
    loop = Loop(tmp_path, Engine(1))
    loop.facts._heartbeat.counts_steps = False
    loop.engine._global_grad_norm = 0.5  # type: ignore[attr-defined]
    facts = trained(loop, [1.0])
    assert (facts["learning_rate"], facts["grad_norm"], "step" in facts) == (0.1, 0.5, False)


@pytest.mark.parametrize("norm", [None, 0.0, -1.0, float("inf"), float("nan")])
def test_a_norm_that_was_not_computed_or_not_taken_is_left_out(norm: object, tmp_path: Path) -> None:
    loop = Loop(tmp_path, Engine(1))
    loop.engine._global_grad_norm = norm  # type: ignore[attr-defined]
    assert "grad_norm" not in trained(loop, [1.0])
