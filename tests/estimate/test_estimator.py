"""What is made of a forecast: operations, shared memory, and what DeepSpeed said."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.asking import GIB, SITE, forecast, question
from tests.making import CPU_MACHINE
from zlaunch.estimate.changes import Options
from zlaunch.estimate.estimator import Estimator, RehearsalProgress
from zlaunch.estimate.fit import Cluster
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.memory.host_memory import SHARED_BYTES
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected
from zlaunch.estimate.rehearse import Done, Rehearsed
from zlaunch.estimate.workload import Workload


def answer(one: Estimate | Rejected) -> Estimate:
    assert isinstance(one, Estimate)
    return one


def on_the_cpu(one: EstimateQuery, ranks: int) -> EstimateQuery:
    given = replace(one.given, machine=CPU_MACHINE, world_size=ranks)
    return replace(one, given=given, cluster=Cluster(1, ranks))


@pytest.mark.job
def test_the_operations_that_are_counted_are_those_that_are_worked_out() -> None:
    plain = question(stage=2, options=Options(seq_len=512), micro=2)
    again = question(stage=2, options=Options(seq_len=512, activation_checkpointing=True), micro=2)
    eager = question(stage=2, options=Options(seq_len=512, attention="eager"), micro=2)
    asked = [plain, again, eager, plain.with_options(Options(grad_accum=8))]
    with Estimator() as estimator:
        counted = [answer(one).forecast for one in estimator.rehearse(asked)]
        worked_out = [answer(one).forecast.flops for one in estimator.closed_form(asked)]
    assert {one.method for one in counted} == {"rehearsal"}
    assert [one.flops for one in counted] == pytest.approx(worked_out, rel=1e-6)


def test_a_step_is_as_fast_as_its_operations_are_many() -> None:
    (one,) = map(answer, Estimator().closed_form([question(stage=2)]))
    assert one.speed is not None
    assert SITE.gpu is not None
    compute = next(term for term in one.speed.roofline.terms if term.name == "compute")
    assert compute.seconds * SITE.gpu.half_flops == pytest.approx(one.forecast.flops)


@pytest.mark.parametrize(("ranks", "shared"), [(1, 0), (2, SHARED_BYTES)])
def test_cpu_ranks_share_buffers_where_there_are_several(ranks: int, shared: int) -> None:
    (one,) = map(answer, Estimator().closed_form([on_the_cpu(question(stage=2), ranks)]))
    assert one.forecast.peak("shm") == shared
    assert one.need.shm == ranks * shared


def test_gpu_ranks_share_nothing_that_is_known() -> None:
    (one,) = map(answer, Estimator().closed_form([question(stage=2)]))
    assert one.need.shm == 0


def by_ranks(first: Forecast, last: Forecast) -> Estimate | Rejected:
    """Ask about one job, of which the first and the last rank are rehearsed."""

    def rehearse(workloads: Sequence[Workload], done: Done | None = None) -> list[Rehearsed]:
        return [first if one.rank == 0 else last for one in workloads]

    (one,) = Estimator(rehearse=rehearse).rehearse([question(stage=2)])
    return one


def test_an_estimate_that_was_shown_while_others_were_rehearsed_is_the_one_that_is_returned() -> None:
    shown: list[RehearsalProgress] = []

    def rehearse(workloads: Sequence[Workload], done: Done) -> list[Rehearsed]:
        done({0: forecast(2.0)}, 2)
        return [forecast(2.0), forecast(3.0)]

    estimator = Estimator(shown.append, rehearse=rehearse)
    results = estimator.rehearse([question(stage=2), question(stage=3)])
    assert [len(progress.known) for progress in shown] == [1, 2]
    assert all(progress.known[0] is results[0] for progress in shown)
    assert shown[-1].known[1] is results[1]


def test_the_fuller_of_two_ranks_counts() -> None:
    assert answer(by_ranks(forecast(2.0), forecast(3.0))).need.allocated == 3 * GIB
    assert answer(by_ranks(forecast(3.0), forecast(2.0))).need.allocated == 3 * GIB


@pytest.mark.parametrize("size", [1.0, 3.0])
def test_what_deepspeed_refuses_on_the_last_rank_alone_ends_the_job(size: float) -> None:
    refused = by_ranks(forecast(2.0), forecast(size, late_error="the last rank has no parameters"))
    assert isinstance(refused, Rejected)
    assert "the last rank has no parameters" in refused.findings[0].message


def test_a_formula_for_the_last_rank_does_not_replace_a_rehearsal_of_the_first() -> None:
    formula = forecast(3.0, method="closed form", why_not_rehearsed="killed", error=0.5)
    assert answer(by_ranks(forecast(2.0), formula)).forecast.method == "rehearsal"


@pytest.mark.parametrize(
    ("words", "where", "hint"),
    [
        (
            "RuntimeError: self.dim() cannot be 0 to view Half as Byte (deepspeed/x.py:1, during initialize)",
            "",
            "deepspeed==0.19.7",
        ),
        (
            "IndexError: Dimension out of range (transformers/modeling_utils.py:2321, during load under zero.Init)",
            "zero_optimization.stage",
            "`--stage 2`",
        ),
        ("ValueError: no (transformers/modeling_utils.py:1, during load)", "", "fix the model's config.json"),
    ],
)
def test_an_error_while_loading_is_refused_with_what_to_do(words: str, where: str, hint: str) -> None:
    refused = by_ranks(forecast(2.0, late_error=words), forecast(2.0))
    assert isinstance(refused, Rejected)
    (finding,) = refused.findings
    assert (finding.code, finding.where) == ("deepspeed-gives-up", where)
    assert words in finding.message
    assert hint in (finding.hint or "")
