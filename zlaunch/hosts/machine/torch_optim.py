"""The arguments of torch's optimizers and schedulers, read from its source; torch is not imported."""

import ast
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["optimizer", "scheduler"]


class Arguments(NamedTuple):
    """The arguments that a ds_config can give to a constructor."""

    names: frozenset[str]
    needed: tuple[str, ...] = ()
    """Those without a default."""


Constructors = Callable[[Kind, str], Arguments | None]
"""Finds the arguments of an optimizer or scheduler by its name; None if they are unknown."""


def constructors_in(torch: Path | None) -> Constructors | None:
    """Return what finds the arguments of classes in a folder of torch; None without one."""
    return None if torch is None else partial(_read, torch)


@cache
def _read(torch: Path, kind: Kind, name: str) -> Arguments | None:
    # DeepSpeed gives a class the parameters or the optimizer as the first argument, and `params` by name.
    optim = torch / "optim"
    try:
        file = optim / "lr_scheduler.py" if kind == "scheduler" else _file(optim, name)
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    constructor: ast.FunctionDef | None = None
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                constructor = method
    if constructor is None:
        return None
    return _arguments(constructor.args)


def _file(optim: Path, name: str) -> Path:
    """Find the module that `torch.optim` takes a class from."""
    for node in ast.parse((optim / "__init__.py").read_bytes()).body:
        if isinstance(node, ast.ImportFrom) and any((one.asname or one.name) == name for one in node.names):
            return optim / f"{(node.module or '').rpartition('.')[2]}.py"
    raise ValueError(f"torch.optim has no {name}")


def _arguments(args: ast.arguments) -> Arguments | None:
    if args.kwarg is not None:
        return None
    given = [one.arg for one in (*args.posonlyargs, *args.args)]
    needed = given[2 : len(given) - len(args.defaults)]
    keywords = list(zip(args.kwonlyargs, args.kw_defaults, strict=True))
    return Arguments(
        frozenset({*given[2:], *(one.arg for one, _ in keywords)}),
        (*needed, *(one.arg for one, default in keywords if default is None)),
    )
