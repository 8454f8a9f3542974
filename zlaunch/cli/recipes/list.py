"""`zlaunch recipes list`: the training programs that come with zlaunch."""

from zlaunch import console
from zlaunch.cli.options import AsJson
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.recipe import listed, members
from zlaunch.job.recipes import FOLDER, read_recipe, recipe_names


def list_recipes(as_json: AsJson = False) -> None:
    """List training programs, and what each shows of ZeRO."""
    recipes = [read_recipe(FOLDER / f"{name}.py") for name in recipe_names()]
    if as_json:
        console.data(to_json([members(recipe) for recipe in recipes]))
        return
    console.data(*listed(recipes))
    console.say("`zlaunch recipes show NAME` explains one, `zlaunch train NAME` starts it")
