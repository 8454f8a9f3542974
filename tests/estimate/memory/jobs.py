"""Jobs on ten well-known models, and the ladder of settings they are tried with."""

import json
from pathlib import Path
from typing import Any

from zlaunch.estimate.workload import Workload

CONFIGS = Path(__file__).parent / "configs"

TEN = (
    "gpt2",
    "opt-1.3b",
    "pythia-1.4b",
    "llama-2-7b",
    "llama-3-8b",
    "llama-3-70b",
    "mistral-7b",
    "qwen2.5-7b",
    "qwen2.5-0.5b",
    "phi-3-mini",
)
"""The ten whose forecasts are compared."""


CPU = {"device": "cpu"}

LADDER: dict[str, tuple[int, dict[str, Any]]] = {
    "0": (0, {}),
    "1": (1, {}),
    "2": (2, {}),
    "3": (3, {}),
    "2, optimizer on cpu": (2, {"offload_optimizer": CPU}),
    "3, optimizer on cpu": (3, {"offload_optimizer": CPU}),
    "3, both on cpu": (3, {"offload_optimizer": CPU, "offload_param": CPU, "zero_init": True}),
}
"""The settings that are compared: a stage, and what else is set."""

LOADS: dict[str, dict[str, Any]] = {
    "checkpointing": {"seq_len": 1024, "activation_checkpointing": True},
    "four sequences": {"seq_len": 1024, "micro_batch": 4, "world_size": 16},
}
"""What each is compared with: hardly any activations, and many."""


def config(model: str) -> dict[str, Any]:
    """Read a model's config.json."""
    found: dict[str, Any] = json.loads((CONFIGS / f"{model}.json").read_text())
    return found


def job(
    model: str,
    stage: int,
    *,
    world_size: int = 8,
    micro_batch: int = 1,
    accumulation: int = 1,
    precision: str = "bf16",
    **zero: Any,
) -> Workload:
    """Describe a training job; what is not named here goes to `zero_optimization` or the workload."""
    own = {name: zero.pop(name) for name in _OWN if name in zero}
    ds_config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, **zero},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        **({precision: {"enabled": True}} if precision != "fp32" else {}),
        **own.pop("top", {}),
    }
    defaults: dict[str, Any] = {"seq_len": 1024, "save": False, "load_dtype": precision}
    return Workload(
        model=config(model),
        ds_config=ds_config,
        world_size=world_size,
        ranks_per_host=min(8, world_size),
        **{**defaults, **own},
    )


_OWN = ("seq_len", "rank", "zero_init", "activation_checkpointing", "lora", "attention", "top", "optimizer")
