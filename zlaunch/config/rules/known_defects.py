"""Defects of the installed releases, or of the one that is asked about."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from zlaunch.config.rules.rule import Context, Subject, Violation, warning
from zlaunch.dsconfig.known_defects import NAMES, Outcome, defects, holds
from zlaunch.dsconfig.releases import NEWEST
from zlaunch.dsconfig.schema_check import check
from zlaunch.errors import Finding, Severity
from zlaunch.job.model_types import model_type

_SEVERITIES: Mapping[Outcome, Severity] = {
    "wrong": Severity.WARNING,
    "hang": Severity.WARNING,
    "crash": Severity.WARNING,
    "slow": Severity.ADVICE,
    "fades": Severity.ADVICE,
}


@warning(
    {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 2},
    },
    {"zero_optimization.stage": 1},
    Context(world_size=2, packages={"deepspeed": "0.18.2"}),
)
def known_defect(subject: Subject) -> Iterator[Violation]:
    """A release of DeepSpeed, accelerate or transformers has a defect that this config meets.

    docs/known-defects.md lists them.
    """
    packages = subject.context.packages
    present = [defect for defect in defects() if defect.affects(packages.get(defect.package))]
    facts: Mapping[str, object] = {}
    if present:
        facts = _named_facts(subject)
    for defect in present:
        if any(_all_hold(subject, facts, conditions) for conditions in defect.conditions):
            severity = _SEVERITIES[defect.outcome]
            if defect.is_certain:
                severity = Severity.FAILS_LATER
            message = f"{NAMES[defect.package]} {packages[defect.package]} {defect.what}"
            yield Violation(_written(subject, defect.where), message, defect.hint, severity=severity)


def known_defects(values: dict[str, Any], context: Context) -> list[Finding]:
    """Find the defects that a resolved config meets, also those that are no more than an advice."""
    config = check(values, context.release).config
    if config is None:
        return []
    return [*known_defect(Subject(config, replace(context, args=None)))]


def _all_hold(subject: Subject, facts: Mapping[str, object], conditions: Mapping[str, Any]) -> bool:
    return all(_holds(subject, facts, name, wanted) for name, wanted in conditions.items())


def _named_facts(subject: Subject) -> dict[str, object]:
    """Return the facts that have a name, besides the keys of the config; None for what is unknown."""
    context = subject.context
    known = model_type(context.model, context.packages.get("transformers"))
    devices = {name: section.device for name, section in subject.offloads.items()}
    return {
        **context.packages,
        "stage": subject.stage,
        "precision": subject.format,
        "optimizer": subject.optimizer,
        "accumulation": subject.accumulation,
        "offload_optimizer": devices.get("offload_optimizer", "none"),
        "offload_param": devices.get("offload_param", "none"),
        "ranks": context.world_size or math.inf,  # a ds_config is for several
        "accelerator": context.accelerator or "cuda",
        "interface": context.interface.value,
        "model_type": context.model and context.model.kind,
        "has_experts": bool(known.experts),
        "reuses_modules": bool(known.reused),
        "ties_weights": known.ties_weights,
    }


def _holds(subject: Subject, facts: Mapping[str, object], name: str, wanted: Any) -> bool:
    if isinstance(wanted, dict) and "written" in wanted:
        return _is_written(subject, name) is wanted["written"]
    if name in facts:
        return holds(facts[name], wanted)
    return holds(_value_or_default(subject, name), wanted)


def _value_or_default(subject: Subject, name: str) -> object:
    """Return the value of a key, or its default in this release."""
    path = tuple(name.split("."))
    if path in subject.written:
        return subject.written[path]
    return (subject.context.release or NEWEST).default(path)


def _written(subject: Subject, where: str) -> str:
    """Return the written part of a key."""
    while where and not subject.has(where):
        where = where.rpartition(".")[0]
    return where


def _is_written(subject: Subject, name: str) -> bool:
    path = tuple(name.split("."))
    return subject.has(name) or any(keys[: len(path)] == path for keys in subject.written)
