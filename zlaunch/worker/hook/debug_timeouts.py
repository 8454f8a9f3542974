"""How long ranks wait for one that stops at a breakpoint."""

from datetime import timedelta

PATIENCE = timedelta(days=7)
"""In milliseconds it still fits 32 bits."""

PATIENT = {
    "DEEPSPEED_TIMEOUT": str(PATIENCE // timedelta(minutes=1)),
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(PATIENCE // timedelta(seconds=1)),
}
"""Timeouts of DeepSpeed and of NCCL's watchdog while a rank is debugged."""
