"""The model that a script will load, by its command line: its config.json, from a directory or the hub."""

import re
from pathlib import Path

from zlaunch.errors import InputMissing, Refused, Unavailable, ZlaunchError
from zlaunch.job.args import ScriptArgs
from zlaunch.job.hub import fetch_model
from zlaunch.job.model import HUB_ID, MODEL_FLAGS, ModelConfig, model_flag, read_model
from zlaunch.job.recipes import recipe_of
from zlaunch.job.script import Script

ADAPTER = "adapter_config.json"
"""The file of an adapter, which transformers loads together with its base model."""


def model_argument(script: Script) -> str:
    """Name the argument from which a script loads its model; empty if there is none, or nobody knows."""
    return next((name for name in MODEL_FLAGS if name in script.loads), "")


def find_model(script: Script, typed: ScriptArgs) -> tuple[ModelConfig | None, ZlaunchError | None]:
    """Find the config.json of the model the script will load, or why it could not be fetched.

    Raises InputMissing or Refused for a model that the script certainly cannot load, unless its config.json
    is bundled with zlaunch.
    """
    name = model_flag(script.trainer_flags(typed))
    if name is None:
        recipe = recipe_of(script.path)
        if recipe is None or not recipe.folders:
            return None, None
        return read_model(recipe.folders[0]), None
    loaded = [flag.value for flag in typed.flags if flag.name in script.loads]
    is_certain = name in loaded and not Path(name, ADAPTER).exists()
    try:
        if Path(name).exists():
            return read_model(Path(name)), None
        if script.reported is None and not script.mentions("from_pretrained"):
            return None, None
        if not re.fullmatch(HUB_ID, name):
            raise InputMissing(f"there is no model directory `{name}`")
        model = fetch_model(name)
        is_lost = isinstance(model.hub_error, InputMissing)
        return model, None if is_lost and not is_certain else model.hub_error
    except Unavailable as error:
        return None, error
    except (InputMissing, Refused):
        if is_certain:
            raise
        return None, None
