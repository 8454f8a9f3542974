"""What a job needs of one machine, as far as it is known before it starts.

`train` knows a plan. `doctor` knows the ds_config at hand, if there is one.
"""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Final, NamedTuple

from zlaunch.errors import Finding
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.resources import Gpu
from zlaunch.job.args import NO_ARGS, ScriptArgs

RUN_BYTES: Final = 4 << 20
"""Disk space for zlaunch's own files in a run directory, and the first logs."""


class Amount(NamedTuple):
    """An amount in bytes: the minimum, the expected value, and the reason."""

    least: int
    likely: int
    why: str


class DiskUse(NamedTuple):
    """Disk space that a job needs in a directory."""

    path: Path
    num_bytes: int
    what: str
    elsewhere: str
    """The option that puts it somewhere else."""
    over_run: int = 0
    """The bytes that several of it take until the end of the run; 0 if that is unknown."""


class Tracker(NamedTuple):
    """A monitor that a job enables."""

    where: str
    """The key or flag that enables it."""
    said: str
    packages: tuple[str, ...]
    """One of these is enough."""
    instead: str
    """How to do without it."""


@dataclass(frozen=True)
class ConfigAtHand:
    """The ds_config that a job here would read."""

    name: str
    findings: tuple[Finding, ...] = ()
    """Mistakes for which it is refused."""
    warnings: tuple[Finding, ...] = ()
    """What may make its jobs train something else, such as known defects of the releases."""
    shown_by: str | None = None
    """The command that shows them, if it is not `zlaunch config validate`."""


@dataclass(frozen=True)
class Requirements:
    """The resources that a job needs on one machine; unknown ones are None."""

    ranks: int = 0
    """Ranks on this machine."""
    devices: tuple[int, ...] | None = None
    """GPUs that the job will use; None for all of them."""
    gpu_bytes: int | None = None
    """On each GPU."""
    memory: Amount | None = None
    shm_bytes: int = 0
    shm_users: tuple[str, ...] = ()
    """What else uses /dev/shm, in unknown amounts."""
    locked_bytes: int | None = 0
    """Bytes that each rank locks with mlock, regardless of `pin_memory`."""
    uses_infiniband: bool = False
    """Whether NCCL sends over it if there is any."""
    spans_hosts: bool = False
    """Whether ranks may run on other hosts, even if a filter leaves a single one."""
    crosses_hosts: bool = False
    """Whether ranks of this machine communicate with other hosts."""
    socket_variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that choose an interface, where the job sets its own."""
    writes: tuple[DiskUse, ...] = ()
    directories: Mapping[str, Path] = field(default_factory=dict)
    """Name → a directory that jobs write to, in unknown amounts."""
    monitors: tuple[Tracker, ...] = ()
    args: ScriptArgs = NO_ARGS
    """Arguments that the Trainer reads; none for other scripts."""
    config: ConfigAtHand | None = None

    def uses(self, gpu: Gpu) -> bool:
        """Whether the job will use a GPU of the machine."""
        return self.devices is None or gpu.index in self.devices


ANY_JOB = Requirements(uses_infiniband=True)
"""What is asked about a machine of which no job is known."""
