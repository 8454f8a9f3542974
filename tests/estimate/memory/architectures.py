"""Many architectures under four settings: what the closed form says of each beside a rehearsal.

Their configs are transformers' own defaults with few layers, as `save_pretrained` writes them, so that
nothing here needs transformers; `record_architectures` makes them.
"""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zlaunch.errors import Refused
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.memory.closed_form import forecast
from zlaunch.estimate.workload import Lora, Workload
from zlaunch.job.model import ModelConfig
from zlaunch.job.model_checks import usable_positions

FILE: Final = Path(__file__).parent / "architectures.json"
"""Architecture → its config, and setting → bytes of tensors at the peak, or why there are none."""

SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "stage 2": {"stage": 2, "micro_batch": 1, "seq_len": 2048, "activation_checkpointing": True},
    "stage 3": {"stage": 3, "micro_batch": 4, "seq_len": 1024},
    "stage 1, LoRA": {"stage": 1, "micro_batch": 2, "seq_len": 512, "lora": Lora(16)},
    "stage 3, LoRA": {
        "stage": 3,
        "micro_batch": 2,
        "seq_len": 1024,
        "lora": Lora(16),
        "activation_checkpointing": True,
    },
}
"""On eight ranks in bf16, with the buckets that the Trainer's "auto" becomes."""

SET: Final = (
    *(
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "phi",
        "phi3",
        "gpt2",
        "gpt_neo",
    ),
    *(
        "gpt_neox",
        "gptj",
        "opt",
        "bloom",
        "falcon",
        "mpt",
        "starcoder2",
        "stablelm",
        "olmo",
        "olmo2",
        "cohere",
    ),
    *("granite", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss", "bert", "roberta"),
    *(
        "distilbert",
        "electra",
        "albert",
        "modernbert",
        "t5",
        "mt5",
        "bart",
        "gpt_bigcode",
        "arcee",
        "lfm2",
        "ernie4_5_moe",
    ),
)
"""The claims were set on these, and the closed form mended."""

HELD_OUT: Final = (
    *("smollm3", "xlm-roberta", "camembert", "cohere2", "olmo3", "seed_oss", "apertus"),
    *("glm4_moe", "flex_olmo", "vaultgemma", "umt5", "mbart"),
    *("blenderbot", "m2m_100", "megatron-bert", "ernie", "xglm", "biogpt", "codegen", "exaone4", "helium"),
    *(
        "granitemoe",
        "glm",
        "glm4",
        "persimmon",
        "bitnet",
        "pegasus",
        "ernie4_5",
        "deepseek_v2",
        "phimoe",
        "granitemoeshared",
        "solar_open",
        "exaone_moe",
        "hunyuan_v1_moe",
    ),
)
"""These only test them."""


@dataclass(frozen=True)
class Cell:
    """One architecture under one setting."""

    architecture: str
    setting: str
    peak: int
    """Bytes as rehearsed."""
    found: Forecast

    @property
    def off(self) -> float:
        """Say by what fraction of the rehearsal the closed form is too high, or below 0 too low."""
        return self.found.peak("gpu") / self.peak - 1

    @property
    def factor(self) -> float:
        """Say by what factor the two differ, either way."""
        return max(1 + self.off, 1 / (1 + self.off))

    @property
    def is_true(self) -> bool:
        """Whether the rehearsal lies within what the closed form claims."""
        least, most = self.found.bounds(self.found.peak("gpu"))
        return least <= self.peak <= most


Recorded = dict[str, dict[str, Any]]


def recorded() -> Recorded:
    """Read what was written down."""
    found: Recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def known_sizes(config: dict[str, Any]) -> bool:
    """Whether the closed form can read a config at all."""
    try:
        forecast(job(config, "stage 2"))
    except Refused:
        return False
    return True


def job(config: dict[str, Any], setting: str) -> Workload:
    """Describe the job of an architecture under a setting; a sequence is no longer than its positions."""
    given = dict(SETTINGS[setting])
    stage, micro_batch, seq_len = (given.pop(name) for name in ("stage", "micro_batch", "seq_len"))
    width = next(config[key] for key in ("hidden_size", "d_model", "n_embd", "dim") if config.get(key))
    positions = usable_positions(ModelConfig(config, "", "")) or seq_len
    zero = {
        "stage": stage,
        "reduce_bucket_size": width**2,
        "stage3_prefetch_bucket_size": width**2 * 9 // 10,
        "stage3_param_persistence_threshold": 10 * width,
    }
    ds_config = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }
    return Workload(
        cublas_bytes=0,  # the models are small beside the workspaces, which are no part of them
        model=config,
        ds_config=ds_config,
        world_size=8,
        ranks_per_host=8,
        seq_len=min(seq_len, positions),
        load_dtype="bf16",
        zero_init=stage == 3,
        save=False,
        **given,
    )


@functools.cache
def cells() -> list[Cell]:
    """List what was rehearsed, beside what the closed form says now."""
    return [
        Cell(name, setting, peak, forecast(job(entry["config"], setting)))
        for name, entry in recorded().items()
        if known_sizes(entry["config"])
        for setting, peak in entry["peaks"].items()
        if isinstance(peak, int)
    ]
