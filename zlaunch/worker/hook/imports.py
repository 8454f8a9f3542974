"""Run code right after a module was executed, so that nothing is imported that the script does not import."""

import contextlib
import sys
from collections.abc import Callable, Collection, Sequence
from types import FunctionType, ModuleType, TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

Function = TypeVar("Function", bound=Callable[..., object])

UNSEEN = "<zlaunch/worker/hook/imports.py, like importlib._bootstrap>"
"""File name of the wrappers: Python's warnings skip frames with `importlib` and `_bootstrap` in theirs."""


def _nothing() -> None:
    """Do nothing after a module."""


class ImportWatch:
    """Calls a function with each of these modules, after its execution."""

    def __init__(
        self,
        names: Collection[str],
        executed: Callable[[ModuleType], None],
        begin: Callable[[], Callable[[], object]] = lambda: _nothing,
    ) -> None:
        """`begin` is called before one of the modules is executed, and returns what to call afterwards."""
        self._names, self._executed, self._begin = names, executed, begin
        self._looking = False

    def install(self) -> None:
        """Become the first finder of modules; report those that are imported already."""
        sys.meta_path.insert(0, self)
        for name in self._names:
            if name in sys.modules:
                self._report(sys.modules[name])

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> "ModuleSpec | None":
        """Let the other finders find a module, and report it after its execution."""
        if fullname not in self._names or self._looking:
            return None
        self._looking = True
        try:
            others = (
                finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self
            )
            spec = next((spec for spec in others if spec is not None), None)
        finally:
            self._looking = False
        if spec is None:
            return None
        loader = spec.loader
        with contextlib.suppress(AttributeError):  # a loader of another kind
            execute = loader.exec_module  # type: ignore[union-attr]
            loader.exec_module = self._watched(loader, execute)  # type: ignore[union-attr, method-assign]
        return spec

    def _watched(
        self, loader: "Loader | None", execute: Callable[[ModuleType], None]
    ) -> Callable[[ModuleType], None]:
        def execution(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            end = self._begin()
            try:
                execute(module)
            except BaseException as error:
                end()
                error.__traceback__ = without_first(error)
                raise
            end()
            self._report(module)

        return unseen(execution)

    def _report(self, module: ModuleType) -> None:
        with contextlib.suppress(Exception):
            self._executed(module)


def without_first(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception without the frame of a wrapper."""
    return error.__traceback__ and error.__traceback__.tb_next


def unseen(function: Function) -> Function:
    """Make Python skip a wrapper when it looks for the line that a warning is about."""
    made = cast("FunctionType", function)
    made.__code__ = made.__code__.replace(co_filename=UNSEEN)
    return function
