"""Recorded machines: the facts of hosts as the program on a host tells them, one JSON file for each.

A file that says which other machine it is `like` has only what differs.
`python -m tests.checks.recorded > tests/checks/machines/NAME.json` records the machine that it runs on.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.interpreter import Package
from zlaunch.hosts.machine.question import FOR_DOCTOR, FOR_TRAINING, Question
from zlaunch.hosts.machine.survey import survey
from zlaunch.json_lines import plain

FOLDER = Path(__file__).with_name("machines")
GIB = 1 << 30
_FACTS = TypeAdapter(MachineFacts)


def machine_facts(name: str) -> MachineFacts:
    """The facts of a recorded machine."""
    return _FACTS.validate_python(_recorded(name))


def _recorded(name: str) -> Any:
    given = json.loads((FOLDER / f"{name}.json").read_text())
    return _merged(_recorded(given.pop("like")), given) if "like" in given else given


def _merged(old: Any, new: Any) -> Any:
    if not (isinstance(old, dict) and isinstance(new, dict) and new):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def all_recorded() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob("*.json"))


def cpu_host(**topics: Any) -> MachineFacts:
    """A healthy laptop without GPUs; a dictionary changes members of a topic, anything else replaces it."""
    return changed(machine_facts("laptop"), **topics)


def gpu_host(**topics: Any) -> MachineFacts:
    """A healthy host with one GPU."""
    return changed(machine_facts("one-h100"), **topics)


def changed(facts: MachineFacts, **topics: Any) -> MachineFacts:
    values = {}
    for topic, value in topics.items():
        found = getattr(facts, topic)
        is_change = isinstance(value, dict) and not isinstance(found, dict | type(None))
        values[topic] = replace(found, **value) if is_change else value
    return replace(facts, **values)


def with_packages(facts: MachineFacts, **versions: str | None) -> MachineFacts:
    """The same host with other releases of packages, or without them."""
    packages = dict(facts.python.packages)
    for name, version in versions.items():
        packages[name] = None if version is None else Package(f"/venv/site-packages/{name}", version)
    return replace(facts, python=replace(facts.python, packages=packages))


if __name__ == "__main__":
    topics = tuple(dict.fromkeys((*FOR_DOCTOR, *FOR_TRAINING)))
    asked = Question(topics, paths=(Path.cwd(), Path("/tmp")))
    print(json.dumps(plain(survey(asked)), indent=2))
