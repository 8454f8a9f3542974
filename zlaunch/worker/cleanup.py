"""What a job leaves outside of its run directory, because DeepSpeed forgets it: deleted when the job is over.

Ranks delete what is theirs when they end. zlaunch does so when nothing of the job runs any more, or its guard
if zlaunch was killed: they outlive ranks that are killed.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from zlaunch.files import read_object
from zlaunch.rundir.layout import RunDir

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - DeepSpeed chose it


def buffer_of(rank: int, environment: Mapping[str, str]) -> Path:
    """Name the 66 MiB of a rank that stay in shared memory on a CPU (`csrc/cpu/comm/shm.cpp`)."""
    where = "_".join(environment.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return SHARED_MEMORY / f"deepspeed_allreduce_buffer_{os.getuid()}_{where}_{rank}"


def buffers_here(layout: RunDir) -> Iterator[str]:
    """Name those of all ranks of a run that have started on this host."""
    for file in layout.ranks.glob("rank-*.json"):
        record = read_object(file)
        if record.get("buffer") and record.get("host") == os.uname().nodename:
            yield str(record["buffer"])


def delete(swap_dirs: Iterable[str | Path], buffers: Iterable[str | Path]) -> None:
    """Delete a run's own directories on NVMe, and buffers."""
    import shutil

    for directory in swap_dirs:
        shutil.rmtree(directory, ignore_errors=True)
    for buffer in buffers:
        with contextlib.suppress(OSError):
            Path(buffer).unlink()
