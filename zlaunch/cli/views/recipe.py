"""Show recipes to a person and as JSON."""

from collections.abc import Iterator, Sequence

from zlaunch import console
from zlaunch.job.recipes import Recipe, RecipeOption


def listed(recipes: Sequence[Recipe]) -> list[str]:
    """Write a table of recipes, with the parts of ZeRO below what each shows."""
    rows = [("recipe", "shows")]
    for recipe in recipes:
        rows += [(recipe.name, recipe.summary), ("", f"ZeRO: {recipe.zero}")]
    return console.table(rows, indent="")


def described(recipe: Recipe) -> Iterator[str]:
    """Explain a recipe: its docstring, its options, and the commands to type."""
    yield from console.paragraph(recipe.summary)
    yield ""
    for part in recipe.text.split("\n\n"):
        yield from [part] if part.startswith(" ") else console.paragraph(part)
        yield ""
    if recipe.options:
        yield "options of its own, after `--`:"
        rows = [(f"{option.flag} {_metavar(option)}".rstrip(), _help(option)) for option in recipe.options]
        yield from console.notes(rows)
    if recipe.trainer_defaults is not None:
        more = ", ".join(f"{name} {value}" for name, value in recipe.trainer_defaults.items())
        yield from console.paragraph(
            f"It also takes all TrainingArguments, some with other defaults: {more}. "
            f"`zlaunch train {recipe.name} -- --help` lists them."
        )
    yield ""
    rows = [
        ("ZeRO", recipe.zero),
        ("GPUs", recipe.on_gpus),
        ("start", recipe.start),
        ("copy", f"zlaunch recipes copy {recipe.name}"),
    ]
    yield from console.table(rows, indent="")


def _metavar(option: RecipeOption) -> str:
    names = {"int": "N", "float": "X", "str": "TEXT", "Path": "PATH", "bool": "", "": ""}
    return names.get(option.kind, option.kind)


def _help(option: RecipeOption) -> str:
    has_default = option.default is not None and option.kind not in ("bool", "")
    if has_default:
        return f"{option.help} (default: {option.default})"
    return option.help


def members(recipe: Recipe) -> dict[str, object]:
    """Describe a recipe as JSON."""
    return {
        "name": recipe.name,
        "shows": recipe.summary,
        "zero": recipe.zero,
        "on_gpus": recipe.on_gpus,
        "text": recipe.text,
        "options": [
            {
                "option": option.flag,
                "type": option.kind or "bool",
                "default": option.default,
                "help": option.help,
            }
            for option in recipe.options
        ],
        "trainer_defaults": recipe.trainer_defaults,
        "packages": recipe.packages,
        "files": [str(file) for file in recipe.files],
        "start": recipe.start,
    }
