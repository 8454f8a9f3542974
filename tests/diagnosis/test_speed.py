"""What limits the speed of a run, for runs that are made up."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.diagnosis.evidence import JobEvidence
from zlaunch.diagnosis.speed import (
    LEAST_SHARE,
    RankTime,
    SpeedEvidence,
    SpeedLoss,
    TimedLine,
    speed_losses,
)
from zlaunch.job.script import ConfigInterface
from zlaunch.rundir import phases

HEALTHY = {
    phases.FORWARD: 0.030,
    phases.BACKWARD: 0.060,
    phases.STEPPING: 0.005,
    phases.COMMUNICATION: 0.004,
    phases.TRAINING: 0.001,
}


def rank(
    number: int = 0,
    more: dict[str, float] | None = None,
    *,
    host: str = "node1",
    busy: float = 0.98,
    device: str = "",
) -> RankTime:
    return RankTime(number, host, {**HEALTHY, **(more or {})}, busy, device)


def evidence(*ranks: RankTime, job: JobEvidence | None = None, **more: Any) -> SpeedEvidence:
    return SpeedEvidence(job or JobEvidence(world_size=len(ranks) or 2), ranks or (rank(0), rank(1)), **more)


def lines(seconds: Sequence[float]) -> list[TimedLine]:
    return [TimedLine(number, value) for number, value in enumerate(seconds, start=3)]


def only(losses: Sequence[SpeedLoss]) -> SpeedLoss:
    (loss,) = losses
    return loss


def slow(**parts: float) -> SpeedEvidence:
    """Both ranks spend more in some parts, named as in `zlaunch.rundir.phases`."""
    more = {getattr(phases, name): seconds for name, seconds in parts.items()}
    return evidence(rank(0, more), rank(1, more))


def codes(given: SpeedEvidence) -> list[str]:
    return [loss.verdict.code for loss in speed_losses(given)]


OFFLOADED = JobEvidence(stage=2, offload={"optimizer": "cpu"}, world_size=2)


def test_a_healthy_run_has_no_loss() -> None:
    assert speed_losses(evidence(lines=lines([0.1, 0.11, 0.1, 0.09] * 20), workers=2, threads=4)) == []


@given(st.dictionaries(st.sampled_from([*phases.STEPS, *phases.PARTS]), st.floats(0, 1), max_size=6))
def test_no_loss_is_below_the_least_share_and_none_is_more_than_the_whole(parts: dict[str, float]) -> None:
    for loss in speed_losses(evidence(rank(0, parts), rank(1, parts), job=OFFLOADED)):
        assert LEAST_SHARE <= loss.share <= 1


@pytest.mark.parametrize(
    ("given", "code", "share"),
    [
        (slow(DATA=0.1), "waiting-for-data", 0.5),
        (slow(COMMUNICATION=0.104), "exposed-communication", 0.52),
        (slow(SWAPPING=0.1), "waiting-for-nvme", 0.5),
        (slow(TRAINING=0.101), "own-code", 0.505),
        (replace(slow(STEPPING=0.105), job=OFFLOADED), "optimizer-on-cpu", 0.525),
        (replace(slow(COPYING=0.1), job=OFFLOADED), "offload-copies", 0.5),
        (evidence(outside={phases.SAVING: 0.1}), "saves-often", 0.5),
        (evidence(outside={phases.EVALUATING: 0.1}), "evaluates-often", 0.5),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_that_takes_long_is_a_loss_of_its_share(given: SpeedEvidence, code: str, share: float) -> None:
    loss = only(speed_losses(given))
    assert (loss.verdict.code, round(loss.share, 3)) == (code, share)


def test_an_optimizer_that_is_not_offloaded_is_no_loss() -> None:
    assert codes(slow(STEPPING=0.105)) == []


def test_one_slow_rank_is_named_with_what_it_spends_longer_in() -> None:
    ranks = [rank(number, {phases.COMMUNICATION: 0.05}) for number in range(3)]
    ranks.append(rank(3, {phases.FORWARD: 0.076}, host="node4", busy=0.51))
    verdict = only(speed_losses(evidence(*ranks))).verdict
    assert verdict.code == "slow-rank"
    assert verdict.cause == "rank 3 on node4 is slower than the others, which wait for it"
    assert "forward takes 76 ms there, 30 ms elsewhere" in verdict.facts
    assert "its main thread had 51% of a CPU while it computed, the others 98%" in verdict.facts


def test_a_slow_rank_on_another_gpu_model_is_slow_because_of_it() -> None:
    ranks = [rank(0, {phases.COMMUNICATION: 0.09}, device="A100")]
    ranks.append(rank(1, {phases.BACKWARD: 0.146}, device="RTX 3090"))
    assert (
        "its GPU is RTX 3090, that of the others A100" in only(speed_losses(evidence(*ranks))).verdict.facts
    )


def test_a_rank_that_waits_for_its_data_is_a_slow_rank_and_not_communication() -> None:
    ranks = [rank(0, {phases.COMMUNICATION: 0.104}), rank(1, {phases.DATA: 0.1})]
    verdict = only(speed_losses(evidence(*ranks))).verdict
    assert "waiting for data takes 0.10 s there, 0 ms elsewhere" in verdict.facts


@pytest.mark.parametrize(("workers", "advised"), [(0, "--dataloader_num_workers 2"), (2, "more workers")])
def test_the_advice_about_data_depends_on_the_workers(workers: int, advised: str) -> None:
    loss = only(speed_losses(replace(slow(DATA=0.1), workers=workers)))
    assert advised in loss.verdict.advice[0]


def test_threads_are_advised_up_to_the_cores_of_a_rank() -> None:
    given = replace(slow(STEPPING=0.105), job=OFFLOADED, threads=1, cores=16)
    assert "--env OMP_NUM_THREADS=8" in only(speed_losses(given)).verdict.advice[0]


def test_ranks_share_the_cores_of_their_own_host_alone() -> None:
    ranks = [rank(number, {phases.STEPPING: 0.105}, host=f"node{number // 2}") for number in range(4)]
    given = evidence(*ranks, job=replace(OFFLOADED, world_size=4), threads=1, cores=16)
    assert "--env OMP_NUM_THREADS=8" in only(speed_losses(given)).verdict.advice[0]


@pytest.mark.parametrize(
    ("job", "advised"),
    [
        (JobEvidence(stage=3, world_size=2), "--stage 2"),
        (JobEvidence(stage=2, world_size=2, micro_batch=4, grad_accum=4), "--per_device_train_batch_size 8"),
    ],
)
def test_the_advice_about_communication_is_a_change_that_the_job_can_make(
    job: JobEvidence, advised: str
) -> None:
    given = replace(slow(COMMUNICATION=0.104), job=job)
    assert any(advised in text for text in only(speed_losses(given)).verdict.advice)


@pytest.mark.parametrize(
    ("stage", "advised"),
    [
        (1, "`-- --gradient_accumulation_steps 2`: half"),
        (2, "`--stage 1 -- --gradient_accumulation_steps 2`: half"),
    ],
)
def test_more_accumulation_sends_less_where_gradients_are_reduced_once_a_step(
    stage: int, advised: str
) -> None:
    given = replace(slow(COMMUNICATION=0.104), job=JobEvidence(stage=stage, world_size=2))
    assert any(text.startswith(advised) for text in only(speed_losses(given)).verdict.advice)


def test_weights_of_stage_3_are_gathered_in_each_pass_whatever_is_accumulated() -> None:
    given = replace(slow(COMMUNICATION=0.104), job=JobEvidence(stage=3, world_size=2))
    assert "accumulation" not in " ".join(only(speed_losses(given)).verdict.advice)


def test_a_script_that_has_workers_is_not_told_to_have_some() -> None:
    job = JobEvidence(interface=ConfigInterface.DEEPSPEED, names_workers=True)
    given = replace(slow(DATA=0.1), job=job)
    assert "more `num_workers`" in only(speed_losses(given)).verdict.advice[0]


def test_hosts_share_no_weights_that_each_can_hold_itself() -> None:
    ranks = [rank(number, {phases.COMMUNICATION: 0.2}, host=f"node{number // 2}") for number in range(4)]
    loss = only(speed_losses(evidence(*ranks, job=JobEvidence(stage=3, world_size=4))))
    assert "zero_hpz_partition_size=2" in loss.verdict.advice[0]


@pytest.mark.parametrize(
    ("hosts", "size"), [("aabb", 2), ("aaab", 1)], ids=["it has them", "hosts are of different sizes"]
)
def test_no_secondary_partition_is_advised_that_is_there_or_cannot_be(hosts: str, size: int) -> None:
    ranks = [rank(number, {phases.COMMUNICATION: 0.2}, host=host) for number, host in enumerate(hosts)]
    zero = {"stage": 3, "zero_hpz_partition_size": size}
    job = JobEvidence(stage=3, world_size=4, config={"zero_optimization": zero})
    assert "hpz" not in " ".join(only(speed_losses(evidence(*ranks, job=job))).verdict.advice)


def test_a_jump_is_told_with_its_step_and_the_part_that_grew() -> None:
    timed = [replace(line, parts={phases.STEPPING: 0.01}) for line in lines([0.1] * 27)]
    timed += [TimedLine(number, 0.2, {phases.STEPPING: 0.11}) for number in range(30, 60)]
    verdict = only(speed_losses(evidence(lines=timed))).verdict
    assert verdict.cause == "from step 30 on, a step takes 2.0 times as long as before: 0.20 s, 0.10 s before"
    assert verdict.facts == ("optimizer step grew from 10 ms to 0.11 s",)


def test_a_jump_after_the_first_few_steps_is_told() -> None:
    verdict = only(speed_losses(evidence(lines=lines([0.1] * 4 + [0.2] * 30)))).verdict
    assert verdict.cause.startswith("from step 7 on, a step takes 2.0 times as long as before")


def test_a_jump_in_a_long_run_is_found_at_its_step() -> None:
    timed = lines([0.1] * 4321 + [0.2] * 6000)
    assert only(speed_losses(evidence(lines=timed))).verdict.cause.startswith(
        "from step 4324 on, a step takes"
    )


def test_steps_that_become_ever_slower_do_not_jump() -> None:
    verdict = only(speed_losses(evidence(lines=lines([0.1 + 0.002 * at for at in range(100)])))).verdict
    assert verdict.cause.startswith("steps become ever slower: 0.10 s at first, 0.29 s in the end")


@given(st.lists(st.floats(0.09, 0.11), min_size=20, max_size=60), st.sets(st.integers(0, 59), max_size=3))
def test_steps_that_vary_and_single_long_ones_are_no_change(seconds: list[float], long: set[int]) -> None:
    varied = [9.0 if at in long else value for at, value in enumerate(seconds)]
    assert codes(evidence(lines=lines(varied))) == []


@pytest.mark.parametrize(("room", "is_told"), [(4 << 30, True), (1 << 30, False), (None, False)])
def test_recomputation_is_needless_only_where_the_activations_have_room(
    room: int | None, is_told: bool
) -> None:
    job = JobEvidence(gradient_checkpointing=True, world_size=2)
    given = evidence(job=job, unsaved=2 << 30, room=room)
    assert ("needless-recomputation" in codes(given)) is is_told


@pytest.mark.parametrize(
    ("share", "tokens", "is_told"), [(0.01, 64, True), (0.3, 64, False), (0.01, 4096, False)]
)
def test_a_micro_batch_is_small_if_it_has_few_tokens_and_the_device_is_idle(
    share: float, tokens: int, is_told: bool
) -> None:
    assert ("small-micro-batch" in codes(evidence(flops_share=share, tokens=tokens))) is is_told


def test_a_small_micro_batch_is_told_before_the_part_that_it_makes_long() -> None:
    given = replace(slow(COMMUNICATION=0.08), tokens=16)
    loss = speed_losses(given)[0]
    assert loss.verdict.code == "small-micro-batch"
    assert loss.verdict.facts[0].startswith("49% of a step does not depend on its size")


def test_freed_caches_of_gpu_memory_are_told_with_their_number() -> None:
    given = evidence(allocator_retries=30, num_steps=60)
    assert "full 30 times" in only(speed_losses(given)).verdict.cause


def test_a_few_freed_caches_in_many_steps_are_not_told() -> None:
    assert speed_losses(evidence(allocator_retries=5, num_steps=60)) == []


def test_a_single_rank_or_one_whose_peer_is_unknown_has_no_communication_to_save() -> None:
    alone = rank(0, {phases.COMMUNICATION: 0.104})
    assert codes(evidence(alone, job=JobEvidence(world_size=1))) == []
    assert codes(evidence(alone, job=JobEvidence(world_size=2))) == []


def test_shares_are_those_of_all_the_time_so_that_the_most_expensive_comes_first() -> None:
    given = replace(slow(COMMUNICATION=0.104), outside={phases.SAVING: 0.4})
    found = [(loss.verdict.code, round(loss.share, 2)) for loss in speed_losses(given)]
    assert found == [("saves-often", 0.67), ("exposed-communication", 0.17)]


def test_a_device_that_waits_for_data_is_not_idle_for_lack_of_work() -> None:
    given = replace(slow(DATA=0.9), flops_share=0.006, tokens=64)
    assert codes(given) == ["waiting-for-data"]


def test_of_two_ranks_the_slow_one_is_slower_than_the_other() -> None:
    ranks = [rank(0, {phases.COMMUNICATION: 0.104}), rank(1, {phases.BACKWARD: 0.16})]
    cause = only(speed_losses(evidence(*ranks))).verdict.cause
    assert cause == "rank 1 on node1 is slower than rank 0, which waits for it"
