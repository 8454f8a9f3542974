"""Published times of training steps, and the jobs that they were of.

A run is in `published_steps.json` if its source says the GPUs, the model, the stage, the micro-batch, the
length, activation checkpointing and a steady time or throughput, if it is data-parallel alone (DeepSpeed, or
FSDP as stage 3 and its SHARD_GRAD_OP as stage 2), without torch.compile and FP8, on a GPU that zlaunch
knows. `seconds` is worked out from `published`: model TFLOPS by the formula that the source gives.

Which half of the runs the constants of `zlaunch.estimate.speed.step_time` were fitted to is settled by the run's id
alone: `is_for_calibration`. The other half tests them.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.estimate.memory.jobs import job
from zlaunch.estimate.speed.step_time import DeviceSpeed
from zlaunch.estimate.workload import Lora, Workload
from zlaunch.hosts.machine.gpu_catalog import known_gpus

FILE = Path(__file__).parent / "published_steps.json"


@dataclass(frozen=True)
class Published:
    """One row of the file."""

    id: str
    source: str
    engine: str
    seconds: float
    row: dict[str, Any]
    model: dict[str, Any]

    @property
    def is_for_calibration(self) -> bool:
        """Whether the constants may be fitted to it; a coin that its id tosses."""
        return hashlib.sha256(self.id.encode()).digest()[0] % 2 == 0

    @property
    def workload(self) -> Workload:
        """Describe the job as an estimate is asked for it."""
        row = self.row
        zero = {key: {"device": row[key]} for key in ("offload_optimizer", "offload_param") if key in row}
        asked = job(
            "gpt2",
            row["stage"],
            world_size=row["gpus"],
            micro_batch=row["micro_batch"],
            accumulation=row["accumulation"],
            precision=row.get("precision", "bf16"),
            seq_len=row["seq_len"],
            activation_checkpointing=row["checkpointing"],
            attention=row.get("attention", "sdpa"),
            lora=Lora(row["lora_rank"]) if "lora_rank" in row else None,
            **zero,
        )
        return replace(asked, model=self.model, ranks_per_host=row["per_host"])

    @property
    def machine(self) -> DeviceSpeed:
        """Describe what it ran on, without the network, of which an estimate is told nothing."""
        gpu, row = known_gpus()[self.row["gpu"]], self.row
        nvlink = row.get("nvlink_gb", gpu.nvlink_bandwidth / 1e9) * 1e9
        memory = row.get("memory_gb", gpu.memory_bandwidth / 1e9) * 1e9
        return DeviceSpeed(replace(gpu, nvlink_bandwidth=nvlink, memory_bandwidth=memory))


def published() -> list[Published]:
    """Read the file."""
    found = json.loads(FILE.read_text())
    return [
        Published(row["id"], row["source"], row["engine"], row["seconds"], row, found["models"][row["model"]])
        for row in found["runs"]
    ]
