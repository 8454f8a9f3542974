"""When a key is read."""

import pytest

from tests.each import each
from zlaunch.dsconfig.json_schema import catalog
from zlaunch.dsconfig.keys.read_at import OFF_BY_DEFAULT, SWITCHES, stages_reading, switches_over


def test_a_key_is_read_where_the_section_around_it_is() -> None:
    assert stages_reading("leaf_module.classes") == {3}


@pytest.mark.parametrize("key", ["", "threshold", "lr.auto"])
def test_of_a_key_that_nobody_knows_no_stage_is_named(key: str) -> None:
    with pytest.raises(KeyError):
        stages_reading(key)


def test_every_switch_is_a_key() -> None:
    assert [section for section, key in SWITCHES.items() if f"{section}.{key}" not in catalog().keys] == []


def test_every_key_that_is_called_enabled_is_a_switch() -> None:
    assert {name for name in catalog().keys if name.endswith(".enabled")} <= {
        f"{section}.{key}" for section, key in SWITCHES.items()
    }


@each("section", SWITCHES)
def test_a_switch_has_the_default_that_is_said_of_it(section: str) -> None:
    (entry,) = catalog().keys[f"{section}.{SWITCHES[section]}"]
    assert entry["default"] is (section not in OFF_BY_DEFAULT)


def test_no_switch_is_over_itself() -> None:
    assert [*switches_over(("fp16", "enabled"))] == []
