"""Import the packages of a rehearsal without the modules that it does not use."""

import contextlib
import importlib
import operator
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

_MODULES = (
    "deepspeed",
    "transformers",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "transformers.trainer_pt_utils",
    "cpuinfo",
    "torch.testing._internal.distributed.fake_pg",
    "torch.utils.flop_counter",
)
_NEWER_MODULES = (
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.module_inject.auto_ep_layer",
)
"""Modules that not all releases have."""


def import_packages(*, fast: bool = True) -> None:
    """Import what every rehearsal needs, so that forks share it; `fast` skips unused modules."""
    _disable_compile()
    if fast:
        defer_compiler()
        defer_symbolic_shapes()
        _defer_dtensor()
        list_models_once()
    for name in _MODULES:
        importlib.import_module(name)
    for name in _NEWER_MODULES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)


def prepare_to_save(model_type: str) -> None:
    """Let transformers compile what renames the weights of all its models as it saves those of one."""
    with contextlib.suppress(ImportError):  # before transformers 5
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        get_checkpoint_conversion_mapping(model_type)


def import_lazily(name: str, known: Mapping[str, object] | None = None, *, standalone: bool = False) -> None:
    """Register a module that is executed when an attribute other than those in `known` is accessed.

    Its parent package is executed first, unless the module is `standalone`. A module that is already
    imported, or not installed, is left alone.
    """
    package, _, child = name.rpartition(".")
    path = sys.modules[package].__spec__.submodule_search_locations if package else None  # type: ignore[union-attr]
    spec = PathFinder.find_spec(name, path)
    if name in sys.modules or spec is None:
        return
    module = module_from_spec(spec)
    module.__dict__.pop("__path__", None)
    module.__class__ = _LazyModule
    module.__dict__.update(known or {}, _known=tuple(known or ()), _standalone=standalone or not package)
    sys.modules[name] = module
    if package:
        setattr(sys.modules[package], child, module)


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        """Execute the module for an unknown attribute, or for its `__path__` when a submodule is imported."""
        if "_known" in self.__dict__ and (self._is_path(name) or not name.startswith("__")):
            from torch.utils._python_dispatch import _disable_current_modes

            with _disable_current_modes():  # tensors that the module creates are not part of a rehearsal
                if not self._standalone:
                    sys.modules[self.__name__.rpartition(".")[0]].__path__  # noqa: B018 - executes the parent
                self._execute()
            return getattr(self, name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def _is_path(self, name: str) -> bool:
        spec = self.__spec__
        return name == "__path__" and spec is not None and spec.submodule_search_locations is not None

    def _execute(self) -> None:
        spec = self.__spec__
        if spec is None or spec.loader is None or "_known" not in self.__dict__:
            return  # the parent has imported it
        for known in self.__dict__.pop("_known"):
            delattr(self, known)
        if spec.submodule_search_locations is not None:
            self.__path__ = spec.submodule_search_locations
        spec.loader.exec_module(self)


def _disable_compile() -> None:
    """Some optimizers call `torch.compile`, which would start a compiler."""
    import torch

    def compile_nothing(model: Callable[..., Any] | None = None, **_: object) -> Callable[..., Any]:
        if model is not None:
            return model
        return lambda function: function

    torch.compile = compile_nothing


def list_models_once() -> None:
    """Transformers lists its 1,600 model files twice: for the package and for `transformers.models`."""
    from transformers.utils import import_utils

    original = import_utils.create_import_structure_from_path

    def list_models(path: str) -> Any:
        file = Path(path)
        return original(file.parent if file.name == "__init__.py" else file)  # cached by path

    import_utils.create_import_structure_from_path = list_models


def defer_compiler() -> None:
    """Many functions are decorated with `torch._dynamo.disable`; that needs no compiler."""

    def decorate(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Callable[..., Any]:
        if function is not None:
            return function
        return decorate

    known = {
        **dict.fromkeys(("disable", "allow_in_graph", "assume_constant_result"), decorate),
        "is_compiling": lambda: False,
        "graph_break": lambda: None,
        "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None),  # called by init_process_group
        # asked whether a model is compiled, or runs as one
        "eval_frame": SimpleNamespace(OptimizedModule=_Unused, _is_in_optimized_module=lambda: False),
    }
    import_lazily("torch._dynamo", known)
    import_lazily("torch._dynamo.config", standalone=True)
    names = {"ConstantSource": str, "RandomValueSource": NotImplementedError}  # used in error messages
    import_lazily("torch._dynamo.source", names)
    import_lazily("torch._dynamo._trace_wrapped_higher_order_op", standalone=True)


class _Unused(Exception):
    """Stands for a class that has no instances here."""


_GUARDS = ("guard_or_false", "guard_or_true", "guard_size_oblivious", "expect_true", "statically_known_true")
_FOR_INTEGERS: dict[str, object] = {
    **dict.fromkeys(_GUARDS, bool),
    **dict.fromkeys(("has_guarding_hint", "has_static_value"), lambda _: True),
    **dict.fromkeys(("is_nested_int", "is_symbolic", "has_free_unbacked_symbols"), lambda _: False),
    **dict.fromkeys(("free_unbacked_symbols", "_iterate_exprs", "_iterate_nodes"), lambda _: ()),
    "guard_int": int,
    "guarding_hint_or_throw": int,
    "sym_eq": operator.eq,
    "sym_and": lambda *given: all(given),
    "sym_or": lambda *given: any(given),
    "compute_unbacked_bindings": lambda *_, **__: None,
    "GuardOnDataDependentSymNode": _Unused,
}
"""The functions of `torch.fx.experimental.symbolic_shapes`, for shapes that are integers."""


def defer_symbolic_shapes() -> None:
    """All shapes here are integers. Importing sympy for symbolic ones takes half a second."""
    import_lazily("torch.fx.experimental.symbolic_shapes", _FOR_INTEGERS, standalone=True)
    importlib.import_module("torch.utils._sympy")
    import_lazily("torch.utils._sympy.functions", {"Max": max}, standalone=True)
    import_lazily("sympy", dict.fromkeys(("Basic", "Expr", "Integer", "Symbol"), _Unused))


def _defer_dtensor() -> None:
    """No tensor here is a DTensor, but transformers imports the class and torch checks for it."""
    from transformers import utils
    from transformers.utils import import_utils

    importlib.import_module("torch.distributed")
    import_lazily("torch.distributed.tensor", {"DTensor": _Unused})
    import_utils.is_torch_distributed_available = utils.is_torch_distributed_available = lambda: False
