"""What a launcher is to run in each rank."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A script or a module, with its arguments."""

    name: str
    args: tuple[str, ...]
    is_module: bool = False
    hostfile: str | None = None
    """Where the hosts are written down, for launchers that reach them themselves."""
