"""The notes of a release are its section of the changelog."""

import pytest

from tools.release_notes import notes

CHANGELOG = """# Changelog

## Unreleased

- Later.

## 0.10.0 (2026-12-01)

### Runs

- Faster.

## 0.1.0

- First.
"""


def test_a_version_has_the_text_up_to_the_next() -> None:
    assert notes(CHANGELOG, "0.10.0") == "### Runs\n\n- Faster."
    assert notes(CHANGELOG, "0.1.0") == "- First."


@pytest.mark.parametrize("version", ["0.1", "0.10", "1.0.0", "0.1.0.1"])
def test_a_version_without_a_section_is_an_error(version: str) -> None:
    with pytest.raises(ValueError, match="has no section"):
        notes(CHANGELOG, version)
