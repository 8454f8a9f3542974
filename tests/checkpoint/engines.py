"""The engines that save checkpoints, and those that load them: for tests that do not import torch."""

from typing import Any

ENGINES: dict[str, dict[str, Any]] = {
    "zero1": {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}},
    "zero2": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
    "zero2-fp32": {"zero_optimization": {"stage": 2}},
    "zero2-cpu": {
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "bf16": {"enabled": True},
    },
    "zero3": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}},
    "zero3-cpu": {
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "cpu"},
        },
        "bf16": {"enabled": True},
    },
    "zero2-dealt-out": {
        "zero_optimization": {"stage": 2, "round_robin_gradients": True},
        "bf16": {"enabled": True},
    },
    "bf16-optimizer": {
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
    },
    "zero1-elastic": {
        "zero_optimization": {"stage": 1, "elastic_checkpoint": True},
        "bf16": {"enabled": True},
    },
    "zero0": {"zero_optimization": {"stage": 0}},
    "zero0-bf16": {"zero_optimization": {"stage": 0}, "bf16": {"enabled": True}},
}

OTHER_OPTIMIZERS: dict[str, dict[str, Any]] = {
    f"zero1-{name}": {
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
        "optimizer": {"type": kind, "params": {"lr": 0.01}},
        "zero_allow_untested_optimizer": True,
    }
    for name, kind in (("sgd", "SGD"), ("rmsprop", "RMSprop"), ("deepspeed", "Adam"))
}
"""Engines that save nothing, with an optimizer that is not torch's Adam."""

MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "dense": ("LlamaConfig", 3, {"tie_word_embeddings": False}),
    "tied": ("LlamaConfig", 2, {"tie_word_embeddings": True}),
    "tied3": ("LlamaConfig", 3, {"tie_word_embeddings": True}),
    "moe": ("MixtralConfig", 3, {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""Name → class of the config, stage, and settings of a model of transformers."""

ADAPTERS: dict[str, tuple[int, bool, dict[str, Any]]] = {
    "lora1-alone": (1, False, {"use_rslora": True, "modules_to_save": ["lm_head"]}),
    "lora2": (2, True, {"alpha_pattern": {"layers.0.self_attn.q_proj": 32}}),
    "lora3": (3, True, {"rank_pattern": {"v_proj": 2}, "bias": "lora_only"}),
}
"""Name → stage, whether the frozen parameters are saved (a Trainer leaves them out), settings of LoRA."""
