"""`zlaunch.checks.all_reduce RANK WORLD_SIZE ADDRESS PORT BACKEND SECONDS`: one rank of a real all-reduce.

Answers with the seconds of a small and of a large all-reduce. Runs in the Python of the ranks.
"""

import datetime as dt
import sys
import time
from typing import Any

from zlaunch.json_lines import answer

START_SECONDS = 180.0
"""Another rank may still read torch over a network file system."""
SMALL_BYTES, LARGE_BYTES = 4, 64 << 20
_WARM_UP, _MOST = 2, 200


def main(rank: int, world_size: int, master: str, backend: str, seconds: float) -> None:
    """Join the others, measure, and print the median of each size."""
    import torch
    import torch.distributed as dist

    limit = dt.timedelta(seconds=START_SECONDS)
    dist.init_process_group(
        backend, init_method=f"tcp://{master}", rank=rank, world_size=world_size, timeout=limit
    )
    device = f"cuda:{rank % torch.cuda.device_count()}" if backend == "nccl" else "cpu"
    figures = {"copy": _copy_bytes_per_second(torch, device)}
    for name, num_bytes in (("small", SMALL_BYTES), ("large", LARGE_BYTES)):
        figures[name] = _median(torch, dist, torch.ones(num_bytes // 4, device=device), seconds / 4)
    answer(figures)
    dist.destroy_process_group()


def _median(torch: Any, dist: Any, tensor: Any, seconds: float) -> float:
    """Repeat as often as rank 0 says: all must repeat equally often."""
    for _ in range(_WARM_UP):
        took = _once(torch, dist, tensor)
    times = torch.tensor([min(_MOST, max(3, int(seconds / took)))], device=tensor.device)
    dist.broadcast(times, 0)
    measured = sorted(_once(torch, dist, tensor) for _ in range(int(times)))
    return float(measured[len(measured) // 2])


def _once(torch: Any, dist: Any, tensor: Any) -> float:
    started = time.perf_counter()
    dist.all_reduce(tensor)
    if tensor.is_cuda:
        torch.cuda.synchronize()
    took = time.perf_counter() - started
    tensor.fill_(1)
    return took


def _copy_bytes_per_second(torch: Any, device: str) -> float:
    """How fast memory is copied: what ranks on one host cannot exceed."""
    source = torch.ones(LARGE_BYTES // 4, device=device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(5):
        started = time.perf_counter()
        target.copy_(source)
        if target.is_cuda:
            torch.cuda.synchronize()
        best = max(best, LARGE_BYTES / (time.perf_counter() - started))
    return best


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), f"{sys.argv[3]}:{sys.argv[4]}", sys.argv[5], float(sys.argv[6]))
