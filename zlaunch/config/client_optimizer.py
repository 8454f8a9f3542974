"""The optimizer of a script, which DeepSpeed refuses beside some ds_configs.

`_configure_optimizer` and `_do_optimizer_sanity_check` in `deepspeed/runtime/engine.py` do. The Trainer and
accelerate replace such an optimizer, or allow it.
"""

from collections.abc import Iterator

from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.errors import Finding, Place, Severity

TESTED = ("Adam", "AdamW", "Adagrad")
"""Optimizers of torch that ZeRO was tested with (`deepspeed/runtime/zero/utils.py`)."""

NOT_ON_CPU = "the optimizer is offloaded, but DeepSpeed cannot run the script's optimizer on the CPU"
ALLOW_UNTESTED = "add `--set zero_allow_untested_optimizer=true`, or use AdamW"


def instead_on_cpu(name: str) -> list[str]:
    """Say what to do about an optimizer of torch that is to run on the CPU; empty for an unknown one."""
    advice = ["`--set zero_force_ds_cpu_optimizer=false` keeps it, but is slow"]
    if "adam" in name.lower():
        own = "create `deepspeed.ops.adam.DeepSpeedCPUAdam` in the script; it takes the same arguments"
        advice.insert(0, own)
    return advice


def check_client_optimizer(name: str, place: Place, config: DsConfig) -> Iterator[Finding]:
    """Find out whether DeepSpeed refuses an optimizer of torch.optim that a script gives it."""
    offload = config.zero_optimization.offloads.get("offload_optimizer")
    is_offloaded = offload is not None and offload.device in ("cpu", "nvme")
    if is_offloaded and config.zero_force_ds_cpu_optimizer:
        message = f"{NOT_ON_CPU}: {name}"
        hint = "; or ".join(instead_on_cpu(name))
        yield Finding("client-optimizer", message, hint, severity=Severity.FAILS_LATER, place=place)
    elif config.zero_optimization.stage and name not in TESTED and not config.zero_allow_untested_optimizer:
        message = f"ZeRO refuses {name}, with which it was not tested"
        yield Finding(
            "untested-optimizer", message, ALLOW_UNTESTED, severity=Severity.FAILS_LATER, place=place
        )
