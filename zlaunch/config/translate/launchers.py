"""The flags of other launchers, and the fields of accelerate's configs, as `launchers.json` has them."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from zlaunch.config.translate.flags import (
    Becomes,
    BecomesOption,
    BecomesVariable,
    Flag,
    LauncherSyntax,
    NoEquivalent,
    NotNeeded,
    Role,
    Untranslatable,
)

FILE: Final = Path(__file__).with_name("launchers.json")

DEEPSPEED: Final = "deepspeed"
TORCHRUN: Final = "torchrun"
OLD_TORCHRUN: Final = "torch.distributed.launch"
ACCELERATE: Final = "accelerate launch"

_SETTINGS: Final = ("either_dash", "shortens", "variables", "ranks", "counts_hosts", "hostfile")
"""Fields of `LauncherSyntax` that are the same in the file."""

_OTHER_HARDWARE: Final = Untranslatable("zlaunch supports NVIDIA GPUs and CPUs")


@cache
def syntax_of(name: str) -> LauncherSyntax:
    """Read how a launcher parses its command line."""
    row = _read_table()[name]
    like = syntax_of(row["like"]) if "like" in row else LauncherSyntax(name, ())
    flags = (*like.flags, *_flags(row["flags"]))
    passes_local_rank = [flag for flag in flags if flag.names[-1] == row.get("passes_local_rank")]
    settings = {field: row[field] for field in _SETTINGS if field in row}
    return replace(
        like, name=name, flags=flags, passes_local_rank=next(iter(passes_local_rank), None), **settings
    )


@cache
def config_fields() -> Mapping[str, Flag]:
    """Read the fields of accelerate's configs: the flags, and what only a config has."""
    fields = _flags(_read_table()[ACCELERATE]["fields"])
    return {flag.key: flag for flag in (*syntax_of(ACCELERATE).flags, *fields)}


def uses_deepspeed(distributed_type: str) -> bool | Untranslatable:
    """Whether accelerate uses DeepSpeed for a type of its configs; others are for other hardware."""
    answer = _read_table()[ACCELERATE]["distributed_types"].get(distributed_type)
    if answer is None:
        return _OTHER_HARDWARE
    if isinstance(answer, bool):
        return answer
    return Untranslatable(answer["untranslatable"], answer.get("hint"))


@cache
def _read_table() -> Mapping[str, Any]:
    table: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return table


def _flags(rows: list[Mapping[str, Any]]) -> Iterator[Flag]:
    """Read flags; a row can have several that become the same."""
    for row in rows:
        takes_value = "flag" in row
        spellings = row["flag"] if takes_value else row["switch"]
        idle = tuple(row.get("idle", "").split())
        for names in [spellings] if isinstance(spellings, str) else spellings:
            yield Flag(tuple(names.split()), takes_value, _becomes(row), idle)


def _becomes(row: Mapping[str, Any]) -> Becomes:
    match row:
        case {"role": name}:
            return Role[name.upper()]
        case {"option": name}:
            return BecomesOption(name)
        case {"variable": name}:
            return BecomesVariable(name, row.get("value"))
        case {"not_needed": why}:
            return NotNeeded(why)
        case {"no_equivalent": why}:
            return NoEquivalent(why)
    return Untranslatable(row["untranslatable"], row.get("hint"))
