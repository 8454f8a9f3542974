"""The cells of `make gpu-check`: models from 0.1 to 8 billion parameters, and how they are trained."""

from dataclasses import dataclass
from typing import Any

LLAMA = {"model_type": "llama", "max_position_embeddings": 16384, "rms_norm_eps": 1e-5}


def _llama(hidden: int, ffn: int, layers: int, heads: tuple[int, int], vocab: int) -> dict[str, Any]:
    return {
        **LLAMA,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "vocab_size": vocab,
    }


MODELS = {
    "0.1B": _llama(768, 2048, 12, (12, 4), 32000),
    "0.5B": _llama(1280, 3456, 20, (20, 4), 50304),
    "1B": _llama(2048, 8192, 16, (32, 8), 128256),
    "3B": _llama(3072, 8192, 28, (24, 8), 128256),
    "8B": _llama(4096, 14336, 32, (32, 8), 128256),
}


@dataclass(frozen=True)
class Cell:
    """One configuration; `ranks` is the world size, of which one rank is there."""

    model: str
    stage: int
    ranks: int
    seq_len: int = 2048
    micro_batch: int = 1
    checkpointing: bool = True
    offload: tuple[str, ...] = ()

    def workload(self) -> dict[str, Any]:
        """Write the fields of a Workload."""
        zero: dict[str, Any] = {"stage": self.stage}
        for part in self.offload:
            zero[f"offload_{part}"] = {"device": "cpu", "pin_memory": True}
        ds_config = {
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0,
            # The other ranks send nothing, so the numbers are garbage: nothing may look at them.
            "bf16": {"enabled": True, "check_grad_overflow": False},
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": zero,
        }
        return {
            "model": MODELS[self.model],
            "ds_config": ds_config,
            "world_size": self.ranks,
            "ranks_per_host": min(8, self.ranks),
            "seq_len": self.seq_len,
            "optimizer": "adamw_torch_fused",
            "zero_init": self.stage == 3,
            "activation_checkpointing": self.checkpointing,
            "save": False,
        }

    def __str__(self) -> str:
        moved = f" {'+'.join(self.offload)} on cpu" if self.offload else ""
        checkpointing = ", checkpointing" if self.checkpointing else ""
        return (
            f"{self.model}, stage {self.stage}{moved}, {self.ranks} ranks, "
            f"{self.micro_batch} x {self.seq_len} tokens{checkpointing}"
        )


CELLS = (
    Cell("0.1B", 0, 1, checkpointing=False, micro_batch=8, seq_len=512),
    Cell("0.1B", 2, 8, checkpointing=False, micro_batch=8, seq_len=512),
    Cell("0.1B", 3, 8, checkpointing=False, micro_batch=8, seq_len=512),
    Cell("0.5B", 0, 1, checkpointing=False),
    Cell("0.5B", 1, 4),
    Cell("0.5B", 3, 64),
    Cell("1B", 0, 1),
    Cell("1B", 0, 1, seq_len=8192),
    Cell("1B", 1, 8),
    Cell("1B", 2, 8),
    Cell("1B", 2, 8, checkpointing=False),
    Cell("1B", 2, 8, offload=("optimizer",)),
    Cell("1B", 3, 8),
    Cell("1B", 3, 8, seq_len=8192, micro_batch=2),
    Cell("1B", 3, 64, checkpointing=False),
    Cell("1B", 3, 8, offload=("optimizer", "param")),
    Cell("3B", 1, 8),
    Cell("3B", 2, 8),
    Cell("3B", 2, 64, seq_len=8192),
    Cell("3B", 3, 8),
    Cell("3B", 3, 8, offload=("optimizer",)),
    Cell("8B", 2, 64),
    Cell("8B", 3, 8),
    Cell("8B", 3, 64, seq_len=8192),
)
