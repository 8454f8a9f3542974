"""Modules that are imported when something of them is used, if ever."""

import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """A module that has not run yet, but answers what is known of it."""

    def __getattr__(self, name: str) -> Any:
        """Run the module when a name is asked for that is not known, or for a submodule."""
        if "_known" in self.__dict__ and (self._asks_for_submodule(name) or not name.startswith("__")):
            from torch.utils._python_dispatch import _disable_current_modes

            with _disable_current_modes():  # what a module makes when it runs is no part of a rehearsal
                if not self._alone:
                    sys.modules[self.__name__.rpartition(".")[0]].__path__  # noqa: B018 - it runs first
                self._run()
            return getattr(self, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def _asks_for_submodule(self, name: str) -> bool:
        spec = self.__spec__
        return name == "__path__" and spec is not None and spec.submodule_search_locations is not None

    def _run(self) -> None:
        spec = self.__spec__
        if spec is None or spec.loader is None or "_known" not in self.__dict__:
            return  # its package needed it
        for known in self.__dict__.pop("_known"):
            delattr(self, known)
        if spec.submodule_search_locations is not None:
            self.__path__ = spec.submodule_search_locations
        spec.loader.exec_module(self)


def import_later(name: str, known: Mapping[str, Any] | None = None, *, alone: bool = False) -> None:
    """Put a module into its place that runs as soon as anything but `known` is asked of it.

    So does its package, unless the module can do `alone`, without it.
    """
    package, _, child = name.rpartition(".")
    path = sys.modules[package].__spec__.submodule_search_locations if package else None  # type: ignore[union-attr]
    spec = PathFinder.find_spec(name, path)
    if name in sys.modules or spec is None:
        return
    module = module_from_spec(spec)
    module.__dict__.pop("__path__", None)
    module.__class__ = _Later
    module.__dict__.update(known or {}, _known=tuple(known or ()), _alone=alone or not package)
    sys.modules[name] = module
    if package:
        setattr(sys.modules[package], child, module)
