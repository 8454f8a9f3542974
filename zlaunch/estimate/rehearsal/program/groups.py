"""Process groups in which only this rank is there: what others would send is taken to be like its own."""

import contextlib
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed
from torch.distributed import distributed_c10d


def apply() -> None:
    """Let every process group be a fake one of the size of the job."""
    init, new = distributed_c10d.init_process_group, distributed_c10d.new_group

    def init_fake(*_: object, **__: object) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        init("fake", rank=rank, world_size=size, store=FakeStore())

    def new_fake(ranks: Sequence[int] | None = None, *_: object, **kwargs: Any) -> Any:
        kept = {name: kwargs[name] for name in ("use_local_synchronization", "group_desc") if name in kwargs}
        return new(ranks, backend="fake", **kept)

    replaced: dict[str, Any] = {
        "init_process_group": init_fake,
        "new_group": new_fake,
        "broadcast_object_list": lambda *_, **__: None,
        "all_gather_object": _all_gather_object,
        "gather_object": _gather_object,
        "scatter_object_list": _scatter_object_list,
        "barrier": _barrier,
        "monitored_barrier": lambda *_, **__: None,
    }
    for name, function in replaced.items():
        for module in (distributed, distributed_c10d):
            setattr(module, name, function)
    _keep_generators()


def _barrier(*_: object, async_op: bool = False, **__: object) -> Any:
    if async_op:
        return SimpleNamespace(wait=lambda *_: True, is_completed=lambda: True)
    return None


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * len(object_list)


def _gather_object(obj: Any, object_gather_list: list[Any] | None = None, *_: object, **__: object) -> None:
    if object_gather_list is not None:
        _all_gather_object(object_gather_list, obj)


def _scatter_object_list(
    output: list[Any], objects: list[Any] | None = None, *_: object, **__: object
) -> None:
    if objects:
        output[0] = objects[distributed.get_rank()]


def _keep_generators() -> None:
    """Accelerate sends the state of a generator over the GPU, which has no data here."""
    with contextlib.suppress(ImportError):
        import accelerate.data_loader
        import accelerate.utils.random

        for module in (accelerate.data_loader, accelerate.utils.random):
            module.synchronize_rng_states = lambda *_, **__: None
    assert torch.distributed.is_available()
