"""The cells of `make gpu-check`: models, and ways to train them."""

from dataclasses import dataclass, replace
from typing import Any

Model = dict[str, Any]


def _llama(hidden: int, ffn: int, layers: int, heads: tuple[int, int], vocab: int) -> Model:
    return {
        "model_type": "llama",
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-5,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "vocab_size": vocab,
    }


MODELS: dict[str, Model] = {
    "0.1B": _llama(768, 2048, 12, (12, 4), 32000),
    "0.5B": _llama(1280, 3456, 20, (20, 4), 50304),
    "1B": _llama(2048, 8192, 16, (32, 8), 128256),
    "3B": _llama(3072, 8192, 28, (24, 8), 128256),
    "8B": _llama(4096, 14336, 32, (32, 8), 128256),
    "tied 0.6B": {
        **_llama(1024, 3072, 28, (16, 8), 151936),
        "model_type": "qwen3",
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "gpt2 0.4B": {
        "model_type": "gpt2",
        "n_embd": 1024,
        "n_layer": 24,
        "n_head": 16,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
    "MoE 1.4B": {
        **_llama(1024, 2816, 16, (16, 4), 64000),
        "model_type": "qwen3_moe",
        "head_dim": 64,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "mixtral 2B": {
        **_llama(1024, 3584, 20, (16, 4), 32000),
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "vision 1B": {
        "model_type": "llava",
        "image_token_index": 511,
        "image_seq_length": 576,
        "text_config": _llama(1536, 4096, 20, (12, 2), 151936),
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "image_size": 336,
            "patch_size": 14,
        },
    },
}

LLAMA_31_8B: Model = {
    **MODELS["8B"],
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}

_SMALL = {
    **dict.fromkeys(("hidden_size", "n_embd"), 64),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head"), 4),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "vocab_size": 512,
    "image_size": 56,
    "image_seq_length": 16,
}


def small(model: Model) -> Model:
    """Return a tiny model of the same architecture."""
    return {
        name: small(value) if name.endswith("_config") else _SMALL.get(name, value)
        for name, value in model.items()
    }


@dataclass(frozen=True)
class Cell:
    """One configuration; `ranks` is the world size, of which only one rank runs."""

    model: str
    stage: int
    ranks: int
    seq_len: int = 2048
    micro_batch: int = 1
    checkpointing: bool = True
    offload: tuple[str, ...] = ()
    precision: str = "bf16"
    accumulation: int = 1
    accumulate_in: str = ""
    lora: int = 0
    attention: str = "sdpa"
    optimizer: str = "adamw_torch_fused"
    save: bool = False

    def workload(self) -> dict[str, Any]:
        """Return the fields of a Workload."""
        zero: dict[str, Any] = {"stage": self.stage}
        for part in self.offload:
            zero[f"offload_{part}"] = {"device": "cpu", "pin_memory": True}
        if self.save and self.stage == 3:
            zero["stage3_gather_16bit_weights_on_model_save"] = True
        ds_config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": 1.0,
            # DeepSpeed's CPU optimizer would have to be compiled; torch's has the same states.
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": zero,
        }
        if self.precision != "fp32":
            ds_config[self.precision] = {"enabled": True}
        if self.precision == "fp16":
            ds_config["fp16"]["initial_scale_power"] = (
                4  # with the default, the first steps overflow and are skipped
            )
        if self.accumulate_in:
            ds_config["data_types"] = {"grad_accum_dtype": self.accumulate_in}
        return {
            "model": MODELS[self.model],
            "ds_config": ds_config,
            "world_size": self.ranks,
            "ranks_per_host": min(8, self.ranks),
            "seq_len": self.seq_len,
            "optimizer": self.optimizer,
            "load_dtype": self.precision,
            "zero_init": self.stage == 3,
            "activation_checkpointing": self.checkpointing,
            "lora": {"rank": self.lora, "modules": ["q_proj", "v_proj"]} if self.lora else None,
            "attention": self.attention,
            "save": self.save,
        }

    def __str__(self) -> str:
        words = [
            f"{self.model}, stage {self.stage}",
            f"{'+'.join(self.offload)} on cpu" * bool(self.offload),
            f"{self.ranks} rank{'s' * (self.ranks > 1)}",
            f"{self.micro_batch} x {self.seq_len}",
            f"{self.accumulation} micro-batches" * (self.accumulation > 1),
            f"accumulated in {self.accumulate_in}" * bool(self.accumulate_in),
            self.precision * (self.precision != "bf16"),
            f"LoRA {self.lora}" * bool(self.lora),
            self.attention * (self.attention != "sdpa"),
            self.optimizer * (self.optimizer != "adamw_torch_fused"),
            "checkpointing" * self.checkpointing,
            "saved and resumed" * self.save,
        ]
        return ", ".join(filter(None, words))


_SHORT = Cell("0.1B", 2, 8, seq_len=512, micro_batch=8, checkpointing=False)
_HALF = Cell("0.5B", 2, 8)
_ONE = Cell("1B", 2, 8)
_BOTH = ("optimizer", "param")

CELLS: tuple[Cell, ...] = (
    # One of each kind; these take seconds.
    replace(_ONE, stage=3),
    _ONE,
    replace(_ONE, stage=1),
    replace(_HALF, stage=0, ranks=1, checkpointing=False),
    replace(_ONE, offload=("optimizer",)),
    replace(_ONE, stage=3, offload=_BOTH),
    Cell("MoE 1.4B", 2, 8),
    Cell("tied 0.6B", 3, 8),
    replace(_ONE, lora=16),
    replace(_HALF, precision="fp16", accumulation=2),
    replace(_HALF, ranks=2, save=True),
    replace(_HALF, stage=3, ranks=64, checkpointing=False),
    Cell("vision 1B", 2, 8),
    replace(_HALF, attention="eager", checkpointing=False),
    Cell("3B", 3, 8),
    Cell("8B", 3, 8),
    # All stages, long sequences, many ranks.
    replace(_SHORT, stage=0, ranks=1),
    _SHORT,
    replace(_SHORT, stage=3),
    replace(_HALF, stage=0, ranks=1, precision="fp32"),
    replace(_HALF, stage=1, ranks=4),
    replace(_ONE, stage=0, ranks=1, seq_len=8192),
    replace(_ONE, checkpointing=False),
    replace(_ONE, stage=3, seq_len=8192, micro_batch=2),
    replace(_ONE, stage=3, ranks=64, checkpointing=False),
    replace(_ONE, stage=3, ranks=1),
    Cell("3B", 1, 8),
    Cell("3B", 2, 8),
    Cell("3B", 2, 64, seq_len=8192),
    Cell("3B", 3, 8, offload=("optimizer",)),
    Cell("8B", 3, 64, seq_len=8192),
    Cell("8B", 2, 64),
    # Precision, accumulation, offload, optimizers.
    replace(_HALF, stage=1, ranks=4, accumulate_in="fp32", accumulation=2),
    replace(_HALF, accumulation=4),
    replace(_HALF, stage=3, precision="fp16"),
    replace(_HALF, stage=3, precision="fp32"),
    replace(_HALF, stage=3, accumulate_in="fp32", accumulation=2),
    replace(_HALF, stage=1, ranks=4, offload=("optimizer",), accumulation=2),
    replace(_HALF, stage=3, ranks=2, offload=("optimizer",), accumulation=2),
    replace(_HALF, optimizer="adamw_torch"),
    replace(_HALF, optimizer="sgd"),
    # Other models.
    Cell("gpt2 0.4B", 2, 8, seq_len=1024, micro_batch=4, checkpointing=False),
    Cell("gpt2 0.4B", 3, 8, seq_len=1024, micro_batch=4),
    Cell("tied 0.6B", 2, 8),
    Cell("MoE 1.4B", 3, 8),
    Cell("mixtral 2B", 2, 8),
    Cell("mixtral 2B", 3, 8, offload=("optimizer",)),
    Cell("vision 1B", 3, 8),
    replace(_ONE, stage=3, lora=16),
    Cell("8B", 3, 8, lora=16),
    replace(_ONE, attention="eager"),
    # Saving and resuming.
    replace(_HALF, stage=0, ranks=1, save=True),
    replace(_HALF, stage=3, ranks=2, save=True),
    replace(_HALF, stage=3, ranks=2, offload=("optimizer",), save=True),
    replace(_HALF, lora=16, ranks=2, save=True),
)

TIMED: tuple[Cell, ...] = (
    replace(_ONE, ranks=1, micro_batch=4),
    replace(_ONE, stage=3, ranks=1, micro_batch=4),
    Cell("3B", 2, 1, micro_batch=2),
    Cell("8B", 2, 1, micro_batch=2, lora=16),
    replace(_ONE, ranks=1, seq_len=8192),
    replace(_HALF, ranks=1, precision="fp32"),
    replace(_HALF, ranks=1, accumulation=4),
    Cell("MoE 1.4B", 2, 1, micro_batch=2),
    Cell("gpt2 0.4B", 1, 1, seq_len=1024, micro_batch=8),
    Cell("tied 0.6B", 2, 1, micro_batch=2),
    replace(_ONE, ranks=1, micro_batch=4, lora=16),
    replace(_SHORT, ranks=1),
    replace(_HALF, stage=0, ranks=1, micro_batch=4),
    replace(_HALF, ranks=1, micro_batch=4),
    replace(_HALF, stage=3, ranks=1, micro_batch=4),
    replace(_HALF, ranks=1, micro_batch=4, checkpointing=False),
    replace(_HALF, ranks=1, attention="eager", checkpointing=False),
)
"""The cells of `make gpu-speed`: one rank, so that no communication is missing."""


def cpu_workload(cell: Cell) -> dict[str, Any]:
    """Return the fields of a Workload that replaces a cell on the CPU, with a tiny model."""
    workload = replace(cell, seq_len=32).workload()
    buckets = dict.fromkeys(
        ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size"), 50_000
    )
    zero = {**workload["ds_config"]["zero_optimization"], **buckets}
    return {
        **workload,
        "model": small(workload["model"]),
        "ds_config": {**workload["ds_config"], "zero_optimization": zero},
        "accelerator": "cpu",
    }
