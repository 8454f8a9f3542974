"""Rules between keys of a ds_config: one function, one code, one case that breaks it."""

from zlaunch.errors import Finding
from zlaunch.rules import (
    autos,
    batch,
    changes,
    constructors,
    data,
    gradients,
    masters,
    names,
    offload,
    optimizer,
    parallel,
    precision,
    schedule,
    sections,
    stages,
    trainer,
    zenflow,
    zeropp,
)
from zlaunch.rules.rule import Rule, Subject

_ROOMS = (
    *(batch, autos, trainer),
    *(stages, offload, gradients, zeropp, zenflow),
    *(precision, masters, optimizer, constructors, schedule),
    *(names, sections, parallel, data, changes),
)
RULES: tuple[Rule, ...] = tuple(
    thing for room in _ROOMS for thing in vars(room).values() if isinstance(thing, Rule)
)


def judge(subject: Subject) -> list[Finding]:
    """Apply every rule and collect all findings."""
    return [finding for rule in RULES for finding in rule(subject)]
