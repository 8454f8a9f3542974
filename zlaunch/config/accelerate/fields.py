"""The fields of an accelerate config, and the ds_config from those about DeepSpeed."""

from collections.abc import Callable, Mapping
from typing import Any

from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.frozen import dataclass

SECTION, FILE = "deepspeed_config", "deepspeed_config_file"
DEEPSPEED = "DEEPSPEED"
NO_PATH = "none"
"""Accelerate's value for a missing path; DeepSpeed reads it as a directory of that name."""

# fmt: off
KEYS: tuple[str, ...] = (
    "compute_environment", "distributed_type", "mixed_precision", "use_cpu", "debug", "num_processes",
    "machine_rank", "num_machines", "gpu_ids", "main_process_ip", "main_process_port", "rdzv_backend",
    "same_network", "main_training_function", "enable_cpu_affinity", "fp8_config", SECTION, "fsdp_config",
    "parallelism_config", "megatron_lm_config", "mpirun_config", "downcast_bf16", "tpu_name", "tpu_zone",
    "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env", "dynamo_config",
)
"""The keys of a config for this machine or cluster (`ClusterConfig`)."""

OLD_KEYS = ("fp16", "dynamo_backend")
"""Keys of earlier releases that accelerate still reads."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "compute_environment": ("LOCAL_MACHINE", "AMAZON_SAGEMAKER"),
    "distributed_type": (
        "NO", "MULTI_CPU", "MULTI_GPU", "MULTI_NPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU",
        DEEPSPEED, "FSDP", "XLA", "MEGATRON_LM", "MULTI_HPU", "MULTI_NEURON",
    ),
    "mixed_precision": ("no", "fp8", "fp16", "bf16"),
}
# fmt: on

PREFIXES: Mapping[str, str] = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}
"""Sections whose fields may be written without their prefix."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field that becomes a key of the ds_config."""

    path: KeyPath
    read: Callable[[str], object]
    default: object
    kind: str = ""


def _steps(text: str) -> int | str:
    if text.isdigit():
        return int(text)
    return text


def _clip(text: str) -> float | str:
    if text.lower() == "auto":
        return "auto"
    return float(text)


def _is_true(text: str) -> bool:
    return text.lower() == "true"


FIELDS: Mapping[str, Field] = {
    "zero_stage": Field((ZERO, "stage"), int, 2, "a whole number"),
    "gradient_accumulation_steps": Field(("gradient_accumulation_steps",), _steps, "auto"),
    "gradient_clipping": Field(("gradient_clipping",), _clip, "auto", "a number"),
    "offload_optimizer_device": Field((ZERO, "offload_optimizer", "device"), str.lower, "none"),
    "offload_param_device": Field((ZERO, "offload_param", "device"), str.lower, "none"),
    "zero3_save_16bit_model": Field((ZERO, "stage3_gather_16bit_weights_on_model_save"), _is_true, False),
}
"""Fields that reach the ranks as text and are parsed by `DeepSpeedPlugin`."""

NVME_PATHS: Mapping[str, KeyPath] = {
    "offload_optimizer_nvme_path": (ZERO, "offload_optimizer", "nvme_path"),
    "offload_param_nvme_path": (ZERO, "offload_param", "nvme_path"),
}
"""Fields that accelerate asks for but does not pass on."""

REFUSED_BESIDE_A_FILE = (*FIELDS, *NVME_PATHS)
FOR_SEVERAL_HOSTS = ("deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter")
SECTION_KEYS: tuple[str, ...] = (
    FILE,
    *REFUSED_BESIDE_A_FILE,
    *FOR_SEVERAL_HOSTS,
    "deepspeed_multinode_launcher",
    "deepspeed_moe_layer_cls_names",
    "zero3_init_flag",
)


def amount_to(values: Mapping[str, Any], precision: str) -> dict[str, Any]:
    """Write the ds_config as `DeepSpeedPlugin` does."""
    config: dict[str, Any] = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": values["gradient_accumulation_steps"],
        ZERO: {
            "stage": values["zero_stage"],
            "offload_optimizer": _offload(values["offload_optimizer_device"]),
            "offload_param": _offload(values["offload_param_device"]),
            "stage3_gather_16bit_weights_on_model_save": values["zero3_save_16bit_model"],
        },
    }
    if values["gradient_clipping"]:
        config["gradient_clipping"] = values["gradient_clipping"]
    fp16 = {"enabled": True, "auto_cast": True} if precision == "fp16" else {"enabled": False}
    return {**config, "fp16": fp16, "bf16": {"enabled": precision in ("bf16", "fp8")}}


def _offload(device: str) -> dict[str, object]:
    return {"device": device, "nvme_path": NO_PATH if device == "nvme" else None}
