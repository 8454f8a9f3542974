"""How to ask the installed DeepSpeed what it thinks of a ds_config, without GPUs and with pretended ranks."""

import contextlib
from collections.abc import Iterator
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


MESH = ("data_parallel", "sequence_parallel")


@contextlib.contextmanager
def rank_of(world_size: int, rank: int = 0) -> Iterator[None]:
    """Be one of so many ranks, in a process group of torch that sends nothing."""
    from deepspeed import comm
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        # its op for shared memory would be compiled
        with mock.patch("deepspeed.comm.torch.build_shm_op", return_value=None):
            comm.init_distributed(dist_backend="fake", verbose=False)
        yield
    finally:
        distributed.destroy_process_group()
        comm.comm.cdb = None


def deepspeed_reads(config: dict[str, Any], world_size: int = 1) -> Any:
    """Read a ds_config as `deepspeed.initialize` does on every rank; whatever DeepSpeed raises comes through."""
    read = None
    for rank in {world_size - 1, 0}:  # ranks at the ends are in different places of a mesh
        with rank_of(world_size, rank):
            read = as_rank(config)
    return read


def as_rank(config: dict[str, Any], unit: Any = None) -> Any:
    """Read a ds_config on one rank of a process group, with the model-parallel unit of a script."""
    from deepspeed import comm
    from deepspeed.runtime.config import DeepSpeedConfig

    mesh = None
    if "sequence_parallel_size" in config and "data_parallel_size" in config:
        mesh = comm.initialize_mesh_device(
            (config["data_parallel_size"], config["sequence_parallel_size"]), MESH
        )
    size = config.get("tensor_parallel", {}).get("autotp_size", 0)
    _ = size and size > 0  # it turns AutoTP on
    return DeepSpeedConfig(config, unit, mesh_device=mesh)


def asked(*path: str, **content: Any) -> Asked:
    """Let DeepSpeed read a ds_config, and see what it looks for in the object at a path."""
    from tools.recorder import read_at

    block = Asked(content)
    read_at(path, block)
    return block
