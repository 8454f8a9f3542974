"""Recognize programs that start ranks themselves, by their source."""

import ast
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from zlaunch.errors import InputMissing
from zlaunch.job.module_files import find_module

_MODULES = {
    "deepspeed.launcher.runner": "DeepSpeed's launcher",
    "deepspeed.launcher.launch": "DeepSpeed's launcher",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.launcher": "torchrun",
    "torch.distributed.launcher.api": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
}
"""Module of a launcher → its name."""

_COMMANDS = r"(?:\S*/)?(?P<name>deepspeed|torchrun|accelerate)(?: launch)?(?=\s|$)"

_NAMES = {
    "deepspeed": "DeepSpeed's launcher",
    "torchrun": "torchrun",
    "accelerate": "accelerate launch",
}
"""Program → name of the launcher."""

_STARTS_NOTHING = ("get_args_parser", "parse_args", "config_from_args", "LaunchConfig")

_STARTERS = (
    "run",
    "call",
    "check_call",
    "check_output",
    "Popen",
    "system",
    "execvp",
    "execv",
    "execlp",
    "execvpe",
)
"""Functions that start another program."""

_PARTS_OF_A_RANK = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "--local_rank", "--local-rank"),
        *("init_process_group", "init_distributed", "is_torchelastic_launched", "initialize", "Accelerator"),
        *("backward", "Trainer", "PartialState"),
    }
)
"""Names and texts of a program that may itself be a rank, such as one that starts its own file again."""


def launcher_in(path: Path) -> str | None:
    """Return the launcher that the program in a file certainly calls; None if it may be a rank itself."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return launcher_of(tuple(ast.walk(tree)))


_TRAINS = frozenset({"train", "fit", "TrainingArguments"})
"""Names, but not texts, of a program that may train itself."""

_OWN_FOLDER = (
    r"dirname\((?:os\.path\.\w+\(|realpath\(|abspath\()*__file__|Path\(__file__\)(?:\.\w+\(\))*\.parent"
)
_OWN_FILE = r"__file__|sys\.argv\[0\]|(?:\*|\+ )sys\.argv(?!\[)"
"""How a program names its own file, which it may start again."""


def launcher_near(module: str, environ: Mapping[str, str]) -> str | None:
    """Return the launcher that a module, or what it imports of its own package, calls for some command."""
    names, seen = deque([(module, 0)]), {module}
    package = module.partition(".")[0]
    while names and len(seen) < _MOST_MODULES:
        name, depth = names.popleft()
        nodes = _nodes_of(name, environ)
        launcher = _called_launcher(nodes)
        if launcher is not None:
            return launcher
        if depth == _MOST_DEPTH:
            continue
        for imported in _imported_modules(nodes, name):
            if imported.partition(".")[0] == package and imported not in seen:
                seen.add(imported)
                names.append((imported, depth + 1))
    return None


_MOST_MODULES, _MOST_DEPTH = 64, 2


def _nodes_of(module: str, environ: Mapping[str, str]) -> tuple[ast.AST, ...]:
    """Parse a module; nothing if there is none of this name."""
    for name in (module, f"{module}.__init__"):
        try:
            return tuple(ast.walk(ast.parse(find_module(name, environ).read_bytes())))
        except (InputMissing, OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return ()


def _imported_modules(nodes: Iterable[ast.AST], module: str) -> Iterator[str]:
    """Return the modules that a module may import; some of these names may be no modules."""
    parts = module.split(".")
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            outer = [*parts[: len(parts) - node.level], *filter(None, [node.module])]
            if not node.level:
                outer = [node.module or ""]
            yield ".".join(outer)
            yield from (".".join([*outer, alias.name]) for alias in node.names)


def launcher_of(nodes: Iterable[ast.AST]) -> str | None:
    """Return the launcher that a source certainly calls; None if it may be a rank itself."""
    nodes = tuple(nodes)
    launcher = _called_launcher(nodes)
    if launcher is None or any(map(_is_of_a_rank, nodes)):
        return None
    if re.search(_OWN_FILE, re.sub(_OWN_FOLDER, "", ast.unparse(nodes[0]))):
        return None
    return launcher


def _is_of_a_rank(node: ast.AST) -> bool:
    is_name = not isinstance(node, ast.Constant)
    return _word(node) in _PARTS_OF_A_RANK or (is_name and _word(node) in _TRAINS)


def _called_launcher(nodes: Sequence[ast.AST]) -> str | None:
    names = dict(_imported(nodes))
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        function = _word(node.func)
        if names and function not in _STARTS_NOTHING:
            called = ast.unparse(node.func)
            launcher = names.get(called) or names.get(called.rpartition(".")[0])
            if launcher is not None:
                return launcher
        if function in _STARTERS and (command := _started(node)) is not None:
            return command
    return None


def starts_ranks_itself(program: str, launcher: str) -> tuple[str, str]:
    """Explain that a program starts ranks: what is wrong, and what to do."""
    return (
        f"{program} starts ranks itself, with {launcher}, and zlaunch would start it once for each rank",
        "give zlaunch the script or module that runs in each rank; which one that is, only the program knows",
    )


def _word(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Return the names in a source that stand for a launcher's module, or for something of it."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in _MODULES:
                    yield alias.asname or alias.name, _MODULES[alias.name]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                launcher = _MODULES.get(node.module or "") or _MODULES.get(whole)
                if launcher is not None and alias.name not in (
                    "get_args_parser",
                    "config_from_args",
                    "LaunchConfig",
                ):
                    yield alias.asname or alias.name, launcher


def _started(call: ast.Call) -> str | None:
    """Return the launcher that a call of `subprocess` and the like starts."""
    words = [_word(node) for argument in call.args[:2] for node in ast.walk(argument)]
    texts = [word for word in words if word]
    for text in texts:
        if text in _MODULES:
            return _MODULES[text]
    first = next(iter(texts), "")
    if command := re.match(_COMMANDS, first):
        return _NAMES[command["name"]]
    return None
