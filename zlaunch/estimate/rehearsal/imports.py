"""What every rehearsal imports, once, before anything else asks for a part of it."""

import importlib
import operator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from zlaunch.estimate.rehearsal.lazy_modules import import_later

_MODULES = (
    "deepspeed",
    "transformers",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "torch.testing._internal.distributed.fake_pg",
    "torch.utils.flop_counter",
)


def import_packages(*, fast: bool = True) -> None:
    """Import what every rehearsal needs, so that forks share it; without `fast`, as it comes."""
    _leave_uncompiled()
    if fast:
        _import_no_compiler()
        _import_no_symbols()
        _share_no_tensors()
        _list_models_once()
    for name in _MODULES:
        importlib.import_module(name)


def _leave_uncompiled() -> None:
    """Compiling starts a compiler, for an optimizer that hardly anybody uses."""
    import torch

    def compile_nothing(model: Any = None, **_: Any) -> Any:
        return model if model is not None else lambda function: function

    torch.compile = compile_nothing


def _list_models_once() -> None:
    """Transformers reads its 1,600 files to list the models, and its `models` read them again."""
    from transformers.utils import import_utils

    plain = import_utils.create_import_structure_from_path

    def listed(path: Any) -> Any:
        path = Path(path)
        return plain(path.parent if path.name == "__init__.py" else path)  # it keeps what it read by path

    import_utils.create_import_structure_from_path = listed


def _import_no_compiler() -> None:
    """Everything keeps torch's own compiler out of its functions; it need not be imported for that."""

    def keep_out(function: Any = None, *_: Any, **__: Any) -> Any:
        return function if function is not None else keep_out

    known = {
        **dict.fromkeys(("disable", "allow_in_graph", "assume_constant_result"), keep_out),
        "is_compiling": lambda: False,
        "graph_break": lambda: None,
        "trace_rules": SimpleNamespace(clear_lru_cache=lambda: None),  # a process group empties it
    }
    import_later("torch._dynamo", known)
    import_later("torch._dynamo.config", alone=True)
    names = {"ConstantSource": str, "RandomValueSource": NotImplementedError}  # how messages call tensors
    import_later("torch._dynamo.source", names)
    import_later("torch._dynamo._trace_wrapped_higher_order_op", alone=True)


class _Nothing(Exception):
    """In place of a class of which nothing here is an instance, and that nobody raises."""


_GUARDS = ("guard_or_false", "guard_or_true", "guard_size_oblivious", "expect_true", "statically_known_true")
_OF_NUMBERS: dict[str, Any] = {
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
    "GuardOnDataDependentSymNode": _Nothing,
}
"""What `torch.fx.experimental.symbolic_shapes` answers for shapes that are numbers."""


def _import_no_symbols() -> None:
    """Every shape here is a number; half a second of algebra is imported for those that are not."""
    import_later("torch.fx.experimental.symbolic_shapes", _OF_NUMBERS, alone=True)
    importlib.import_module("torch.utils._sympy")
    import_later("torch.utils._sympy.functions", {"Max": max}, alone=True)
    import_later("sympy", dict.fromkeys(("Basic", "Expr", "Integer", "Symbol"), _Nothing))


def _share_no_tensors() -> None:
    """Nothing here is a DTensor, which transformers imports, and of which torch asks."""
    from transformers import utils
    from transformers.utils import import_utils

    importlib.import_module("torch.distributed")
    import_later("torch.distributed.tensor", {"DTensor": _Nothing})
    import_utils.is_torch_distributed_available = utils.is_torch_distributed_available = lambda: False
