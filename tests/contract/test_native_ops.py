"""Native ops: their builders, their folders, and which of them DeepSpeed's optimizers need."""

import os
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.contract.deepspeed_side import deepspeed_reads
from tests.each import each
from zlaunch.dsconfig.native_ops import NOT_ON_CPU, OPS, NativeOp, needed_ops
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.op_cache import extensions_dir
from zlaunch.hosts.machine.probe import probe_machine

CUDA_MODULES = {
    "FusedAdamBuilder": "fused_adam",
    "FusedLambBuilder": "fused_lamb",
    "FusedLionBuilder": "fused_lion",
    "AsyncIOBuilder": "async_io",
}
ON_A_CPU = {
    "AsyncIOBuilder",
    "CPUAdagradBuilder",
    "CPUAdamBuilder",
    "CPULionBuilder",
    "FusedAdamBuilder",
    "ShareMemCommBuilder",
}

OP = pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)


def builders(op: NativeOp) -> list[Any]:
    """Find an op's builder classes: the CPU accelerator's, and the one for CUDA."""
    from deepspeed.accelerator import get_accelerator

    on_cpu = [get_accelerator().get_op_builder(op.builder)] if op.builder in ON_A_CPU else []
    module = CUDA_MODULES.get(op.builder)
    on_cuda = [getattr(import_module(f"deepspeed.ops.op_builder.{module}"), op.builder)] if module else []
    return [*on_cpu, *on_cuda]


@OP
def test_an_op_has_a_builder(op: NativeOp) -> None:
    from deepspeed.ops.op_builder.builder import OpBuilder

    assert [builder for builder in builders(op) if issubclass(builder, OpBuilder)]


@OP
def test_an_op_is_named_as_its_builder_names_its_folder(op: NativeOp) -> None:
    assert {builder.NAME for builder in builders(op)} == {op.name}


@pytest.mark.parametrize("builder", sorted(ON_A_CPU))
def test_the_cpu_accelerator_can_build_what_a_cpu_job_needs(builder: str) -> None:
    from deepspeed.accelerator import get_accelerator

    assert get_accelerator().get_op_builder(builder).__name__ == builder


@OP
def test_an_op_that_the_cpu_accelerator_does_not_have_is_known(op: NativeOp) -> None:
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().get_op_builder(op.builder)
    assert (builder.__name__ == "NotImplementedBuilder") == (op.name in NOT_ON_CPU)


ADAMS = {"FusedAdam": "fused_adam", "DeepSpeedCPUAdam": "cpu_adam", "AdamW": None, "Adam": None}
"""What the engine chooses → the op that class loads when it is made."""


@each("kind", ["Adam", "AdamW", "Muon"])
@each("device", ["none", "cpu"])
@each("torch_adam", [False, True])
def test_the_op_of_an_adam_is_the_one_that_the_engine_will_load(
    kind: str, device: str, torch_adam: bool
) -> None:
    from deepspeed.runtime.engine import DeepSpeedEngine

    params = {"torch_adam": torch_adam}
    config = {
        "train_batch_size": 1,
        "optimizer": {"type": kind, "params": dict(params)},
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": device}},
    }
    needed = {op.name for op in needed_ops(DsConfig.model_validate(config), "cuda", "adamw_torch")}
    engine = SimpleNamespace(
        _config=deepspeed_reads(config), zenflow=False, bf16_optimizer_states=lambda: False
    )
    engine.zero_use_cpu_optimizer = lambda: DeepSpeedEngine.zero_use_cpu_optimizer(engine)
    chosen, _ = DeepSpeedEngine.get_optimizer_configuration(engine, params, adam_w_mode=True)
    assert needed == {ADAMS[chosen.__name__]} - {None}


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "nothing": {},
    "a folder": {"TORCH_EXTENSIONS_DIR": "{}/ours"},
    "a cache": {"XDG_CACHE_HOME": "{}/cache"},
    "a folder and a cache": {"TORCH_EXTENSIONS_DIR": "{}/ours", "XDG_CACHE_HOME": "{}/cache"},
    "a folder that is relative": {"TORCH_EXTENSIONS_DIR": "ours"},
    "an empty folder": {"TORCH_EXTENSIONS_DIR": ""},
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_extensions_are_where_torch_keeps_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.cpp_extension import _get_build_directory

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in ENVIRONMENTS[name].items():
        monkeypatch.setenv(variable, value.format(tmp_path))
    theirs = Path(_get_build_directory("cpu_adam", verbose=False))
    assert (extensions_dir(inspect_python(None), os.environ) / "cpu_adam").resolve() == theirs.resolve()


def test_deepspeed_trains_in_fp16_on_the_cpus_that_are_said_to_have_it() -> None:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    is_said = probe_machine({"DS_ACCELERATOR": "cpu"}, inspect_python(None)).cpu_fp16
    assert is_said in (None, bool(CPU_Accelerator().is_fp16_supported()))
