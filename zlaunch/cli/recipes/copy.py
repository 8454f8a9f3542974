"""`zlaunch recipes copy`: copy a recipe, to change and keep it."""

from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson
from zlaunch.cli.recipes.name import Name, find_recipe
from zlaunch.cli.views.dump import to_json
from zlaunch.errors import Unavailable
from zlaunch.files import check_new, shown, typed, write_new
from zlaunch.job.recipes import Recipe


def copy(
    name: Name,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to copy it to.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Copy a recipe and the configs that it reads.

    The copy is a program of your own, which needs nothing of zlaunch. Files are never overwritten.
    """
    recipe = find_recipe(name)
    copies = copy_recipe(recipe, folder)
    if as_json:
        console.data(to_json({"files": [str(new) for new in copies.values()]}))
        return
    console.data(*(shown(new) for new in copies.values()))
    console.say(f"`zlaunch train {typed(copies[recipe.path])}` starts it, with or without changes")


def copy_recipe(recipe: Recipe, folder: Path) -> dict[Path, Path]:
    """Copy the files of a recipe; return each with its copy. Raise Unavailable where there is another one."""
    copies = {file: folder / file.relative_to(recipe.path.parent) for file in recipe.files}
    try:
        for new in copies.values():
            new.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"`{shown(folder)}` cannot be a directory: {error.strerror}") from None
    needed = {file: new for file, new in copies.items() if not _is_copy(file, new)}
    for new in needed.values():
        check_new(new)
    for file, new in needed.items():
        write_new(new, file.read_bytes())
    return copies


def _is_copy(file: Path, new: Path) -> bool:
    """Whether a config is there already, as several recipes read it; never true of a program."""
    return file.suffix != ".py" and new.is_file() and new.read_bytes() == file.read_bytes()
