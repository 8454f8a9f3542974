"""The config.json of public models as bundled with zlaunch, for use without the hub.

They contain what transformers' config classes read to build a model, without token ids and training defaults.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

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


def nearest_public(model_id: str) -> str | None:
    """Return the bundled hub id that is most likely meant, with or without its organization."""
    names = {name.lower(): name for name in public_names()}
    names = {**{short.partition("/")[2]: name for short, name in names.items() if "/" in short}, **names}
    return next((names[one] for one in get_close_matches(model_id.lower(), names, 1, _ALIKE)), None)
