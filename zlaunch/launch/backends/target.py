"""What a launcher runs in each rank."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A script or a module, with its arguments."""

    name: str
    args: tuple[str, ...]
    is_module: bool = False
    wants_local_rank: bool = False
    """Whether it reads its local rank from the argument `--local_rank`."""
    hostfile: str | None = None
    """The hostfile, for launchers that reach other hosts themselves."""
