import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.config.rules.test_rules import CORPUS, FINE, interface_of
from tests.each import each
from tests.running import ROOT
from zlaunch.config.asked_release import packages_of
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document, validate_mapping
from zlaunch.dsconfig.known_defects import Defect, defects, holds
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.releases import ALL
from zlaunch.errors import FATAL, Finding, Severity
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface
from zlaunch.job.stack import TESTED, SoftwareStack

NEWEST = {"deepspeed": "0.19.8", "transformers": "5.24.0", "accelerate": "1.15.0", "torch": "2.13.0"}
"""Those of constraints.txt."""
RAW = ConfigInterface.DEEPSPEED

each_defect = each("defect", defects(), ids=lambda defect: defect.name)


def names_in(config: dict[str, Any], **context: Any) -> list[str]:
    """Name the defects that a config meets."""
    found = selected(validate_mapping(config, Context(**context)))
    return [next(row.name for row in defects() if row.what in finding.message) for finding in found]


def selected(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.code == "known-defect"]


def stage(number: int, **keys: Any) -> dict[str, Any]:
    sizes = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    return {**sizes, "zero_optimization": {"stage": number}, **keys}


def test_a_defect_is_found_by_the_exact_release() -> None:
    config = stage(2, gradient_accumulation_steps=4)
    met = {
        release: names_in(config, packages={"deepspeed": release})
        for release in ("0.17.5", "0.17.6", "0.18.2", "0.18.3")
    }
    assert met == {
        "0.17.5": [],
        "0.17.6": ["only-the-last-micro-batch"],
        "0.18.2": ["only-the-last-micro-batch"],
        "0.18.3": [],
    }


@pytest.mark.parametrize(
    "config",
    [
        stage(1, gradient_accumulation_steps=4),
        stage(2),
        stage(2, gradient_accumulation_steps="auto"),
        {**stage(2, gradient_accumulation_steps=4), "zero_optimization": {"stage": "auto"}},
    ],
)
def test_a_config_that_is_not_known_to_meet_a_defect_is_left_alone(config: dict[str, Any]) -> None:
    assert "only-the-last-micro-batch" not in names_in(config, packages={"deepspeed": "0.18.2"})


def test_an_accumulation_that_follows_from_the_batch_counts() -> None:
    config = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": 2},
    }
    packages = {"deepspeed": "0.18.2"}
    assert names_in(config, packages=packages, world_size=4, interface=RAW) == ["only-the-last-micro-batch"]
    assert names_in(config, packages=packages, world_size=16, interface=RAW) == []


def test_a_default_is_that_of_the_release() -> None:
    """Before 0.19, gradients were not clipped by default."""
    config, packages = stage(2, bf16={"enabled": True}), {"deepspeed": "0.16.5"}
    release = SoftwareStack(packages).deepspeed
    assert names_in(config, packages=packages, release=release) == []
    clipped = {**config, "gradient_clipping": 1.0}
    assert names_in(clipped, packages=packages, release=release) == ["infinite-norm"]


def test_a_defect_can_be_about_the_model() -> None:
    llama = ModelConfig({"model_type": "llama"}, "{}", "config.json")
    packages = {"deepspeed": "0.19.3"}
    for number, names in ((0, ["divided-twice"]), (2, ["divided-twice"]), (3, [])):
        config = stage(number, gradient_accumulation_steps=4)
        assert names_in(config, packages=packages, model=llama, interface=RAW) == names
    assert names_in(config, packages=packages, interface=RAW) == []


def test_what_stays_after_the_newest_release_is_known() -> None:
    """They are what docs/parity.md says of it."""
    fp16, bf16 = ({name: {"enabled": True}} for name in ("fp16", "bf16"))
    lion, muon = ({"optimizer": {"type": name}} for name in ("Lion", "Muon"))
    offload = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    given: dict[str, Any] = {"packages": NEWEST, "world_size": 2}
    assert names_in(stage(0, **bf16), **given) == ["optimizer-stepped-before"]
    assert names_in(stage(0, **fp16), **given) == ["fp16-loss-not-scaled", "optimizer-stepped-before"]
    assert names_in(stage(2, **bf16, **muon), **given) == ["muon-updates-clipped"]
    assert names_in(stage(2, **muon, gradient_clipping=0.0), **given) == []
    assert names_in({**stage(2, **lion), "zero_optimization": offload}, **given) == ["lion-moves-the-unused"]
    assert names_in(stage(2, **lion), **given) == []


def test_an_unknown_release_has_no_defects() -> None:
    assert names_in(stage(2, gradient_accumulation_steps=4)) == []


def test_a_minor_release_stands_for_its_last_patch() -> None:
    assert packages_of("0.18", SoftwareStack())["deepspeed"] == "0.18.9"
    assert packages_of("v0.18.2", SoftwareStack({"torch": "2.13"})) == {
        "deepspeed": "0.18.2",
        "torch": "2.13",
    }


@each_defect
def test_a_defect_says_what_to_do_and_where_it_is_reported(defect: Defect) -> None:
    assert defect.fixed or defect.cure
    assert all(link.startswith("https://github.com/") for link in defect.links)
    assert defect.links


@each_defect
def test_a_defect_is_about_facts_and_keys_that_there_are(defect: Defect) -> None:
    facts = {
        *("stage", "precision", "optimizer", "accumulation", "offload_optimizer", "offload_param", "ranks"),
        *("accelerator", "interface", "model_type", "has_experts", "reuses_modules", "ties_weights"),
        *TESTED,
    }
    known = {".".join(map(str, path)) for release in ALL for path in release.keys}
    constructors = ("optimizer.params.", "scheduler.params.")
    for conditions in defect.conditions:
        keys = {name for name in conditions if not name.startswith(constructors)} - facts
        assert keys <= known


def test_no_two_defects_have_one_name() -> None:
    names = [defect.name for defect in defects()]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    ("value", "wanted", "is_met"),
    [
        (2, 2, True),
        (2, [1, 2], True),
        (2, {"at_least": 2}, True),
        (1, {"at_least": 2}, False),
        ("2.10.1", {"at_least": "2.9"}, True),
        ("0.9", {"below": "0.16"}, True),
        ("cpu", {"not": ["cpu"]}, False),
        (None, {"not": ["cpu"]}, False),
        (True, {"at_least": 1}, False),
        ("auto", {"at_least": 2}, False),
    ],
)
def test_a_value_is_compared_with_what_a_defect_asks_of_it(
    value: object, wanted: object, is_met: bool
) -> None:
    assert holds(value, wanted) is is_met


STILL_THERE = tuple(defect.what for defect in defects() if defect.fixed is None)
"""Of defects that no release has fixed; see docs/parity.md."""


def serious(findings: list[Finding]) -> list[str]:
    warnings = [finding for finding in selected(findings) if finding.severity is not Severity.ADVICE]
    return [finding.message for finding in warnings if not finding.message.endswith(STILL_THERE)]


@each("file", CORPUS, ids=lambda file: file.stem)
def test_configs_that_people_train_with_meet_no_defect_of_the_newest_releases(file: Path) -> None:
    context = Context(interface=interface_of(file), packages=NEWEST)
    assert serious(validate_document(read(file), context)) == []


def test_fine_configs_meet_no_defect_of_the_newest_releases() -> None:
    context = Context(world_size=2, packages=NEWEST)
    assert [serious(validate_mapping(config, context)) for config in FINE] == [[]] * len(FINE)


def test_no_defect_refuses_a_job() -> None:
    """A false refusal is worse than a missed warning."""
    severities = {
        finding.severity
        for release in ("0.14.0", "0.15.4", "0.16.5", "0.17.2", "0.18.2", "0.18.7", "0.19.2")
        for file in CORPUS
        for finding in selected(
            validate_mapping(
                json.loads(json.dumps(read(file).value)), Context(packages={"deepspeed": release})
            )
        )
    }
    assert not severities & FATAL


def test_what_is_reproduced_has_a_case() -> None:
    """`python -m tools.known_defects` runs them."""
    source = (ROOT / "tools" / "defect_cases.py").read_text()
    named = set(re.findall(r'^@case\("([^"]+)"', source, re.MULTILINE))
    assert {defect.name for defect in defects() if defect.is_reproduced} <= named
    assert named <= {defect.name for defect in defects()}
