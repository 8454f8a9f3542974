"""`zlaunch recipes show`: what a recipe does, its options, and how to start it."""

from zlaunch import console
from zlaunch.cli.options import AsJson
from zlaunch.cli.recipes.name import Name, find_recipe
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.recipe import described, members


def show(name: Name, as_json: AsJson = False) -> None:
    """Show what a recipe does, its options, and how to start it."""
    recipe = find_recipe(name)
    console.data(to_json(members(recipe)) if as_json else "\n".join(described(recipe)))
