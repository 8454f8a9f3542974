"""The training runs that a rehearsal must foretell to the byte, by name.

The model is small, and the buckets smaller: they are flushed several times, and stage 3 fetches and releases.
"""

from typing import Any

from zlaunch.estimate.workload import Images, Lora

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2000,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 192,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "vocab_size": 2001,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
"""An odd vocabulary, dropout, biases, and an embedding that is the head as well."""

BUCKETS: dict[str, Any] = {
    "reduce_bucket_size": 300_000,
    "allgather_bucket_size": 300_000,
    "stage3_prefetch_bucket_size": 100_000,
    "stage3_max_live_parameters": 500_000,
    "stage3_max_reuse_distance": 500_000,
    "stage3_param_persistence_threshold": 1_000,
    "stage3_gather_16bit_weights_on_model_save": True,
}
MIXTRAL: dict[str, Any] = {
    **LLAMA,
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
"""Its experts are taken apart when it is saved."""
VISION: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
}
LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "image_token_index": 7,
    "image_seq_length": 16,
    "text_config": LLAMA,
    "vision_config": VISION,
}
"""An image of 16 tokens goes into each of its sequences."""
TEXT: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 2000,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
QWEN: dict[str, Any] = {
    "image_token_id": 7,
    "video_token_id": 8,
    "vision_start_token_id": 9,
    "vision_end_token_id": 10,
}
QWEN_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_heads": 4,
    "out_hidden_size": 256,
}
QWEN2_5_VL: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    **QWEN,
    "text_config": {
        **TEXT,
        "model_type": "qwen2_5_vl_text",
        "rope_parameters": {"rope_type": "default", "mrope_section": [8, 12, 12], "rope_theta": 10000.0},
    },
    "vision_config": {**QWEN_VISION, "fullatt_block_indexes": [1]},
}
QWEN3_VL: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "architectures": ["Qwen3VLForConditionalGeneration"],
    **QWEN,
    "text_config": {
        **TEXT,
        "model_type": "qwen3_vl_text",
        "rope_parameters": {"rope_type": "default", "mrope_section": [12, 10, 10], "rope_theta": 10000.0},
    },
    "vision_config": {**QWEN_VISION, "deepstack_visual_indexes": [0], "num_position_embeddings": 64},
}
GEMMA3: dict[str, Any] = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "image_token_index": 7,
    "boi_token_index": 8,
    "eoi_token_index": 9,
    "mm_tokens_per_image": 4,
    "text_config": {**TEXT, "model_type": "gemma3_text", "sliding_window": 32},
    "vision_config": {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
}
INTERNVL: dict[str, Any] = {
    "model_type": "internvl",
    "architectures": ["InternVLForConditionalGeneration"],
    "image_token_id": 7,
    "image_seq_length": 4,
    "text_config": LLAMA,
    "vision_config": {
        **VISION,
        "model_type": "internvl_vision",
        "image_size": [56, 56],
        "patch_size": [14, 14],
    },
}
LLAVA_NEXT: dict[str, Any] = {
    **LLAVA,
    "model_type": "llava_next",
    "architectures": ["LlavaNextForConditionalGeneration"],
    "image_grid_pinpoints": [[56, 112], [112, 56], [112, 112]],
}
LLAVA_ONEVISION: dict[str, Any] = {
    **LLAVA_NEXT,
    "model_type": "llava_onevision",
    "architectures": ["LlavaOnevisionForConditionalGeneration"],
    "video_token_index": 8,
    "vision_feature_layer": -1,
    "vision_config": {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False},
}
PIXTRAL: dict[str, Any] = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "image_token_index": 7,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "text_config": LLAMA,
    "vision_config": {
        **VISION,
        "model_type": "pixtral",
        "image_size": 128,
        "patch_size": 16,
        "head_dim": 32,
    },
}
MISTRAL3: dict[str, Any] = {
    **PIXTRAL,
    "model_type": "mistral3",
    "architectures": ["Mistral3ForConditionalGeneration"],
    "spatial_merge_size": 2,
    "text_config": {**LLAMA, "model_type": "mistral"},
}
IDEFICS2: dict[str, Any] = {
    "model_type": "idefics2",
    "architectures": ["Idefics2ForConditionalGeneration"],
    "image_token_id": 7,
    "text_config": {**LLAMA, "model_type": "mistral"},
    "vision_config": {**VISION, "model_type": "idefics2_vision", "image_size": 980},
    "perceiver_config": {
        "resampler_n_latents": 8,
        "resampler_depth": 1,
        "resampler_n_heads": 4,
        "resampler_head_dim": 32,
        "num_key_value_heads": 2,
        "hidden_size": 256,
    },
}
SMOLVLM: dict[str, Any] = {
    "model_type": "smolvlm",
    "architectures": ["SmolVLMForConditionalGeneration"],
    "image_token_id": 7,
    "scale_factor": 2,
    "text_config": LLAMA,
    "vision_config": {**VISION, "model_type": "smolvlm_vision"},
}
IDEFICS3: dict[str, Any] = {
    **SMOLVLM,
    "model_type": "idefics3",
    "architectures": ["Idefics3ForConditionalGeneration"],
    "vision_config": {**VISION, "model_type": "idefics3_vision"},
}
MLLAMA: dict[str, Any] = {
    "model_type": "mllama",
    "architectures": ["MllamaForConditionalGeneration"],
    "image_token_index": 7,
    "text_config": {
        **{name: value for name, value in TEXT.items() if name != "head_dim"},
        "model_type": "mllama_text_model",
        "cross_attention_layers": [1],
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    },
    "vision_config": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 4,
        "image_size": 56,
        "patch_size": 14,
        "max_num_tiles": 4,
        "vision_output_dim": 256,
        "intermediate_layers_indices": [1],
        "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
    },
}
ONE_IMAGE: dict[str, Any] = {"images": Images(1, 200, 130), "seq_len": 192}
TWO_IMAGES: dict[str, Any] = {"images": Images(2, 200, 130), "seq_len": 192}
WHISPER: dict[str, Any] = {
    "model_type": "whisper",
    "architectures": ["WhisperForConditionalGeneration"],
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "max_source_positions": 100,
    "max_target_positions": 64,
    "vocab_size": 2000,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
CTC: dict[str, Any] = {
    "model_type": "wav2vec2",
    "architectures": ["Wav2Vec2ForCTC"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "conv_dim": [32] * 7,
    "vocab_size": 32,
    "num_conv_pos_embedding_groups": 4,
    "num_conv_pos_embeddings": 16,
    "layerdrop": 0.0,
    "mask_time_prob": 0.0,
}
LORA = Lora(8, ("q_proj", "v_proj"))
WIDE: dict[str, Any] = {
    **LLAMA,
    "hidden_size": 1024,
    "intermediate_size": 1152,
    "num_hidden_layers": 2,
    "vocab_size": 512,
}
"""Most matrices are swapped: half of one is more than 1 MiB."""
SWAPPED: dict[str, Any] = {
    "model": WIDE,
    "to": "nvme",
    "zero": {
        "sub_group_size": 4_000_000,
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_reuse_distance": 0,
    },
    "zero_init": True,
}
SCALE = {"fp16": {"initial_scale_power": 4}}
"""Gradients overflow with DeepSpeed's own first scales, and then a step is left out."""
LONG: dict[str, Any] = {"model": {**LLAMA, "vocab_size": 64}, "seq_len": 256}
"""Memory is fullest within the layers, not at the loss."""

HPZ = {"zero_hpz_partition_size": 2}
AUTOTP = {"tensor_parallel": {"autotp_size": 2}}
ULYSSES = {"sequence_parallel_size": 2}

NUM_RANKS = 2


def cell(
    stage: int,
    *,
    precision: str = "bf16",
    offload: str = "",
    to: str = "cpu",
    accumulation: int = 1,
    accumulate_in: str | None = None,
    zero: dict[str, Any] | None = None,
    shared: dict[str, Any] | None = None,
    **workload: Any,
) -> dict[str, Any]:
    """Make the fields of a Workload; `shared` are keys about what ranks share, and `offload` names what is on the host or on NVMe: "optimizer" or "both"."""
    optimizer: dict[str, Any] = {"lr": 1e-4}
    if not offload:
        optimizer |= {"torch_adam": True, "foreach": False}
    ds_config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, **BUCKETS, **offloaded(offload, to), **(zero or {})},
        "optimizer": {"type": "AdamW", "params": optimizer},
        **(shared or {}),
    }
    if precision != "fp32":
        ds_config[precision] = {"enabled": True, **SCALE.get(precision, {})}
    if accumulate_in is not None:
        ds_config["data_types"] = {"grad_accum_dtype": accumulate_in}
    return {
        "model": LLAMA,
        "ds_config": ds_config,
        "world_size": NUM_RANKS,
        "ranks_per_host": NUM_RANKS,
        "seq_len": 64,
        "load_dtype": precision,
        "zero_init": False,
        "activation_checkpointing": False,
        "lora": None,
        "attention": "sdpa",
        "accelerator": "cpu",
        "save": False,
        **workload,
    }


def offloaded(what: str, to: str) -> dict[str, Any]:
    """Make the sections of what is offloaded; the ranks put a directory that is there in the place of the path."""
    on_nvme = to == "nvme"
    device = {"device": to, **({"nvme_path": "/nowhere"} if on_nvme else {})}
    buffers = {"buffer_size": 1_000_000, "buffer_count": 20} if on_nvme else {}
    sections = {"offload_optimizer": device, "offload_param": {**device, **buffers}}
    wanted = {"": (), "optimizer": ("offload_optimizer",), "both": tuple(sections)}[what]
    return {name: sections[name] for name in wanted}


CELLS: dict[str, dict[str, Any]] = {
    "0": cell(0, save=True),
    "0 fp32": cell(0, precision="fp32", save=True),
    "0 two micro-batches": cell(0, accumulation=2),
    "0 checkpointing": cell(0, activation_checkpointing=True),
    "0 fp32, long sequences": cell(0, precision="fp32", **LONG),
    "1": cell(1),
    "1 fp32, checkpointing": cell(1, precision="fp32", activation_checkpointing=True),
    "1 two micro-batches": cell(1, accumulation=2),
    "1 fp32 accumulation": cell(1, accumulate_in="fp32", save=True),
    "1 fp32 accumulation, two micro-batches": cell(1, accumulate_in="fp32", accumulation=2),
    "1 optimizer on host": cell(1, offload="optimizer"),
    "1 optimizer on host, two micro-batches": cell(1, offload="optimizer", accumulation=2),
    "1 fp16, two micro-batches": cell(1, precision="fp16", accumulation=2),
    "2": cell(2, save=True),
    "2 fp32": cell(2, precision="fp32"),
    "2 fp16": cell(2, precision="fp16"),
    "2 fp32 weights": cell(2, load_dtype="fp32"),
    "2 two micro-batches": cell(2, accumulation=2),
    "2 fp32 accumulation": cell(2, accumulate_in="fp32"),
    "2 fp32 accumulation, two micro-batches": cell(2, accumulate_in="fp32", accumulation=2),
    "2 checkpointing": cell(2, activation_checkpointing=True),
    "2 eager attention": cell(2, attention="eager"),
    "2 gradients not contiguous": cell(2, zero={"contiguous_gradients": False}),
    "2 overlapping": cell(2, zero={"overlap_comm": True}),
    "2 optimizer on host": cell(2, offload="optimizer", save=True),
    "2 optimizer on host, two micro-batches": cell(2, offload="optimizer", accumulation=2),
    "2 fp32, optimizer on host, checkpointing": cell(
        2, precision="fp32", offload="optimizer", activation_checkpointing=True
    ),
    "2 long sequences": cell(2, **LONG),
    "2 long sequences, eager attention": cell(2, attention="eager", **LONG),
    "2 long sequences, checkpointing": cell(2, activation_checkpointing=True, **LONG),
    "2 gpt2": cell(2, model=GPT2, save=True),
    "2 llava": cell(2, model=LLAVA),
    "2 qwen2.5-vl, two images": cell(2, model=QWEN2_5_VL, **TWO_IMAGES),
    "2 qwen2.5-vl, two images, checkpointing": cell(
        2, model=QWEN2_5_VL, activation_checkpointing=True, **TWO_IMAGES
    ),
    "3 zero.Init, qwen3-vl, two images": cell(3, model=QWEN3_VL, zero_init=True, **TWO_IMAGES),
    "2 gemma3, two images": cell(2, model=GEMMA3, **TWO_IMAGES),
    "2 internvl, two images": cell(2, model=INTERNVL, **TWO_IMAGES),
    "2 llava-next, two images": cell(2, model=LLAVA_NEXT, **TWO_IMAGES),
    "2 smolvlm, two images": cell(2, model=SMOLVLM, **TWO_IMAGES),
    "3 zero.Init, idefics3, two images": cell(3, model=IDEFICS3, zero_init=True, **TWO_IMAGES),
    "2 llava-onevision, one image": cell(2, model=LLAVA_ONEVISION, **ONE_IMAGE),
    "2 llava-onevision, two images": cell(2, model=LLAVA_ONEVISION, **TWO_IMAGES),
    "2 pixtral, two images": cell(2, model=PIXTRAL, **TWO_IMAGES),
    "3 zero.Init, mistral3, two images": cell(3, model=MISTRAL3, zero_init=True, **TWO_IMAGES),
    "2 idefics2, two images": cell(2, model=IDEFICS2, **TWO_IMAGES),
    "2 idefics2, two images in parts": cell(
        2, model=IDEFICS2, processor={"do_image_splitting": True}, **TWO_IMAGES
    ),
    "2 mllama, two images": cell(2, model=MLLAMA, **TWO_IMAGES),
    "2 whisper": cell(2, model=WHISPER),
    "2 wav2vec2 for CTC": cell(2, precision="fp32", model=CTC, seq_len=40),
    "3": cell(3),
    "3 zero.Init": cell(3, zero_init=True, save=True),
    "3 zero.Init, fp32": cell(3, precision="fp32", zero_init=True),
    "3 zero.Init, fp16": cell(3, precision="fp16", zero_init=True, save=True),
    "3 zero.Init, fp32 weights": cell(3, load_dtype="fp32", zero_init=True),
    "3 two micro-batches": cell(3, accumulation=2),
    "3 fp32 accumulation, two micro-batches": cell(3, accumulate_in="fp32", accumulation=2),
    "3 zero.Init, checkpointing": cell(3, zero_init=True, activation_checkpointing=True),
    "3 optimizer on host": cell(3, offload="optimizer"),
    "3 zero.Init, optimizer on host, two micro-batches": cell(
        3, zero_init=True, offload="optimizer", accumulation=2
    ),
    "3 zero.Init, both on host": cell(3, zero_init=True, offload="both", save=True),
    "3 zero.Init, both on host, checkpointing, two micro-batches": cell(
        3, zero_init=True, offload="both", activation_checkpointing=True, accumulation=2
    ),
    "3 zero.Init, fp32, both on host": cell(3, precision="fp32", zero_init=True, offload="both"),
    "3 zero.Init, fp16, both on host": cell(3, precision="fp16", zero_init=True, offload="both"),
    "3 zero.Init, optimizer on NVMe": cell(3, offload="optimizer", **SWAPPED),
    "3 zero.Init, both on NVMe": cell(3, offload="both", save=True, **SWAPPED),
    "3 zero.Init, both on NVMe, checkpointing, two micro-batches": cell(
        3, offload="both", activation_checkpointing=True, accumulation=2, **SWAPPED
    ),
    "3 long sequences, zero.Init": cell(3, zero_init=True, **LONG),
    "3 long sequences, zero.Init, checkpointing": cell(
        3, zero_init=True, activation_checkpointing=True, **LONG
    ),
    "3 zero.Init, hpZ": cell(3, zero_init=True, zero=HPZ, save=True),
    "3 zero.Init, hpZ, two micro-batches": cell(3, zero_init=True, zero=HPZ, accumulation=2),
    "3 hpZ, checkpointing": cell(3, zero=HPZ, activation_checkpointing=True),
    "0 AutoTP": cell(0, shared=AUTOTP),
    "1 AutoTP, fp32": cell(1, precision="fp32", shared=AUTOTP),
    "2 AutoTP, two micro-batches": cell(2, accumulation=2, shared=AUTOTP, save=True),
    "2 AutoTP, checkpointing": cell(2, activation_checkpointing=True, shared=AUTOTP),
    "3 AutoTP, zero.Init": cell(3, zero_init=True, shared=AUTOTP),
    "2 Ulysses": cell(2, shared=ULYSSES),
    "1 Ulysses, two micro-batches": cell(1, accumulation=2, shared=ULYSSES),
    "2 Ulysses, long sequences": cell(2, shared=ULYSSES, **LONG),
    "3 zero.Init, Ulysses, checkpointing": cell(
        3, zero_init=True, activation_checkpointing=True, shared=ULYSSES, save=True
    ),
    "2 lora": cell(2, lora=LORA, save=True),
    "3 lora, zero.Init": cell(3, lora=LORA, zero_init=True, save=True),
    "3 mixtral, zero.Init": cell(3, model=MIXTRAL, zero_init=True, save=True),
    "3 gpt2, zero.Init": cell(3, model=GPT2, zero_init=True, save=True),
}
