"""Find the file of a module like `python -m`, without importing its packages."""

import difflib
import os
import pkgutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from zlaunch.errors import InputMissing
from zlaunch.units import listed

_MAIN = "__main__"
MOST_SHOWN = 5
"""Modules that a hint names."""


def find_module(name: str, environ: Mapping[str, str]) -> Path:
    """Return the source file that `python -m NAME` would run; raise InputMissing if there is none."""
    # The import path of the ranks: the working directory, then `sys.path`.
    with_own_folder = not getattr(sys.flags, "safe_path", False)
    path = [entry for entry in sys.path[with_own_folder:] if entry]
    if not environ.get("PYTHONSAFEPATH"):
        path.insert(0, str(Path.cwd()))
    outer, inside, missing = _walk(name, path)
    if outer is None or missing is not None:
        raise _not_found(name, missing or "", outer, inside)
    return _file_to_run(name, outer, inside)


def _walk(name: str, path: list[str]) -> tuple[ModuleSpec | None, list[str], str | None]:
    """Find the specs along a name: the last one, where its modules are, and the part that is missing."""
    outer: ModuleSpec | None = None
    parts = name.split(".")
    for number, part in enumerate(parts, 1):
        if not part:
            return outer, path, part
        spec = _spec(".".join(parts[:number]), path, is_first=number == 1)
        if spec is None:
            return outer, path, part
        outer, path = spec, _inside(spec, part, path)
    return outer, path, None


def _file_to_run(name: str, spec: ModuleSpec, inside: Sequence[str]) -> Path:
    if spec.submodule_search_locations is None:
        return _source_file(name, spec)
    return _main_of(name, inside)


def _spec(name: str, path: Sequence[str], is_first: bool) -> ModuleSpec | None:
    """Ask each finder of Python; only PathFinder needs the path for a top-level module."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None:
            continue
        spec: ModuleSpec | None
        try:
            if is_first and finder is not PathFinder:
                spec = find(name, None)
            else:
                spec = find(name, path)
        except KeyError:  # a folder without `__init__.py` asks for the one around it, which is not imported
            spec = ModuleSpec(name, None, is_package=True)
        if spec is not None:
            return spec
    return None


def _inside(spec: ModuleSpec, part: str, path: Sequence[str]) -> list[str]:
    """Return where the modules of a package are. Without an `__init__.py`, its spec does not tell."""
    if spec.origin is None and spec.submodule_search_locations is not None:
        folders = [os.path.join(entry, part) for entry in path]  # noqa: PTH118 - as the finders do
        return [folder for folder in folders if Path(folder).is_dir()]
    return list(spec.submodule_search_locations or ())


def _main_of(name: str, path: Sequence[str]) -> Path:
    """Return the `__main__` of a package."""
    main = _spec(f"{name}.{_MAIN}", path, is_first=False)
    if main is not None:
        return _source_file(name, main)
    hint = None
    if inner := [module for module in _modules_in(path) if module != "__init__"]:
        hint = f"write `-m {name}.NAME`; it has {_listed(inner)}"
    raise InputMissing(f"`-m {name}`: {name} is a package without a `{_MAIN}`", hint)


def _source_file(name: str, spec: ModuleSpec) -> Path:
    if spec.origin is None or not spec.has_location or Path(spec.origin).suffix != ".py":
        raise InputMissing(
            f"`-m {name}`: this module has no Python source", "use a module that is a Python file"
        )
    return Path(spec.origin)


def _not_found(name: str, part: str, outer: ModuleSpec | None, path: list[str]) -> InputMissing:
    """Explain which part of a name is missing, with a suggestion."""
    if (command := _command_for_file(name)) is not None:
        return InputMissing(f"`-m {name}` names a file, not a module", f"write `{command}`")
    if not all(word.isidentifier() for word in name.split(".")):
        return InputMissing(
            f"`-m {name}` is not a module name", "write it as in `import`: `-m package.module`"
        )
    names = [module for module in _modules_in(path) if not module.startswith("_")]
    close = difflib.get_close_matches(part, names, 1)
    if outer is None:
        similar = ".".join([*close, *name.split(".")[1:]])
        is_there = bool(close) and _exists(similar, path)
        where = f"it is neither in {Path.cwd()} nor installed"
        hint = "start where `python -m` finds it, or name its file: `zlaunch train FILE`"
    else:
        similar, is_there = ".".join([outer.name, *close]), bool(close)
        where = f"{outer.name} has no `{part}`"
        hint = f"{outer.name} is a module, not a package"
        if names:
            hint = f"it has {_listed(names)}"
    if is_there:
        hint = f"did you mean `-m {similar}`?"
    return InputMissing(f"there is no module `{name}`: {where}", hint)


def _exists(name: str, path: list[str]) -> bool:
    """Whether there is a module to suggest; what is listed may not be there, such as a broken link."""
    spec, inside, missing = _walk(name, path)
    if spec is None or missing is not None:
        return False
    try:
        _file_to_run(name, spec, inside)
    except InputMissing:
        return False
    return True


def _command_for_file(name: str) -> str | None:
    """Return the right command if the name is a file."""
    if name.endswith(".py") and Path(name).is_file():
        as_module = Path(os.path.relpath(name)).with_suffix("").parts
        if "/" not in name and all(word.isidentifier() for word in as_module):
            return f"-m {'.'.join(as_module)}"
        return f"zlaunch train {name}"
    return None


def _modules_in(path: Iterable[str]) -> list[str]:
    return sorted({module.name for module in pkgutil.iter_modules([*path])})


def _listed(names: Sequence[str]) -> str:
    return listed([f"`{name}`" for name in names], MOST_SHOWN)
