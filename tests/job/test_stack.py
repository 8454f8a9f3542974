import re

import pytest

from tests.running import ROOT
from zlaunch.job.stack import TESTED, SoftwareStack
from zlaunch.units import numbers_of

MEASURED = re.findall(
    r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|",
    (ROOT / "docs" / "versions.md").read_text("utf-8"),
    re.MULTILINE,
)


@pytest.mark.parametrize(("accelerate", "offloaded"), [("1.1.1", "adamw_torch"), ("1.2.0", "adagrad")])
def test_accelerate_offloads_adagrad_since_1_2(accelerate: str, offloaded: str) -> None:
    assert SoftwareStack({"accelerate": accelerate}).optimizer_on_host("adagrad") == offloaded


@pytest.mark.parametrize(
    ("column", "name"), [*enumerate(("deepspeed", "transformers", "accelerate", "torch"))]
)
def test_what_is_said_to_be_tested_is_in_the_table_of_versions(column: int, name: str) -> None:
    releases = sorted(numbers_of(row[column]) for row in MEASURED)
    assert [releases[0], releases[-1]] == [*map(numbers_of, TESTED[name])]


def test_every_patch_of_a_tested_release_is_tested() -> None:
    stack = SoftwareStack({"torch": "2.13.1+cpu", "deepspeed": "0.15.0", "transformers": "4.46.3"})
    assert list(stack.untested()) == []


def test_a_release_outside_of_the_table_is_untested() -> None:
    stack = SoftwareStack({"torch": "2.6.0", "deepspeed": "0.20.1"})
    versions = "torch 2.6.0 (tested: 2.13 to 2.15), deepspeed 0.20.1 (tested: 0.15 to 0.19)"
    assert list(stack.untested()) == [f"zlaunch was not tested with {versions}"]


@pytest.mark.parametrize(("deepspeed", "is_newest"), [("0.18.9", False), ("0.19.2", True), (None, True)])
def test_all_tests_ran_with_the_newest_release(deepspeed: str | None, is_newest: bool) -> None:
    assert SoftwareStack({"deepspeed": deepspeed}).is_newest("deepspeed") == is_newest
