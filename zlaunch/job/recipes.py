"""The recipes: training programs that come with zlaunch, for users to copy.

They are read with `ast` and never imported. The docstring of each has a paragraph that begins with `ZeRO:`,
one that begins with `On GPUs:`, and the commands that start it.
"""

import ast
import os
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from zlaunch.frozen import dataclass

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


class Recipe:
    """A recipe, as its source describes it. Each part is read when it is first asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self._source = path.read_text("utf-8")

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self._source)

    @cached_property
    def _paragraphs(self) -> list[str]:
        return (ast.get_docstring(self._tree) or "").split("\n\n")

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        return self._paragraphs[0].replace("\n", " ").removesuffix(".")

    @property
    def text(self) -> str:
        """The docstring without its summary and the two paragraphs below."""
        return "\n\n".join(text for text in self._paragraphs[1:] if not text.startswith((_ZERO, _ON_GPUS)))

    @property
    def zero(self) -> str:
        """The parts of ZeRO that it shows."""
        return self._paragraph(_ZERO).removesuffix(".")

    @property
    def on_gpus(self) -> str:
        """How to start it on GPUs."""
        return self._paragraph(_ON_GPUS)

    def _paragraph(self, start: str) -> str:
        paragraph = next((text for text in self._paragraphs if text.startswith(start)), start)
        return " ".join(paragraph.removeprefix(start).split())

    @cached_property
    def options(self) -> tuple[RecipeOption, ...]:
        """The options that it defines itself."""
        return (*_dataclass_options(self._tree), *_parser_options(self._tree))

    @cached_property
    def trainer_defaults(self) -> Mapping[str, str] | None:
        """Arguments of the Trainer with other defaults; None if it does not take any of them."""
        return trainer_defaults_in(self._tree)

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """Packages without which it cannot start."""
        return _packages(self._tree)

    @cached_property
    def folders(self) -> tuple[Path, ...]:
        """Folders beside it that it reads."""
        folders = (folder for folder in sorted(self.path.parent.iterdir()) if folder.is_dir())
        return tuple(folder for folder in folders if f'"{folder.name}"' in self._source)

    @property
    def start(self) -> str:
        """The first command of its docstring."""
        return next(line.strip() for line in self.text.splitlines() if line.startswith("    "))

    @property
    def saves_model_only(self) -> bool:
        """Whether its Trainer saves the model at the end, and checkpoints only if it is told."""
        return saves_model_only(self.trainer_defaults)

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that a copy needs."""
        files = [self.path]
        for folder in self.folders:
            files += (file for file in sorted(folder.rglob("*")) if file.is_file())
        return tuple(files)


def saves_model_only(trainer_defaults: Mapping[str, str] | None) -> bool:
    """Whether a Trainer with these defaults saves checkpoints only if it is told."""
    return (trainer_defaults or {}).get("save_strategy") == "no"


def recipe_names() -> list[str]:
    """List the names of all recipes."""
    return sorted(file.stem for file in FOLDER.glob("*.py"))


def default_recipe() -> Path:
    """Return the training program that runs if none is named."""
    return FOLDER / "causal_lm.py"


def recipe_path(word: str) -> Path | None:
    """Return the file of the recipe with this name, with `-` and `_` as the same; None for any other word."""
    name = word.replace("-", "_")
    if name not in recipe_names():
        return None
    return FOLDER / f"{name}.py"


def recipe_named(word: str) -> Path | None:
    """Return the recipe that a word names as a script; a file of this name goes before it."""
    if os.path.lexists(word):
        return None
    return recipe_path(word)


def similar_recipe(word: str) -> str | None:
    """Return the recipe that a misspelled name most likely means."""
    return next(iter(get_close_matches(word.replace("-", "_"), recipe_names(), 1)), None)


def recipe_of(path: Path) -> Recipe | None:
    """Return the recipe that is this file; None for any other file, also for a copy."""
    if path.parent == FOLDER and path.suffix == ".py" and path.stem in recipe_names():
        return read_recipe(path)
    return None


@cache
def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a file."""
    return Recipe(path)


def _packages(tree: ast.Module) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names[(node.module or "").partition(".")[0]] = None
            if any(alias.name == "Trainer" for alias in node.names):
                names["accelerate"] = None
    return tuple(name for name in names if name not in sys.stdlib_module_names)


def _dataclass_options(tree: ast.Module) -> Iterator[RecipeOption]:
    """Read the fields of the dataclasses that are not TrainingArguments."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.bases and node.decorator_list:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Call):
                    yield _field_option(field, field.value)


def _field_option(field: ast.AnnAssign, call: ast.Call) -> RecipeOption:
    words = {keyword.arg: keyword.value for keyword in call.keywords}
    kind = ast.unparse(field.annotation).removesuffix(" | None")
    text, metadata = "", _literal(words.get("metadata"))
    if isinstance(metadata, dict):
        text = str(metadata.get("help", ""))
    return RecipeOption(f"--{ast.unparse(field.target)}", kind, _as_typed(words.get("default")), text)


def _parser_options(tree: ast.Module) -> Iterator[RecipeOption]:
    """Read the calls of `add_argument`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            words, kind = {keyword.arg: keyword.value for keyword in node.keywords}, "str"
            if _literal(words.get("action")) == "store_true":
                kind = ""
            elif "type" in words:
                kind = ast.unparse(words["type"])
            text = str(_literal(words.get("help")) or "")
            yield RecipeOption(str(_literal(node.args[0])), kind, _as_typed(words.get("default")), text)


def trainer_defaults_in(tree: ast.Module) -> Mapping[str, str] | None:
    """Read the arguments of the Trainer to which a script gives other defaults; None without such a class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any("Arguments" in ast.unparse(base) for base in node.bases):
            fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
            return {ast.unparse(field.target): _as_typed(field.value) or "none" for field in fields}
    return None


def _as_typed(node: ast.expr | None) -> str | None:
    """Write a default as a user would type it."""
    value = _literal(node)
    if value is None:
        return None
    return str(value)


def _literal(node: ast.expr | None) -> object:
    if node is None:
        return None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
