"""At which stages a key is read."""

import pytest

from zlaunch.dsconfig.reach import stages_reading


def test_a_key_is_read_where_the_section_around_it_is() -> None:
    assert stages_reading("leaf_module.classes") == {3}


@pytest.mark.parametrize("key", ["", "threshold", "lr.auto"])
def test_of_a_key_that_nobody_knows_no_stage_is_named(key: str) -> None:
    with pytest.raises(KeyError):
        stages_reading(key)
