"""What `python -m tools.newest` says of the newest releases."""

from typing import Any

import pytest

from tools.described import SECTIONS, described
from tools.newest import TABLES, differences

TESTED: dict[str, dict[str, Any]] = {section: {} for section in TABLES}


def test_every_section_of_a_description_names_its_table() -> None:
    assert [*TABLES] == [*SECTIONS]


def test_nothing_is_said_where_nothing_differs() -> None:
    assert list(differences(TESTED, TESTED)) == []


def test_what_is_new_gone_and_changed_is_listed_below_its_table() -> None:
    before = {**TESTED, "arguments of the Trainer": {"a": "1", "b": "2"}, "pins": {"torch": ["x>=1", "y"]}}
    now = {**TESTED, "arguments of the Trainer": {"b": "3", "c": "4"}, "pins": {"torch": ["x>=2", "y"]}}
    assert list(differences(before, now)) == [
        "pins: constraints.txt",
        "  - torch: x>=1",
        "  + torch: x>=2",
        "",
        "arguments of the Trainer: zlaunch/job/trainer_releases.py",
        "  - a",
        "  ~ b: 2 -> 3",
        "  + c 4",
        "",
    ]


def test_a_flag_that_the_table_has_already_is_not_listed() -> None:
    now = {**TESTED, "flags of torchrun": {"--nproc_per_node": "1", "--brand_new": "None"}}
    assert [line for line in differences(TESTED, now) if line.startswith("  ")] == ["  + --brand_new None"]


@pytest.mark.full
def test_all_sections_of_the_tested_packages_can_be_described() -> None:
    found = described()
    assert [name for name, section in found.items() if not section or "cannot be described" in section] == []
