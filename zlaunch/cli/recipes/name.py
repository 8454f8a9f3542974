"""The name of a recipe on the command line."""

from typing import Annotated

import typer

from zlaunch.cli.options import completed
from zlaunch.errors import InputMissing
from zlaunch.job.recipes import Recipe, read_recipe, recipe_names, recipe_path, similar_recipe

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a recipe.", autocompletion=completed("recipes"))
]


def find_recipe(name: str) -> Recipe:
    """Read a recipe; raise InputMissing for a name that none has."""
    path = recipe_path(name.removesuffix(".py"))
    if path is None:
        meant = similar_recipe(name.removesuffix(".py"))
        hint = f"did you mean `{meant}`?" if meant else f"there are {', '.join(recipe_names())}"
        raise InputMissing(f"there is no recipe `{name}`", hint)
    return read_recipe(path)
