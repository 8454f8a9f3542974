"""The config.json of public models as bundled with zlaunch, for use without the hub.

They contain what transformers' config classes read to build a model, without token ids and training defaults.
"""

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from itertools import chain
from math import log
from pathlib import Path
from typing import Any, Final

from zlaunch.frozen import dataclass

FILE: Final = Path(__file__).with_name("public_models.json")
_ALIKE: Final = 0.85
"""How alike names must be for one to be suggested, as a `difflib` ratio."""


@dataclass(frozen=True)
class PublicModel:
    """A model on the hub."""

    name: str
    also: tuple[str, ...]
    """Other hub ids with the same config."""
    parameters: int | str
    """As published: exact, or rounded, such as `6.7B`."""
    counted_by: str
    """Who published the number of parameters."""
    sources: tuple[str, ...]
    """Where its config was read."""
    config: Mapping[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """All its hub ids."""
        return (self.name, *self.also)


@cache
def public_models() -> tuple[PublicModel, ...]:
    """List all bundled models."""
    return tuple(
        PublicModel(
            name,
            tuple(model.get("also", ())),
            model["parameters"],
            model["counted_by"],
            tuple(model["source"]),
            model["config"],
        )
        for name, model in json.loads(FILE.read_text("utf-8")).items()
    )


def public_names() -> tuple[str, ...]:
    """List all hub ids whose config.json is bundled."""
    return tuple(chain.from_iterable(model.names for model in public_models()))


def find_public(model_id: str) -> PublicModel | None:
    """Find the model of a hub id, in upper or lower case; None if it is not bundled."""
    wanted = model_id.lower()
    return next((model for model in public_models() if wanted in map(str.lower, model.names)), None)


def public_of_size(text: str) -> list[str]:
    """Name a bundled model of each of a few organizations by a size, such as `7B`; none if it is not one."""
    size = re.fullmatch(_SIZE, text)
    if size is None or not float(size[1]):
        return []
    named = re.compile(rf"-{re.escape(text)}\b", re.IGNORECASE)

    def distance(model: PublicModel) -> tuple[bool, float]:
        return named.search(model.name) is None, abs(log(_parameters(model) / (float(size[1]) * 1e9)))

    of_each: dict[str, str] = {}
    for model in sorted(public_models(), key=distance):
        of_each.setdefault(model.name.partition("/")[0], model.name)
    return list(of_each.values())[:_MOST_OF_A_SIZE]


_SIZE: Final = r"(\d{1,4}(?:\.\d{1,3})?)[bB]"
_MOST_OF_A_SIZE: Final = 3


def _parameters(model: PublicModel) -> float:
    if isinstance(model.parameters, int):
        return model.parameters
    units = {"M": 1e6, "B": 1e9, "T": 1e12}
    return float(model.parameters[:-1]) * units[model.parameters[-1]]


def nearest_public(model_id: str) -> str | None:
    """Return the bundled hub id that is most likely meant, with or without its organization."""
    names = {name.lower(): name for name in public_names()}
    names = {**{short.partition("/")[2]: name for short, name in names.items() if "/" in short}, **names}
    return next((names[one] for one in get_close_matches(model_id.lower(), names, 1, _ALIKE)), None)
