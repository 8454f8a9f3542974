import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.estimate.rehearsing import rehearse, rehearse_apart
from zlaunch.estimate.forecast import PHASES, RESUME
from zlaunch.estimate.rehearse import ENVIRONMENT
from zlaunch.estimate.workload import Lora, Workload

pytestmark = pytest.mark.job

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2000,
    "max_position_embeddings": 512,
}
ADAM = {"type": "AdamW", "params": {"lr": 1e-4}}
SMALL_BUCKETS = {
    "reduce_bucket_size": 500_000,
    "stage3_prefetch_bucket_size": 200_000,
    "stage3_param_persistence_threshold": 1_000,
    "stage3_max_reuse_distance": 300_000,
}


def workload(stage: int, zero: dict[str, Any] | None = None, **changed: Any) -> Workload:
    ds_config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": ADAM,
        "zero_optimization": {"stage": stage, **SMALL_BUCKETS, **(zero or {})},
    }
    fields = {"world_size": 4, "ranks_per_host": 4, "seq_len": 64, "zero_init": stage == 3, **changed}
    return Workload(model=LLAMA, ds_config=ds_config, **fields)


def with_optim(name: str) -> Workload:
    """Leave the optimizer to the Trainer."""
    asked = workload(2, accelerator="cuda", optimizer=name)
    ds_config = {key: value for key, value in asked.ds_config.items() if key != "optimizer"}
    return replace(asked, ds_config=ds_config)


def entries(asked: Workload, *extra: str) -> Any:
    """Rehearse in a process of its own, and return all its allocations."""
    text = TypeAdapter(Workload).dump_json(asked).decode()
    argv = [sys.executable, "-m", "tests.estimate.slow_rehearsal", text, *extra]
    env = {**os.environ, **ENVIRONMENT}
    return json.loads(subprocess.run(argv, env=env, capture_output=True, check=True).stdout)


OFFLOADED = {name: {"device": "cpu", "pin_memory": True} for name in ("offload_optimizer", "offload_param")}


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(workload(0), marks=pytest.mark.full),
        pytest.param(workload(2, activation_checkpointing=True), marks=pytest.mark.full),
        pytest.param(workload(3), marks=pytest.mark.full),
        workload(3, OFFLOADED, world_size=6, ranks_per_host=2),
    ],
    ids=["stage 0", "stage 2", "stage 3", "stage 3 offloaded"],
)
def test_what_saves_time_changes_no_allocation(asked: Workload) -> None:
    assert entries(asked, "fast") == entries(asked)


def test_the_same_question_has_the_same_answer_in_every_process() -> None:
    """Experts are gathered in the order of a set."""
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    asked = replace(workload(3), model={**LLAMA, **experts})
    (first,), (second,) = rehearse([asked]), rehearse_apart([asked])
    assert first.phases == second.phases
    assert first.curve == second.curve


def test_every_phase_of_a_run_is_in_the_forecast() -> None:
    (forecast,) = rehearse([workload(2)])
    assert tuple(phase.name for phase in forecast.phases) == PHASES
    assert forecast.resume is not None
    assert forecast.resume.phase is not None
    assert forecast.resume.phase.name == RESUME


def test_a_process_that_resumes_has_never_held_what_training_leaves() -> None:
    """Its engine has no gradients, and the moments that it loads are the only ones."""
    for forecast in rehearse([workload(stage) for stage in (2, 3)]):
        assert forecast.resume is not None
        states = forecast.resume.parts["gpu"]["optimizer states"]
        assert states <= 1.01 * forecast.parts["gpu"]["optimizer states"]


def test_what_each_pool_holds_at_its_peak_has_names_that_add_up() -> None:
    for forecast in rehearse([workload(stage) for stage in range(4)]):
        for pool, parts in forecast.parts.items():
            assert sum(parts.values()) == forecast.peak(pool)  # type: ignore[arg-type]


def offloaded_to_nvme(buffer_count: int, drive: str = "/proc/nowhere") -> Workload:
    """Offload a model that is large enough for DeepSpeed to swap all of it."""
    nvme = {"device": "nvme", "nvme_path": drive, "pin_memory": True}
    param = {**nvme, "buffer_size": 50_000_000, "buffer_count": buffer_count}
    asked = workload(3, {"offload_optimizer": nvme, "offload_param": param}, save=False)
    wide = {"hidden_size": 2048, "intermediate_size": 5504, "num_hidden_layers": 8, "vocab_size": 32_000}
    return replace(asked, model={**LLAMA, **wide})


def test_files_on_nvme_hold_18_bytes_for_each_parameter_of_a_rank() -> None:
    (forecast,) = rehearse([offloaded_to_nvme(buffer_count=30)])
    assert forecast.late_error is None
    assert forecast.peak("nvme") == pytest.approx(18 * forecast.parameters / 4, rel=0.02)


def test_what_a_job_swapped_to_nvme_outlives_a_rehearsal(tmp_path: Path) -> None:
    swapped = tmp_path / "zero_stage_3" / "bfloat16params" / "rank0" / "0_param.tensor.swp"
    swapped.parent.mkdir(parents=True)
    swapped.touch()
    rehearse([offloaded_to_nvme(buffer_count=2, drive=str(tmp_path))])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [swapped]
    assert len(list(tmp_path.rglob("*"))) == 4


def test_what_deepspeed_raises_late_is_part_of_the_forecast() -> None:
    (forecast,) = rehearse([offloaded_to_nvme(buffer_count=2)])
    assert forecast.late_error is not None
    assert "Not enough buffers" in forecast.late_error


def test_adapters_are_all_that_trains_with_lora() -> None:
    plain, adapted = rehearse([workload(2), workload(2, lora=Lora(8, ("q_proj", "v_proj")))])
    # 3 layers, two adapted matrices of 256 x 256 and 128 x 256, rank 8
    assert adapted.trainable == 3 * 8 * (256 + 256 + 256 + 128)
    assert adapted.parameters == plain.parameters + adapted.trainable
    assert adapted.peak("gpu") < plain.peak("gpu")


def test_experts_are_rehearsed_in_fp32() -> None:
    experts = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    asked = workload(3, accelerator="cuda")
    asked = replace(asked, model=experts, ds_config={**asked.ds_config, "bf16": {"enabled": False}})
    assert rehearse([asked])[0].why_not_rehearsed is None


def test_adafactor_keeps_one_number_for_each_weight_of_a_rank_in_fp32() -> None:
    parts = rehearse([with_optim("adafactor")])[0].parts["gpu"]
    assert parts["optimizer states"] == pytest.approx(parts["master weights"], rel=0.01)


def test_an_optimizer_that_cannot_be_rehearsed_is_named_in_the_reason() -> None:
    forecast = rehearse([with_optim("adamw_8bit")])[0]
    assert forecast.why_not_rehearsed == "the Trainer's `--optim adamw_8bit` cannot be rehearsed"


@pytest.mark.parametrize("stage", [3, *(pytest.param(one, marks=pytest.mark.full) for one in (0, 2))])
def test_a_step_needs_six_operations_for_each_weight_and_token(stage: int) -> None:
    (forecast,) = rehearse([workload(stage, seq_len=16)])
    matrices = forecast.parameters - LLAMA["vocab_size"] * LLAMA["hidden_size"]  # type: ignore[operator]
    tokens = 2 * 16
    assert forecast.flops == pytest.approx(6 * matrices * tokens, rel=0.05)


def test_a_step_needs_six_operations_for_each_weight_of_the_experts_that_a_token_goes_to() -> None:
    experts = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    asked = replace(workload(2, seq_len=16, accelerator="cuda"), model=experts)
    (forecast,) = rehearse([asked])
    width, inner, layers = (
        int(str(LLAMA[key])) for key in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )
    idle = layers * (4 - 2) * 3 * width * inner
    matrices = forecast.parameters - idle - int(str(LLAMA["vocab_size"])) * width
    assert forecast.flops == pytest.approx(6 * matrices * 2 * 16, rel=0.05)
