"""What is made of a forecast: operations, shared memory, and what DeepSpeed said."""

from dataclasses import replace

import pytest

from tests.asking import SITE, question
from tests.making import CPU_MACHINE
from zlaunch.answers import Answer, Refusal
from zlaunch.appraisal import appraise, estimate
from zlaunch.fit import Site
from zlaunch.memory.host import SHARED_BYTES
from zlaunch.workloads import Options, Question


def answer(one: Answer | Refusal) -> Answer:
    assert isinstance(one, Answer)
    return one


def on_the_cpu(one: Question, ranks: int) -> Question:
    given = replace(one.given, machine=CPU_MACHINE, world_size=ranks)
    return replace(one, given=given, ranks_per_host=ranks)


@pytest.mark.job
def test_the_operations_that_are_counted_are_those_that_are_worked_out() -> None:
    plain = question(stage=2, options=Options(seq_len=512), micro=2)
    again = question(stage=2, options=Options(seq_len=512, activation_checkpointing=True), micro=2)
    eager = question(stage=2, options=Options(seq_len=512, attention="eager"), micro=2)
    asked = [plain, again, eager, plain.with_argument("gradient_accumulation_steps", 8, "`--grad-accum`")]
    counted = [answer(one).forecast for one in appraise(asked, SITE)]
    worked_out = [answer(one).forecast.flops for one in estimate(asked, SITE)]
    assert {one.method for one in counted} == {"rehearsal"}
    assert [one.flops for one in counted] == pytest.approx(worked_out, rel=1e-6)


def test_a_step_is_as_fast_as_its_operations_are_many() -> None:
    (one,) = map(answer, estimate([question(stage=2)], SITE))
    assert one.speed is not None
    assert SITE.gpu is not None
    compute = next(term for term in one.speed.roofline.terms if term.name == "compute")
    assert compute.seconds * SITE.gpu.half_flops == pytest.approx(one.forecast.flops)


@pytest.mark.parametrize(("ranks", "shared"), [(1, 0), (2, SHARED_BYTES)])
def test_cpu_ranks_share_buffers_where_there_are_several(ranks: int, shared: int) -> None:
    (one,) = map(answer, estimate([on_the_cpu(question(stage=2), ranks)], Site(1, ranks)))
    assert one.forecast.peak("shm") == shared
    assert one.need.shm == ranks * shared


def test_gpu_ranks_share_nothing_that_is_known() -> None:
    (one,) = map(answer, estimate([question(stage=2)], SITE))
    assert one.need.shm == 0
