from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Refused, Severity

NUMBER = '{"aio": {"block_size": %s\n}}'

numbers = st.text("0123456789_.+-eExabINFnaty", min_size=1, max_size=12) | st.integers().map(str)


@pytest.mark.parametrize("written", ["abc1", "0x10", "1_" + "0" * 5000, "9" * 5000, "1e999", "-1_0"])
def test_what_is_nearly_a_number_is_a_finding(written: str) -> None:
    with suppress(Refused):
        assert validate_document(parse(NUMBER % written, "ds.json"))


@given(numbers)
def test_anything_in_the_place_of_a_number_is_judged(written: str) -> None:
    with suppress(Refused):
        validate_document(parse(NUMBER % written, "ds.json"))


def test_what_a_misspelled_key_brings_about_is_told_of_the_key_alone() -> None:
    config = '{"zero_optimisation": {"stage": 2}, "train_batch_size": "auto"}'
    (found,) = validate_document(parse(config, "ds.json"))
    assert (found.code, found.severity) == ("unknown-key", Severity.ERROR)
    assert (found.where, found.hint) == ("zero_optimisation", "did you mean `zero_optimization`?")
    assert "the Trainer requires `zero_optimization`" in found.message


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        ('"zero_optimization": {},\n"zero_optimisation": {}', "merge the two: `zero_optimization`"),
        ('"zero_optimization": {"aio": {}},\n"aio": {}', "merge the two: `aio`"),
        ('"gradient_clipping": 1,\n"gradient_cliping": 2', "keep one of them: `gradient_clipping`"),
    ],
)
def test_a_key_whose_right_place_is_taken_is_not_put_there(keys: str, hint: str) -> None:
    found = validate_document(parse(f'{{"train_batch_size": 8,\n{keys}}}', "ds.json"))
    (told,) = (one.hint or "" for one in found if one.code == "unknown-key")
    assert told.startswith(f"{hint} is already on line ")


def test_what_another_misspelled_key_brings_about_is_not_blamed_on_it() -> None:
    config = '{"zero_optimisation": {"stage": 2}, "wall_clock_brakdown": true, "train_batch_size": "auto"}'
    found = {one.where: one.severity for one in validate_document(parse(config, "ds.json"))}
    assert found == {"zero_optimisation": Severity.ERROR, "wall_clock_brakdown": Severity.IGNORED}
