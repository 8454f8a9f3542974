"""The table of releases against the installed DeepSpeed, and against our own models."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from pydantic import AliasChoices

from tests.contract.zlaunch_side import Path, all_paths, nested
from zlaunch.dsconfig.keys.lookup import field_at
from zlaunch.dsconfig.releases import NEWEST, REMOVED, _table
from zlaunch.dsconfig.text.document import dotted

if TYPE_CHECKING:
    from tools.recorder import Recording

NOT_IN_OUR_MODELS = {
    "optimizer.legacy_fusion": "each kind of optimizer has a model; see the tests of blocks",
    "optimizer.params": "each kind of optimizer has a model",
    "optimizer.type": "each kind of optimizer has a model",
    "scheduler.params": "each kind of schedule has a model",
    "scheduler.type": "each kind of schedule has a model",
    "tensor_parallel.dtype": "wants a `torch.dtype`, which no JSON value is",
    "tensor_parallel.tensor_parallel.mpu": "a Python object",
    "tensor_parallel.tensor_parallel.tp_group": "a Python object",
    "tensor_parallel.tp.mpu": "a Python object",
    "tensor_parallel.tp.tp_group": "a Python object",
}
"""Keys that the newest release reads and that are no fields of ours."""


@pytest.fixture(scope="module")
def recorded() -> "Recording":
    from tools.recorder import record

    return record()


def test_the_installed_release_is_the_newest_in_the_table() -> None:
    assert _table()["releases"][NEWEST.name] == version("deepspeed")


def test_the_table_has_the_keys_and_defaults_of_the_installed_release(recorded: "Recording") -> None:
    assert {dotted(path): default for path, default in NEWEST.keys.items()} == recorded.keys


def test_the_table_has_the_sections_of_the_installed_release(recorded: "Recording") -> None:
    assert {dotted(path): kind for path, kind in NEWEST.sections.items()} == recorded.sections


def test_the_table_has_the_keys_that_the_installed_release_refuses(recorded: "Recording") -> None:
    assert sorted(map(dotted, NEWEST.refused)) == recorded.refused


def test_it_is_known_what_to_do_about_every_refused_key(recorded: "Recording") -> None:
    assert sorted(REMOVED) == recorded.refused


def test_every_key_of_our_models_is_known() -> None:
    assert [dotted(path) for path in our_paths() if not NEWEST.knows(path)] == []


def test_every_known_key_is_in_our_models() -> None:
    unknown = {*NEWEST.keys} - {*our_paths()}
    assert {*map(dotted, unknown)} == {*NOT_IN_OUR_MODELS}


def our_paths() -> Iterator[Path]:
    """Walk every key of our models, under both names where it has two."""
    for path in all_paths():
        yield from _spelled(path)


def _spelled(path: Path) -> list[Path]:
    if not path:
        return [()]
    field = field_at(nested(path, {}), path)
    alias = field.validation_alias if field else None
    names = alias.choices if isinstance(alias, AliasChoices) else [path[-1]]
    return [(*parent, str(name)) for parent in _spelled(path[:-1]) for name in names]
