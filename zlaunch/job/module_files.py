"""Find the file of a module like `python -m`, without importing its packages."""

import difflib
import os
import pkgutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from zlaunch.errors import InputMissing

_MAIN = "__main__"


def find_module(name: str, environ: Mapping[str, str]) -> Path:
    """Return the source file that `python -m NAME` would run; raise InputMissing if there is none."""
    # The import path of the ranks: the working directory, then `sys.path`.
    with_own_folder = not getattr(sys.flags, "safe_path", False)
    seen = [entry for entry in sys.path[with_own_folder:] if entry]
    path = seen if environ.get("PYTHONSAFEPATH") else [str(Path.cwd()), *seen]
    outer, inside, missing = _walk(name, path)
    if outer is None or missing is not None:
        raise _missing(name, missing or "", outer, inside)
    return _file(name, outer, inside)


def _walk(name: str, path: list[str]) -> tuple[ModuleSpec | None, list[str], str | None]:
    """Find the specs along a name: the last one, where its modules are, and the part that is missing."""
    outer: ModuleSpec | None = None
    parts = name.split(".")
    for number, part in enumerate(parts, 1):
        spec = _spec(".".join(parts[:number]), path, is_first=number == 1) if part else None
        if spec is None:
            return outer, path, part
        outer, path = spec, _inside(spec, part, path)
    return outer, path, None


def _file(name: str, spec: ModuleSpec, inside: Sequence[str]) -> Path:
    return _source(name, spec) if spec.submodule_search_locations is None else _main_of(name, inside)


def _spec(name: str, path: Sequence[str], is_first: bool) -> ModuleSpec | None:
    """Ask each finder of Python; only PathFinder needs the path for a top-level module."""
    for finder in sys.meta_path:
        where = None if is_first and finder is not PathFinder else path
        find = getattr(finder, "find_spec", None)
        try:
            spec: ModuleSpec | None = None if find is None else find(name, where)
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
        return _source(name, main)
    inner = [one for one in _names(path) if one != "__init__"]
    raise InputMissing(
        f"`-m {name}`: {name} is a package without a `{_MAIN}`",
        f"write `-m {name}.NAME`; it has {_listed(inner)}" if inner else None,
    )


def _source(name: str, spec: ModuleSpec) -> Path:
    if spec.origin is None or not spec.has_location or Path(spec.origin).suffix != ".py":
        raise InputMissing(
            f"`-m {name}`: this module has no Python source", "use a module that is a Python file"
        )
    return Path(spec.origin)


def _missing(name: str, part: str, outer: ModuleSpec | None, path: list[str]) -> InputMissing:
    """Explain which part of a name is missing, with a suggestion."""
    if (meant := _meant_as_file(name)) is not None:
        return InputMissing(f"`-m {name}` names a file, not a module", f"write `{meant}`")
    if not all(word.isidentifier() for word in name.split(".")):
        return InputMissing(
            f"`-m {name}` is not a module name", "write it as in `import`: `-m package.module`"
        )
    names = [one for one in _names(path) if not one.startswith("_")]
    close = difflib.get_close_matches(part, names, 1)
    if outer is None:
        whole = ".".join([*close, *name.split(".")[1:]])
        close = close if close and _exists(whole, path) else []
        where = f"it is neither in {Path.cwd()} nor installed"
        hint = "start where `python -m` finds it, or name its file: `zlaunch train FILE`"
    else:
        whole = ".".join([outer.name, *close])
        where = f"{outer.name} has no `{part}`"
        hint = f"it has {_listed(names)}" if names else f"{outer.name} is a module, not a package"
    return InputMissing(
        f"there is no module `{name}`: {where}", f"did you mean `-m {whole}`?" if close else hint
    )


def _exists(name: str, path: list[str]) -> bool:
    """Whether there is a module to suggest; what is listed may not be there, such as a broken link."""
    spec, inside, missing = _walk(name, path)
    if spec is None or missing is not None:
        return False
    try:
        _file(name, spec, inside)
    except InputMissing:
        return False
    return True


def _meant_as_file(name: str) -> str | None:
    """Return the right command if the name is a file."""
    if name.endswith(".py") and Path(name).is_file():
        as_module = Path(os.path.relpath(name)).with_suffix("").parts
        if "/" not in name and all(word.isidentifier() for word in as_module):
            return f"-m {'.'.join(as_module)}"
        return f"zlaunch train {name}"
    return None


def _names(path: Iterable[str]) -> list[str]:
    return sorted({module.name for module in pkgutil.iter_modules([*path])})


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*(f"`{name}`" for name in names[:most]), *more])
