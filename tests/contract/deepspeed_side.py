"""How to ask the installed DeepSpeed what it thinks of a ds_config, without ranks and without GPUs."""

from typing import Any
from unittest import mock

from tools.asked import Asked


class Ranks:
    """What DeepSpeed takes for a model-parallel unit: it says how many data-parallel ranks there are."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def get_data_parallel_world_size(self) -> int:
        return self.world_size

    def get_data_parallel_rank(self) -> int:
        return 0


def deepspeed_reads(config: dict[str, Any], world_size: int = 1) -> Any:
    """Read a ds_config as every rank does; whatever DeepSpeed raises comes through."""
    from deepspeed.runtime.config import DeepSpeedConfig

    with mock.patch("deepspeed.runtime.config.dist.get_rank", return_value=0):
        return DeepSpeedConfig(config, mpu=Ranks(world_size))


def asked(*path: str, **content: Any) -> Asked:
    """Let DeepSpeed read a ds_config, and see what it looks for in the object at a path."""
    from tools.recorder import read_at

    block = Asked(content)
    read_at(path, block)
    return block
