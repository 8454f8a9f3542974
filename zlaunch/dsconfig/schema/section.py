"""Types that all sections of a ds_config share: strict, closed, with "auto" where it is allowed.

DeepSpeed converts `"3"` to 3 in some sections and crashes on it in others, so a string is never a number
here. The parser has already made integers of numbers like `2e8`.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
)
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from zlaunch.frozen import dataclass

Auto = Literal["auto"]
T = TypeVar("T")
ZERO = "zero_optimization"

_NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Keep pydantic's plugins out, as Typer does: to find them, it reads a file of each installed package."""
    before = os.environ.get(_NO_PLUGINS)
    os.environ[_NO_PLUGINS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_PLUGINS]
        else:
            os.environ[_NO_PLUGINS] = before


class Section(BaseModel):
    """One JSON object of a ds_config: frozen, strict, closed.

    A default that is a section is made by `model_construct`: it needs no validator, whose construction takes
    milliseconds.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, populate_by_name=True, defer_build=True
    )

    @classmethod
    def model_rebuild(cls, **given: Any) -> bool | None:
        """Build the validator, which pydantic asks for when the section is first validated."""
        with _without_plugins():
            return super().model_rebuild(**given)


@dataclass(frozen=True)
class BuiltOnDemand:
    """Validates a section with a validator that is built when a config first has the section.

    The context of a validation is its strictness, which pydantic does not hand to a function.
    """

    section: type[Section]

    def __call__(self, value: object, info: ValidationInfo) -> Section:
        """Validate a value as the section."""
        return self.section.model_validate(value, strict=info.context, context=info.context)


class _OnDemand:
    def __get_pydantic_core_schema__(self, section: Any, _: object) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(BuiltOnDemand(section))


OnDemand = Annotated[T, _OnDemand()]
"""A section that most configs do not have: building the validators of all takes longer than the rest."""


def spellings(section: type[Section], key: str) -> list[str]:
    """List the names under which DeepSpeed reads a key, its own first."""
    alias = section.model_fields[key].validation_alias
    if isinstance(alias, AliasChoices):
        return [str(name) for name in alias.choices]
    return [key]


class Switched(Section):
    """A section that is off by default."""

    enabled: bool = False
    """Turn this on; the other keys have no effect otherwise."""


def _auto_or_value(value: object) -> str:
    if value == "auto":
        return "<auto>"
    return "<value>"


MaybeAuto = Annotated[
    Annotated[T, Tag("<value>")] | Annotated[Auto, Tag("<auto>")],
    Discriminator(_auto_or_value),
]
"""A value, or the word "auto" for a key that the Trainer, accelerate or zlaunch can fill in.

The tags are in angle brackets so that `check` can tell them from keys in pydantic's locations.
"""


def in_lower_case(value: object) -> object:
    """Lower the case of a word, as DeepSpeed does for some keys."""
    if isinstance(value, str):
        return value.lower()
    return value


AnyCase = Annotated[T, BeforeValidator(in_lower_case)]
"""A word in any case."""


def not_null(value: object) -> object:
    """Refuse null."""
    if value is None:
        raise PydanticCustomError("null", "DeepSpeed crashes on null")
    return value


Absent = Annotated[T | None, BeforeValidator(not_null)]
"""A key that may be missing, but not null."""


def _not_bool(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticKnownError("int_type")
    return value


Whole = Annotated[T, BeforeValidator(_not_bool)]
"""A choice of whole numbers; excludes true, which equals 1 in Python."""

OUTDATED = Field(json_schema_extra={"deprecated": True})
"""Marks a key to avoid: an old name, or one that DeepSpeed does not read or support."""

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Rates = float | list[float]
"""A learning rate for all parameter groups, or one for each."""

DtypeName = Literal[
    "fp32", "float32", "float", "torch.float32",
    "fp16", "float16", "half", "torch.float16",
    "bf16", "bfloat16", "torch.bfloat16",
]  # fmt: skip
"""The spellings `deepspeed.runtime.config.DtypeEnum` understands, of the three training types."""
