from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimate.memory.jobs import job
from zlaunch.estimate.memory.closed_form import forecast
from zlaunch.estimate.speed.step_time import DeviceSpeed, Roofline, step_speed
from zlaunch.hosts.machine.gpu_catalog import known_gpus
from zlaunch.hosts.machine.measured_speeds import MeasuredSpeeds

H100 = DeviceSpeed(known_gpus()["H100-80GB"])
CPU = {"device": "cpu"}
BOTH = {"offload_optimizer": CPU, "offload_param": CPU}
_DRIVE = {"device": "nvme", "nvme_path": "/nvme"}
NVME = {"offload_optimizer": _DRIVE, "offload_param": _DRIVE}


def of(model: str = "llama-3-8b", stage: int = 2, machine: DeviceSpeed = H100, **rest: Any) -> Roofline:
    workload = job(model, stage, **rest)
    return step_speed(workload, machine, forecast(workload).flops).roofline


def term(found: Roofline, name: str) -> float:
    return next((term.seconds for term in found.terms if term.name == name), 0.0)


def test_compute_is_six_operations_for_each_weight_and_token() -> None:
    flops = term(of(seq_len=128), "compute") * H100.gpu.half_flops
    assert flops == pytest.approx(6 * 7_504_657_408 * 128, rel=0.01)  # all weights but the embedding's


def test_computing_again_costs_up_to_a_third_more() -> None:
    plain, again = of(seq_len=128), of(seq_len=128, activation_checkpointing=True)
    # Not computed again: the output, and each layer's last matrix.
    flops = 2 * 128 * (8_030_261_248 - 2 * 128_256 * 4096 - 32 * 14336 * 4096 - 65 * 4096)
    again_flops = (term(again, "compute") - term(plain, "compute")) * H100.gpu.half_flops
    assert again_flops == pytest.approx(flops, rel=0.01)


def test_a_long_sequence_costs_more_than_its_tokens() -> None:
    assert term(of(seq_len=65536), "compute") > 1.5 * 64 * term(of(seq_len=1024), "compute")


def test_a_mixture_computes_with_the_experts_that_are_asked() -> None:
    flops = term(of("mixtral-8x7b", seq_len=128), "compute") * H100.gpu.half_flops
    assert flops == pytest.approx(6 * 12.7e9 * 128, rel=0.02)


def test_the_bound_is_the_longest_of_what_overlaps_and_the_rest() -> None:
    found = of(stage=3, offload_optimizer=CPU)
    together = max(term.seconds for term in found.terms if term.overlaps)
    assert found.seconds == pytest.approx(together + term(found, "optimizer"))


@given(
    st.sampled_from(
        [(0, {}), (1, {}), (2, {}), (3, {}), (2, {"offload_optimizer": CPU}), (3, BOTH), (3, NVME)]
    ),
    st.sampled_from([1, 2, 8, 64]),
    st.sampled_from([*known_gpus().values()]),
)
def test_a_range_has_a_width_and_lies_above_the_bound(rung: Any, ranks: int, gpu: Any) -> None:
    stage, offload = rung
    found = of("gpt2", stage, DeviceSpeed(gpu), world_size=ranks, **offload)
    assert found.seconds <= found.likely[0] < found.middle < found.likely[1]
    assert all(term.seconds <= term.likely[0] <= term.likely[1] for term in found.terms)


@pytest.mark.parametrize("gpu", ["A100-80GB", "H100-80GB", "RTX-4090"])
def test_on_one_host_each_stage_and_each_offload_is_as_slow_as_the_one_before(gpu: str) -> None:
    rungs: list[tuple[int, dict[str, Any]]] = [
        (1, {}),
        (2, {}),
        (3, {}),
        (3, {"offload_optimizer": CPU}),
        (3, BOTH),
        (3, NVME),
    ]
    times = [
        of("llama-2-7b", stage, DeviceSpeed(known_gpus()[gpu]), accumulation=8, **zero).middle
        for stage, zero in rungs
    ]
    assert times == sorted(times)


def test_a_known_network_narrows_the_range() -> None:
    unknown, known = (
        of(stage=3, machine=DeviceSpeed(known_gpus()["H100-80GB"], network), world_size=64)
        for network in (None, 400e9)
    )
    assert unknown.likely[0] <= known.likely[0] < known.likely[1] < unknown.likely[1]


@pytest.mark.parametrize("part", ["links", "network", "nvme"])
def test_what_was_measured_takes_the_place_of_the_data_sheet(part: str) -> None:
    config: dict[str, Any] = {"world_size": 64, "stage": 3, **NVME}
    if part == "links":
        config = {"world_size": 8, "stage": 3}
    slow, fast = (
        of(machine=DeviceSpeed(H100.gpu, measured=MeasuredSpeeds(**{part: speed})), **config)
        for speed in (1e9, 2e9)
    )
    name = {"nvme": "nvme"}.get(part, "network")
    (before,), (after,) = ([term for term in found.terms if term.name == name] for found in (slow, fast))
    assert before.likely[1] == pytest.approx(2 * after.likely[1], rel=0.05)
    assert "1 GB/s measured" in before.why


def test_more_hosts_never_make_a_step_faster() -> None:
    one, two, many = (of(stage=3, world_size=ranks).middle for ranks in (8, 16, 512))
    assert one < two < many


def test_a_small_batch_waits_for_the_hooks_of_stage_3() -> None:
    two, three = (of(stage=stage, seq_len=16).likely[1] for stage in (2, 3))
    assert three > 1.3 * two


def test_a_large_batch_is_bound_by_compute() -> None:
    assert of(micro_batch=8, seq_len=4096).bound_by == "compute"


def test_a_slow_network_bounds_stage_3_on_many_hosts() -> None:
    slow = DeviceSpeed(known_gpus()["H100-80GB"], network_bandwidth=1e9)
    assert of(stage=3, machine=slow, world_size=64).bound_by == "network"


def test_an_optimizer_on_the_cpu_is_slower_than_one_on_the_gpu() -> None:
    assert term(of(offload_optimizer=CPU), "optimizer") > 50 * term(of(), "optimizer")


def test_nvme_comes_on_top() -> None:
    nvme = {"device": "nvme", "nvme_path": "/nvme"}
    found = of(stage=3, offload_optimizer=nvme)
    assert found.bound_by == "nvme"
    assert found.seconds > term(found, "nvme")


@given(st.integers(0, 3), st.integers(1, 16), st.sampled_from([*known_gpus().values()]))
def test_twice_the_micro_batch_never_takes_twice_as_long(stage: int, micro_batch: int, gpu: Any) -> None:
    one, two = (
        of("gpt2", stage, DeviceSpeed(gpu), micro_batch=size).seconds
        for size in (micro_batch, 2 * micro_batch)
    )
    assert one <= two <= 2 * one * (1 + 1e-9)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_of_parameters_that_a_rehearsal_found_frozen_are_not_sent(stage: int) -> None:
    workload = job("llama-3-8b", stage, world_size=8)
    speed = step_speed(workload, H100, 1e15, trained=1_000_000)
    gradients = [found.nbytes for found in speed.traffic.collectives if found.of == "gradients"]
    assert gradients == [2_000_000]


def test_the_optimizer_steps_only_what_a_rehearsal_found_trained() -> None:
    workload = job("llama-3-8b", 0)
    whole = term(step_speed(workload, H100, 1e15).roofline, "optimizer")
    half = term(step_speed(workload, H100, 1e15, trained=8_030_261_248 // 2).roofline, "optimizer")
    assert half == pytest.approx(whole / 2)
