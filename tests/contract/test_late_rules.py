"""What is said to fail late is accepted by DeepSpeed's reader, and then really fails in its engine."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.config.rules.test_rules import broken, mended
from tests.contract.engine_side import TRAINED
from tests.each import each
from tests.running import ROOT
from zlaunch.config.rules import RULES
from zlaunch.config.rules.rule import Rule
from zlaunch.errors import Severity

pytestmark = pytest.mark.job

TRAINER = "the Trainer or accelerate fails, and not the engine"
GPU = "fails on a GPU alone"
OTHER = "fails in a script that uses it"
NOT_HERE = {
    **dict.fromkeys(
        (
            "accumulation-is-one",
            "auto-of-deepspeeds-own",
            "batch-size-search-at-stage-3",
            "batch-differs-from-arguments",
            "differs-from-argument",
            "no-hidden-size",
            "no-learning-rate-suits-both",
            "null-offload",
            "old-offload-unseen",
            "replaced-optimizer-fails",
        ),
        TRAINER,
    ),
    **dict.fromkeys(("lamb-on-the-host", "lamb-scales-dynamically", "offload-needs-partitioning"), GPU),
    **dict.fromkeys(
        (
            "autotp-pass-alone",
            "two-compiled-offloads",
            "two-tensor-parallel-sizes",
            "zenflow-is-adamw",
        ),
        OTHER,
    ),
    **dict.fromkeys(("buffer-too-small", "nvme-needs-a-path", "too-few-buffers"), "needs libaio"),
    "groups-do-not-divide-the-ranks": "needs 3 ranks",
    "hpz-does-not-divide": "needs 12 ranks",
    "fp16-unsupported": "fails on a CPU without fp16 kernels alone",
}
"""Rules that one rank on a CPU cannot show → why."""

SHOWN = [rule for rule in RULES if rule.severity is Severity.FAILS_LATER and rule.code not in NOT_HERE]
each_rule = each("rule", SHOWN, ids=lambda rule: rule.code)


def with_optimizer(config: dict[str, Any]) -> dict[str, Any]:
    """Bring an optimizer that has to be compiled only where the config is about the host's."""
    offloads = "offload_optimizer" in config.get("zero_optimization", {})
    adam = {"type": "AdamW", "params": {"lr": 1e-4, **({} if offloads else {"torch_adam": True})}}
    return {"optimizer": adam, **config}


@pytest.fixture(scope="module")
def outcomes() -> Any:
    configs = {f"broken {rule.code}": with_optimizer(broken(rule)) for rule in SHOWN}
    configs |= {f"mended {rule.code}": with_optimizer(mended(rule)) for rule in SHOWN}
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.engine_side"],
        input=json.dumps(configs).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_exceptions_are_rules() -> None:
    assert NOT_HERE.keys() <= {rule.code for rule in RULES if rule.severity is Severity.FAILS_LATER}


@pytest.mark.full
@each_rule
def test_the_engine_fails_with_what_a_late_rule_is_about(rule: Rule, outcomes: dict[str, str]) -> None:
    assert outcomes[f"broken {rule.code}"] != TRAINED


@pytest.mark.full
@each_rule
def test_the_engine_trains_with_the_repair(rule: Rule, outcomes: dict[str, str]) -> None:
    assert outcomes[f"mended {rule.code}"] == TRAINED
