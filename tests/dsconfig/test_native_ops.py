from typing import Any

import pytest

from zlaunch.dsconfig.native_ops import needed_ops
from zlaunch.dsconfig.schema.root import DsConfig


def _ops(zero: dict[str, Any], optimizer: dict[str, Any] | None = None, **other: str) -> list[str]:
    value = {"zero_optimization": zero, **({"optimizer": optimizer} if optimizer else {})}
    config = DsConfig.model_validate(value)
    trainer = other.get("trainer", "adamw_torch")
    return [op.name for op in needed_ops(config, other.get("accelerator", "cuda"), trainer)]


def _offload(device: str, part: str = "optimizer") -> dict[str, Any]:
    return {"stage": 3, f"offload_{part}": {"device": device, "nvme_path": "/nvme"}}


def _type(name: str, **params: bool) -> dict[str, Any]:
    return {"type": name, "params": params}


@pytest.mark.parametrize("zero", [{"stage": 0}, {"stage": 2}, _offload("none"), _offload("cpu", "param")])
def test_a_job_with_torchs_optimizer_on_the_gpu_needs_no_op(zero: dict[str, Any]) -> None:
    assert _ops(zero) == []


@pytest.mark.parametrize(
    ("optimizer", "ops"),
    [
        (_type("Adam"), ["fused_adam"]),
        (_type("AdamW"), ["fused_adam"]),
        (_type("AdamW", torch_adam=True), []),
        (_type("Lion"), ["fused_lion"]),
        (_type("Lamb"), ["fused_lamb"]),
        (_type("Muon"), ["fused_adam"]),
        (_type("Muon", torch_adam=True), []),
        (_type("Adagrad"), []),
        (_type("SGD"), []),
    ],
)
def test_deepspeeds_optimizer_on_the_gpu_is_fused(optimizer: dict[str, Any], ops: list[str]) -> None:
    assert _ops({"stage": 2}, optimizer) == ops


@pytest.mark.parametrize(
    ("optimizer", "ops"),
    [
        (None, ["cpu_adam"]),
        (_type("AdamW"), ["cpu_adam"]),
        (_type("AdamW", torch_adam=True), []),
        (_type("Lion"), ["cpu_lion"]),
        (_type("Adagrad"), ["cpu_adagrad"]),
        (_type("Muon"), ["cpu_adam"]),
        (_type("Muon", torch_adam=True), []),
        (_type("SGD"), []),
    ],
)
def test_an_offloaded_optimizer_runs_on_the_cpu(optimizer: dict[str, Any] | None, ops: list[str]) -> None:
    assert _ops(_offload("cpu"), optimizer) == ops


def test_the_trainers_adagrad_is_replaced_by_deepspeeds() -> None:
    assert _ops(_offload("cpu"), trainer="adagrad") == ["cpu_adagrad"]


def test_the_ds_configs_optimizer_goes_before_the_trainers() -> None:
    assert _ops(_offload("cpu"), _type("AdamW"), trainer="adagrad") == ["cpu_adam"]


@pytest.mark.parametrize("part", ["optimizer", "param"])
def test_an_offload_to_nvme_needs_asynchronous_io(part: str) -> None:
    assert "async_io" in _ops(_offload("nvme", part))


def test_asynchronous_io_is_not_needed_below_stage_3() -> None:
    assert "async_io" not in _ops({**_offload("nvme"), "stage": 2})


def test_an_optimizer_on_nvme_runs_on_the_cpu() -> None:
    assert "cpu_adam" in _ops(_offload("nvme"))


def test_ranks_on_a_cpu_reduce_through_shared_memory() -> None:
    assert _ops({"stage": 2}, accelerator="cpu") == ["deepspeed_shm_comm"]


def test_ops_come_in_the_order_in_which_a_job_meets_them() -> None:
    assert _ops(_offload("nvme"), accelerator="cpu") == ["deepspeed_shm_comm", "cpu_adam", "async_io"]


def test_an_offload_by_its_old_name_runs_on_the_cpu_as_well() -> None:
    assert _ops({"stage": 2, "cpu_offload": True}) == ["cpu_adam"]
