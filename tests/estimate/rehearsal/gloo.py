"""gloo whose own threads never hold a tensor for longer than the call that gave it to them.

A thread of gloo lets go of the tensors of a collective shortly after whoever waits for it is woken. Whether
the trainer or that thread is the last to hold a tensor is a race, and the profiler is deaf to the latter.
With one thread for each group, that thread has let go once it has done anything later. (A barrier will not
do: it refers weakly to what it waits for, and then its thread is the one that deletes that.)
"""

from typing import Any


def make_prompt() -> None:
    """Let every group made from now on have one thread, and every wait for a collective wait for it."""
    import torch
    import torch.distributed
    from torch.distributed import distributed_c10d

    groups: list[Any] = []
    nothing = torch.zeros(1)

    class Gloo(torch.distributed.ProcessGroupGloo):  # type: ignore[misc]
        def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
            options = torch.distributed.ProcessGroupGloo._Options()
            options._threads = 1
            options._timeout = timeout
            options._devices = [torch.distributed.ProcessGroupGloo.create_default_device()]
            super().__init__(store, rank, size, options)
            groups.append(self)

    work = torch._C._distributed_c10d.Work
    wait = work.wait

    def wait_for_all(self: Any, *args: Any, **kwargs: Any) -> Any:
        done = wait(self, *args, **kwargs)
        for group in groups:
            wait(group.allreduce([nothing]))
        return done

    distributed_c10d.ProcessGroupGloo = Gloo
    work.wait = wait_for_all
