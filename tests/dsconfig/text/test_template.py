"""Templates: placeholders are no values, so nothing of such a file is checked or mended."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from zlaunch.config.fix import fix_document
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Refused

UNQUOTED = (
    *("{{ stage }}", "${BATCH}", "${BATCH:-8}", "$BATCH", "%(batch)s", "<batch size>", "@BATCH@", "%BATCH%"),
    *("{batch}", "__BATCH__", "PRESCALE_GRAD", "{{stage}}"),
)
CONTEXT = Context()
placeholders = st.sampled_from(UNQUOTED) | st.sampled_from([f'"{text}"' for text in UNQUOTED])


@each("text", UNQUOTED)
def test_a_placeholder_for_a_value_makes_a_template(text: str) -> None:
    with pytest.raises(Refused) as caught:
        parse(f'{{\n"bf16": {{"enabled": true}},\n"train_batch_size": {text}\n}}', "ds.json")
    (finding,) = caught.value.findings
    assert finding.message == f"this is a template: `{text}` is a placeholder"
    assert (finding.fix, finding.place and finding.place.line) == (None, 3)


def test_the_other_placeholders_are_counted() -> None:
    with pytest.raises(Refused) as caught:
        parse('{"a": ZERO_STAGE, "b": [${X}, 1], {% if c %} "c": 3}', "ds.json")
    assert caught.value.findings[0].message.endswith("`ZERO_STAGE` is a placeholder, and 2 more")


@each("text", ["TRUE", "SGD", "WarmupLR", '"${USER}"', "1 // {{ stage }}", "1 /* ${BATCH} */"])
def test_other_words_and_comments_make_no_template(text: str) -> None:
    document = parse(
        f'{{"train_batch_size": 8, "wandb": {{"enabled": true, "project": {text}\n}}}}', "ds.json"
    )
    assert "template" not in [finding.code for finding in validate_document(document, CONTEXT)]


@given(placeholders, placeholders)
def test_a_template_is_one_finding_and_is_not_mended(first: str, second: str) -> None:
    text = f'{{"train_batch_size": {first}, "zero_optimisation": {{"stage": {second}}}, "x": "true"}}'
    with suppress(Refused):
        document = parse(text, "ds.json")
        assert [finding.code for finding in validate_document(document, CONTEXT)] == ["template"]
        assert fix_document(document, CONTEXT).document.text == text
