"""Show recipes to a person and as JSON."""

from collections.abc import Iterator, Sequence

from zlaunch import console
from zlaunch.job.recipes import Recipe, RecipeOption


def listed(recipes: Sequence[Recipe]) -> list[str]:
    """Write a table of recipes, with the parts of ZeRO below what each shows."""
    rows = [("recipe", "shows")]
    for one in recipes:
        rows += [(one.name, one.summary), ("", f"ZeRO: {one.zero}")]
    return console.table(rows, indent="")


def described(recipe: Recipe) -> Iterator[str]:
    """Explain a recipe: its docstring, its options, and the commands to type."""
    yield from console.paragraph(recipe.summary)
    yield ""
    for part in recipe.text.split("\n\n"):
        yield from [part] if part.startswith(" ") else console.paragraph(part)
        yield ""
    options = _option_rows(recipe)
    if options:
        yield "options of its own, after `--`:"
        yield from console.notes(options)
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


def _option_rows(recipe: Recipe) -> list[tuple[str, str]]:
    return [(f"{one.flag} {_metavar(one)}".rstrip(), _help(one)) for one in recipe.options]


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
            {"option": one.flag, "type": one.kind or "bool", "default": one.default, "help": one.help}
            for one in recipe.options
        ],
        "trainer_defaults": recipe.trainer_defaults,
        "packages": recipe.packages,
        "files": [str(file) for file in recipe.files],
        "start": recipe.start,
    }
