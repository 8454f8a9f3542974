"""The schedulers: each module here is one, and has its `SCHEDULER`."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from zlaunch.launch.scheduler import Scheduler


def schedulers() -> Mapping[str, Scheduler[Any]]:
    """Import all schedulers, by their names."""
    names = [module.name for module in iter_modules(__path__)]
    return {name: import_module(f"{__name__}.{name}").SCHEDULER for name in names}
