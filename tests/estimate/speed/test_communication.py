from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimate.memory.jobs import job
from zlaunch.estimate.forecast import CountedCollective
from zlaunch.estimate.memory.settings import read_job
from zlaunch.estimate.speed.communication import Communication, communication, paper_volume, ring_bytes

PARAMETERS = 8_030_261_248
PSI = 2 * PARAMETERS
"""The bytes of Llama-3-8B in bf16."""
CPU = {"device": "cpu"}
NVME = {"device": "nvme", "nvme_path": "/nvme"}


def of(stage: int, world_size: int = 1024, *, to_all: bool = True, **zero: Any) -> Communication:
    accumulation = zero.pop("accumulation", 1)
    zero["use_multi_rank_bucket_allreduce"] = to_all
    return communication(
        read_job(job("llama-3-8b", stage, world_size=world_size, accumulation=accumulation, **zero))
    )


@pytest.mark.parametrize(("stage", "volume"), [(0, 2), (1, 2), (2, 2), (3, 3)])
def test_the_volume_is_the_papers_where_deepspeed_does_as_the_paper_says(stage: int, volume: int) -> None:
    sent = of(stage, to_all=False, stage3_max_reuse_distance=0).sent
    assert sent == pytest.approx(paper_volume(PARAMETERS, stage, 1024))
    assert sent == pytest.approx(volume * PSI, rel=2e-3)


@pytest.mark.parametrize("stage", [1, 2])
def test_by_default_stages_1_and_2_send_half_as_much_again(stage: int) -> None:
    assert of(stage).sent == pytest.approx(1.5 * paper_volume(PARAMETERS, stage, 1024))


def test_what_stays_gathered_is_sent_once() -> None:
    assert of(3).sent == pytest.approx(paper_volume(PARAMETERS, 3, 1024) - 2e9 * 1023 / 1024)


@pytest.mark.parametrize(("stage", "all_reduces"), [(0, 1), (1, 1), (2, 4)])
def test_up_to_stage_1_gradients_wait_for_the_last_micro_step(stage: int, all_reduces: int) -> None:
    sent = of(stage, accumulation=4)
    assert [c.times for c in sent.collectives if c.of == "gradients"] == [all_reduces]


def test_stage_3_sends_everything_in_every_micro_step() -> None:
    assert of(3, accumulation=4).sent == 4 * of(3).sent


@pytest.mark.parametrize("accumulation", [1, 4])
def test_with_hpz_parameters_come_from_all_ranks_once_in_a_step(accumulation: int) -> None:
    whole = of(3, accumulation=accumulation, stage3_max_reuse_distance=0)
    shared = of(3, accumulation=accumulation, stage3_max_reuse_distance=0, zero_hpz_partition_size=8)
    gathers = {c.ranks: c.nbytes * c.times for c in shared.collectives if c.of == "parameters"}
    assert gathers == {1024: PSI, 8: (2 * accumulation - 1) * PSI}
    assert sum(gathers.values()) == sum(c.nbytes * c.times for c in whole.collectives if c.of == "parameters")


def test_zero_partitions_across_ranks_with_the_same_part_of_each_layer() -> None:
    shared = of(2, 16, top={"tensor_parallel": {"autotp_size": 4}})
    assert {c.ranks for c in shared.collectives} == {4}


COUNTED = (
    CountedCollective("all-reduce", "activations", 4, 100, 2, is_last=False),
    CountedCollective("all-reduce", "activations", 4, 100, 2, is_last=True),
    CountedCollective("all-gather", "parameters", 2, 70, 1, is_last=True),
)


def test_what_a_rehearsal_counted_in_a_micro_step_is_repeated_in_all_but_the_last() -> None:
    sent = communication(read_job(job("llama-3-8b", 2, accumulation=5)), COUNTED)
    told = [(c.kind, c.of, c.ranks, c.nbytes, c.times) for c in sent.collectives]
    assert told == [
        ("all-reduce", "activations", 4, 50, 10),
        ("all-gather", "parameters", 2, 70, 1),
    ]


@given(st.integers(0, 3))
def test_one_rank_sends_nothing(stage: int) -> None:
    assert of(stage, world_size=1).sent == 0


@given(st.integers(0, 3), st.integers(1, 512))
def test_more_ranks_send_more_each_but_never_more_than_the_whole(stage: int, ranks: int) -> None:
    few, many = of(stage, ranks).sent, of(stage, ranks + 1).sent
    assert few < many < 3 * PSI + 1


def test_an_offloaded_optimizer_moves_its_share_both_ways() -> None:
    sent = of(2, 8, offload_optimizer=CPU)
    assert (sent.to_host, sent.from_host) == (PSI // 8, PSI // 8)


def test_accumulated_gradients_come_back_to_be_added_to() -> None:
    sent = of(2, 8, offload_optimizer=CPU, accumulation=4)
    assert (sent.to_host, sent.from_host) == (4 * PSI // 8, 4 * PSI // 8)


def test_nothing_is_offloaded_by_itself() -> None:
    sent = of(3)
    assert (sent.to_host, sent.from_host, sent.nvme_read, sent.nvme_written) == (0, 0, 0, 0)


def test_nvme_reads_and_writes_what_the_optimizer_keeps() -> None:
    sent = of(3, 8, offload_optimizer=NVME)
    assert (sent.nvme_read, sent.nvme_written) == (2 * PARAMETERS, 2 * PARAMETERS)


def test_nvme_parameters_are_read_for_both_passes() -> None:
    sent = of(3, 8, offload_param=NVME, stage3_max_reuse_distance=0)
    assert (sent.nvme_read, sent.nvme_written) == (2 * PSI // 8, PSI // 8)


BYTES, RANKS = st.integers(0, 1 << 40), st.integers(1, 4096)


@given(BYTES, RANKS)
def test_an_all_reduce_in_a_ring_is_a_reduce_scatter_and_an_all_gather(share: int, world_size: int) -> None:
    whole = share * world_size
    apart = ring_bytes("reduce-scatter", whole, world_size) + ring_bytes("all-gather", share, world_size)
    assert ring_bytes("all-reduce", whole, world_size) == pytest.approx(apart)


@given(BYTES, RANKS)
def test_in_an_all_gather_each_rank_receives_what_the_others_bring(share: int, world_size: int) -> None:
    sent_by_all = world_size * ring_bytes("all-gather", share, world_size)
    assert sent_by_all == world_size * (world_size - 1) * share


@pytest.mark.parametrize("kind", ["all-reduce", "reduce-scatter", "all-gather", "other"])
def test_a_rank_alone_sends_nothing(kind: str) -> None:
    assert ring_bytes(kind, 1 << 30, 1) == 0
