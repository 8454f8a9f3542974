"""What the model type of a config.json tells of a training.

`tools/record_model_types` records `model_types.json` from transformers. It has one record for each major
release, since transformers 5 keeps the experts of a block in one parameter, and 4 in a module each.
`no_fp16` is written by hand: model type → where it is documented that its weights overflow in fp16.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from zlaunch.frozen import dataclass
from zlaunch.job.model import ModelConfig
from zlaunch.units import numbers_of

FILE: Final = Path(__file__).with_name("model_types.json")
NEWEST: Final = 5
"""The newest major release in the file."""


@dataclass(frozen=True)
class ModelType:
    """Facts about all models of a type."""

    experts: tuple[str, ...] = ()
    """Classes of modules that contain experts."""
    separate: tuple[str, ...] = ()
    """Those in which each expert is a module of its own."""
    fp32: tuple[str, ...] = ()
    """Names in parameters that transformers keeps in fp32 beside bf16 and fp16."""
    fp32_beside_fp16: tuple[str, ...] = ()
    """Names in parameters that transformers keeps in fp32 only beside fp16."""
    reused: tuple[str, ...] = ()
    """Classes of modules with parameters that are used more than once in a forward pass."""
    ties_weights: bool = False
    """Whether parts of the model share parameters."""
    no_fp16: str = ""
    """Where it is documented that weights of this type overflow in fp16; empty if it is not."""


def model_type(model: ModelConfig | None, transformers: str | None) -> ModelType:
    """Look up the type of a model for a release of transformers; no facts about an unknown one."""
    if model is None:
        return ModelType()
    release = NEWEST
    if transformers is not None and numbers_of(transformers) < (NEWEST,):
        release = NEWEST - 1
    facts = _recorded_types()[str(release)].get(model.kind, {})
    tied = model.first("tie_word_embeddings")
    if tied is None:
        tied = facts.get("tied", False)
    return ModelType(
        experts=tuple(facts.get("experts", ())),
        separate=tuple(facts.get("separate", ())),
        fp32=tuple(facts.get("fp32", ())),
        fp32_beside_fp16=tuple(facts.get("fp32_beside_fp16", ())),
        reused=tuple(facts.get("reused", ())),
        ties_weights=bool(tied),
        no_fp16=_recorded_types()["no_fp16"].get(model.kind, ""),
    )


@cache
def _recorded_types() -> Mapping[str, Any]:
    recorded: Mapping[str, Any] = json.loads(FILE.read_text("utf-8"))
    return recorded
