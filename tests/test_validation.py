from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.dsconfig.parser import parse
from zlaunch.errors import Refused
from zlaunch.validation import findings_in

NUMBER = '{"aio": {"block_size": %s\n}}'

numbers = st.text("0123456789_.+-eExabINFnaty", min_size=1, max_size=12) | st.integers().map(str)


@pytest.mark.parametrize("written", ["abc1", "0x10", "1_" + "0" * 5000, "9" * 5000, "1e999", "-1_0"])
def test_what_is_nearly_a_number_is_a_finding(written: str) -> None:
    with suppress(Refused):
        assert findings_in(parse(NUMBER % written, "ds.json"))


@given(numbers)
def test_anything_in_the_place_of_a_number_is_judged(written: str) -> None:
    with suppress(Refused):
        findings_in(parse(NUMBER % written, "ds.json"))
