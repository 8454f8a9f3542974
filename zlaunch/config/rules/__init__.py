"""Rules between the keys of a ds_config: one function, one code, one config that breaks it."""

from itertools import chain

from zlaunch.config.rules import (
    auto_values,
    batch,
    constructor_args,
    data,
    gradients,
    known_defects,
    master_weights,
    model_types,
    offload,
    optimizer,
    parallel,
    precision,
    release_changes,
    renamed_keys,
    saving,
    schedule,
    sections,
    trainer,
    zenflow,
    zero_plus_plus,
    zero_stages,
)
from zlaunch.config.rules.rule import Rule, Subject
from zlaunch.errors import Finding

_TOPICS = (
    *(batch, auto_values, trainer),
    *(zero_stages, offload, gradients, zero_plus_plus, zenflow),
    *(precision, master_weights, optimizer, constructor_args, schedule),
    *(renamed_keys, sections, saving, parallel, data, model_types),
    *(release_changes, known_defects),
)
_MEMBERS = chain.from_iterable(vars(topic).values() for topic in _TOPICS)
RULES: tuple[Rule, ...] = tuple(member for member in _MEMBERS if isinstance(member, Rule))


def apply_rules(subject: Subject) -> list[Finding]:
    """Apply every rule and collect all findings."""
    return [*chain.from_iterable(rule(subject) for rule in RULES)]
