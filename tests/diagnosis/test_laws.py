"""What holds for every run, however odd: a verdict is given, it is short, and it invents nothing."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.diagnosis.table import DEATHS
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.evidence import ErrorEvidence, Evidence, JobEvidence, RankEvidence
from zlaunch.diagnosis.render import LINES, height
from zlaunch.diagnosis.root_cause import RankRole, role_of
from zlaunch.diagnosis.stall import StallEvidence
from zlaunch.job.script import ConfigInterface, Handover
from zlaunch.rundir import phases
from zlaunch.rundir.read import conform
from zlaunch.rundir.record import ForecastRecord, FrameRecord, HeartbeatRecord, MachineSample

RANKS = [rank for evidences in DEATHS.values() for evidence in evidences for rank in evidence.ranks]
TEXTS = sorted(
    {
        text
        for rank in RANKS
        for text in (
            rank.log,
            rank.stacks,
            *([rank.error.message, rank.error.traceback] if rank.error else []),
        )
    }
)
TYPES = sorted({rank.error.type for rank in RANKS if rank.error})


def read_as(kind: type) -> Callable[[dict[str, Any]], Any]:
    """Make a function that takes an object from a file as a reader does."""
    return lambda members: conform(members, kind)


said = st.integers(0, len(TEXTS) - 1).map(lambda number: TEXTS[number])
texts = st.one_of(
    st.text(max_size=30),
    said,
    st.builds("\n".join, st.lists(said, max_size=3)),
    st.builds(lambda text, cut: text[cut:], said, st.integers(0, 40)),
)
numbers = st.one_of(st.none(), st.integers(0, 1 << 42))
moments = st.one_of(st.none(), st.floats(0, 2e9))
json_values: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 1 << 40), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=3,
)
objects = st.dictionaries(
    st.sampled_from(
        ["loss", "grad_norm", "steps", "skipped_steps", "zero_optimization", "autotuning", "phases", "fp16"]
    ),
    json_values,
    max_size=4,
)
phase = st.one_of(st.sampled_from(phases.ALL), st.just(""), st.text(max_size=9))
errors = st.builds(
    ErrorEvidence,
    type=st.one_of(st.sampled_from(TYPES), st.text(max_size=20)),
    message=texts,
    traceback=texts,
    frame=st.none()
    | st.dictionaries(st.sampled_from(["file", "line", "function"]), json_values).map(read_as(FrameRecord)),
    phase=st.one_of(st.none(), phase),
    time=moments,
)
returncodes = st.one_of(st.none(), st.integers(-64, 255), st.sampled_from([0, 1, 2, -6, -7, -9, -11, -15]))
ranks = st.builds(
    RankEvidence,
    rank=st.integers(0, 7),
    host=st.sampled_from(["w1", "w2", ""]),
    returncode=returncodes,
    stopped_by=st.sampled_from([None, None, 2, 15]),
    ended=moments,
    phase=phase,
    step=st.integers(0, 10**9),
    error=st.one_of(st.none(), errors),
    log=texts,
    stacks=texts,
    peak_rss_bytes=numbers,
    heartbeat=objects.map(read_as(HeartbeatRecord)),
)
machines = st.dictionaries(
    st.sampled_from(["w1", "w2", ""]),
    st.fixed_dictionaries({}, optional=dict.fromkeys(MachineSample.__annotations__, numbers)),
    max_size=2,
)
jobs = st.builds(
    JobEvidence,
    launcher=st.sampled_from(["torchrun", "deepspeed", ""]),
    stage=st.integers(0, 3),
    offload=st.dictionaries(st.sampled_from(["optimizer", "param"]), st.sampled_from(["cpu", "nvme"])),
    micro_batch=st.integers(0, 64),
    grad_accum=st.integers(0, 64),
    world_size=st.integers(0, 8),
    precision=st.sampled_from(["fp16", "bf16", ""]),
    interface=st.sampled_from(ConfigInterface),
    handover=st.sampled_from(Handover),
    gradient_checkpointing=st.sampled_from([None, True, False]),
    forecast=st.none() | objects.map(read_as(ForecastRecord)),
    config=objects,
)
stalls = st.builds(
    StallEvidence,
    seconds=st.floats(0, 1e6),
    step=st.integers(0, 10**9),
    where=st.dictionaries(st.integers(0, 8), st.text(max_size=40)),
    odd=st.lists(st.integers(0, 8), max_size=3).map(tuple),
    ended_job=st.booleans(),
)
evidences = st.builds(
    Evidence,
    job=jobs,
    ranks=st.lists(ranks, max_size=3, unique_by=lambda rank: rank.rank).map(tuple),
    machines=machines,
    launcher_returncode=st.integers(-64, 255),
    launcher_log=texts,
    stopped_by=st.sampled_from([None, None, 1, 2, 15, 64]),
    stall=st.one_of(st.none(), stalls),
)


@settings(max_examples=120, deadline=None)
@given(evidences)
def test_every_run_gets_a_verdict_of_ten_lines_that_can_be_written_down(evidence: Evidence) -> None:
    verdict = diagnose(evidence)
    assert height(verdict) <= LINES
    assert all(line.isprintable() for line in (verdict.cause, *verdict.facts, *verdict.advice))
    assert all((verdict.cause, *verdict.facts, *verdict.advice))
    assert json.loads(json.dumps(asdict(verdict)))["code"] in DEATHS


@settings(max_examples=80, deadline=None)
@given(evidences)
def test_a_rank_that_was_dragged_down_is_not_blamed_when_another_failed_of_itself(evidence: Evidence) -> None:
    verdict = diagnose(evidence)
    failed = {rank.rank for rank in evidence.ranks if role_of(rank, evidence) is RankRole.FAILED}
    assert not failed or verdict.rank is None or verdict.rank in failed


@settings(max_examples=50, deadline=None)
@given(evidences, st.randoms(use_true_random=False))
def test_the_order_in_which_ranks_are_listed_does_not_matter(evidence: Evidence, random: Any) -> None:
    shuffled = list(evidence.ranks)
    random.shuffle(shuffled)
    assert diagnose(replace(evidence, ranks=tuple(shuffled))).rank == diagnose(evidence).rank


@settings(max_examples=50, deadline=None)
@given(evidences)
def test_advice_never_raises_the_global_batch_or_proposes_the_stage_that_is_on(evidence: Evidence) -> None:
    verdict, job = diagnose(evidence), evidence.job
    advice = " ".join(verdict.advice)
    for micro, pieces in re.findall(
        r"--per_device_train_batch_size (\d+) --gradient_accumulation_steps (\d+)", advice
    ):
        assert int(micro) * int(pieces) == job.micro_batch * job.grad_accum
    assert f"--stage {job.stage} " not in advice
    assert f"--stage {job.stage}`" not in advice


@settings(max_examples=50, deadline=None)
@given(evidences)
def test_only_a_run_that_went_well_is_called_finished(evidence: Evidence) -> None:
    well = bool(evidence.ranks) and all(rank.returncode == 0 for rank in evidence.ranks)
    assert diagnose(evidence).code != "finished" or (well and evidence.launcher_returncode == 0)
