"""What a rule sees."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zlaunch.dsconfig.config import DsConfig
from zlaunch.errors import Finding


@dataclass(frozen=True)
class Subject:
    """What a rule judges: a ds_config, and how many ranks it is for, if that is known."""

    config: DsConfig
    world_size: int | None = None


Rule = Callable[[Subject], Iterator[Finding]]
