"""Delete files that DeepSpeed leaves outside of the run directory.

Each rank deletes its own when it ends. For ranks that were killed, zlaunch does so when the job is over; if
zlaunch was killed too, the guard does.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from zlaunch.rundir.record import RankRecord

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - DeepSpeed chose it


def buffer_of(rank: int, environment: Mapping[str, str]) -> Path:
    """Name the buffer of 66 MiB that a rank leaves in shared memory on a CPU (`csrc/cpu/comm/shm.cpp`)."""
    where = "_".join(environment.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return SHARED_MEMORY / f"deepspeed_allreduce_buffer_{os.getuid()}_{where}_{rank}"


def buffers_here(ranks: Iterable[RankRecord]) -> Iterator[str]:
    """Name the buffers of those ranks that have started on this host."""
    for record in ranks:
        if record.get("host") == os.uname().nodename and (buffer := record.get("buffer")):
            yield buffer


def delete(swap_dirs: Iterable[str | Path], buffers: Iterable[str | Path]) -> None:
    """Delete the NVMe directories of a run, and buffers."""
    import shutil

    for directory in swap_dirs:
        shutil.rmtree(directory, ignore_errors=True)
    for buffer in buffers:
        with contextlib.suppress(OSError):
            Path(buffer).unlink()
