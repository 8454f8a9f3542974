"""The recipes: training programs that come with zlaunch, for users to copy.

They are read with `ast` and never imported. The docstring of each has a paragraph that begins with `ZeRO:`,
one that begins with `On GPUs:`, and the commands that start it.
"""

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = (Path(__file__).parents[1] / "recipes").resolve()
_ZERO: Final = "ZeRO:"
_ON_GPUS: Final = "On GPUs:"


@dataclass(frozen=True)
class RecipeOption:
    """An option that a recipe defines itself."""

    flag: str
    kind: str
    """Type of its value, as the source writes it; empty for a switch."""
    default: str | None
    """None if it has none."""
    help: str


@dataclass(frozen=True)
class Recipe:
    """A recipe, as its source describes it."""

    name: str
    path: Path
    summary: str
    text: str
    """The docstring without its summary and the two paragraphs below."""
    zero: str
    """The parts of ZeRO that it shows."""
    on_gpus: str
    options: tuple[RecipeOption, ...]
    trainer_defaults: Mapping[str, str] | None
    """Arguments of the Trainer with other defaults; None if it does not take any of them."""
    packages: tuple[str, ...]
    """Packages without which it cannot start."""
    folders: tuple[Path, ...]
    """Folders beside it that it reads."""

    @property
    def start(self) -> str:
        """The first command of its docstring."""
        return next(line.strip() for line in self.text.splitlines() if line.startswith("    "))

    @property
    def saves_model_only(self) -> bool:
        """Whether its Trainer saves the model at the end, and checkpoints only if it is told."""
        return (self.trainer_defaults or {}).get("save_strategy") == "no"

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that a copy needs."""
        inside = (file for folder in self.folders for file in sorted(folder.rglob("*")) if file.is_file())
        return (self.path, *inside)


def recipe_names() -> list[str]:
    """List the names of all recipes."""
    return sorted(file.stem for file in FOLDER.glob("*.py"))


def recipe_path(word: str) -> Path | None:
    """Return the file of the recipe with this name, with `-` and `_` as the same; None for any other word."""
    name = word.replace("-", "_")
    return FOLDER / f"{name}.py" if name in recipe_names() else None


def recipe_named(word: str) -> Path | None:
    """Return the recipe that a word names as a script; a file of this name goes before it."""
    return None if os.path.lexists(word) else recipe_path(word)


def similar_recipe(word: str) -> str | None:
    """Return the recipe that a misspelled name most likely means."""
    return next(iter(get_close_matches(word.replace("-", "_"), recipe_names(), 1)), None)


def recipe_of(path: Path) -> Recipe | None:
    """Return the recipe that is this file; None for any other file, also for a copy."""
    is_recipe = path.parent == FOLDER and path.suffix == ".py" and path.stem in recipe_names()
    return read_recipe(path) if is_recipe else None


@cache
def read_recipe(path: Path) -> Recipe:
    """Read a recipe from its source."""
    tree = ast.parse(path.read_text("utf-8"))
    summary, *paragraphs = (ast.get_docstring(tree) or "").split("\n\n")
    literals = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    folders = (folder for folder in sorted(path.parent.iterdir()) if folder.is_dir())
    return Recipe(
        name=path.stem,
        path=path,
        summary=summary.replace("\n", " ").removesuffix("."),
        text="\n\n".join(one for one in paragraphs if not one.startswith((_ZERO, _ON_GPUS))),
        zero=_paragraph(_ZERO, paragraphs).removesuffix("."),
        on_gpus=_paragraph(_ON_GPUS, paragraphs),
        options=(*_dataclass_options(tree), *_parser_options(tree)),
        trainer_defaults=_trainer_defaults(tree),
        packages=_packages(tree),
        folders=tuple(folder for folder in folders if folder.name in literals),
    )


def _paragraph(start: str, paragraphs: list[str]) -> str:
    found = next((one for one in paragraphs if one.startswith(start)), start)
    return " ".join(found.removeprefix(start).split())


def _packages(tree: ast.Module) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names[(node.module or "").partition(".")[0]] = None
            names |= dict.fromkeys(["accelerate"] if "Trainer" in (one.name for one in node.names) else [])
    return tuple(name for name in names if name not in sys.stdlib_module_names)


def _dataclass_options(tree: ast.Module) -> Iterator[RecipeOption]:
    """Read the fields of the dataclasses that are not TrainingArguments."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.bases and node.decorator_list:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call):
                    words = {one.arg: one.value for one in field.value.keywords}
                    kind = ast.unparse(field.annotation).removesuffix(" | None")
                    told = _constant(words.get("metadata"))
                    text = str(told.get("help", "")) if isinstance(told, dict) else ""
                    default = _shown(words.get("default"))
                    yield RecipeOption(f"--{ast.unparse(field.target)}", kind, default, text)


def _parser_options(tree: ast.Module) -> Iterator[RecipeOption]:
    """Read the calls of `add_argument`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            words = {one.arg: one.value for one in node.keywords}
            is_switch = _constant(words.get("action")) == "store_true"
            kind = "" if is_switch else ast.unparse(words["type"]) if "type" in words else "str"
            text = str(_constant(words.get("help")) or "")
            yield RecipeOption(str(_constant(node.args[0])), kind, _shown(words.get("default")), text)


def _trainer_defaults(tree: ast.Module) -> Mapping[str, str] | None:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any("Arguments" in ast.unparse(base) for base in node.bases):
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
            return {ast.unparse(one.target): _shown(one.value) or "none" for one in fields}
    return None


def _shown(node: ast.expr | None) -> str | None:
    """Write a default as a user would type it."""
    value = _constant(node)
    return None if value is None else str(value)


def _constant(node: ast.expr | None) -> object:
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
