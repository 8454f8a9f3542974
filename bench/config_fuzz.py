"""Compare verdicts about ds_configs with the real parser of DeepSpeed, on random mutants of valid ones.

    python -m bench.config_fuzz [--mutants N] [--seed N] [--only N ...]

Each mutant is a valid ds_config of this repository with one to three structural changes: keys that are
deleted, misspelled, written twice, moved or added, values of another type or size. DeepSpeed reads its text
as `deepspeed.initialize` does until the engine is created: the file, the device mesh and the DeepSpeedConfig,
on the first and the last of 1, 2, 4 or 8 ranks. `config validate` reads the same text for the same ranks.
"""

import argparse
import collections
import copy
import functools
import json
import logging
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.config.rules.test_rules import CORPUS, mended
from tests.contract.deepspeed_side import as_rank, rank_of
from tests.contract.zlaunch_side import all_paths
from tests.making import WRITTEN
from tests.running import CONFIGS
from zlaunch.config.resolve.autos import resolve_autos
from zlaunch.config.resolve.values import Values
from zlaunch.config.rules import RULES
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.releases import REMOVED
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import FATAL, Finding, Refused, Severity
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import read_arguments

WORLDS = (1, 2, 4, 8)
KNOWN = tuple(all_paths())
WORDS = ("auto", "true", "false", "none", "", "x", "3", "1e5", "-1", "cpu", "bf16", "AdamW", "{}", "null")
NUMBERS = (0, 1, 2, 3, 7, 16, -1, -5, 0.5, 1.5, -0.1, 1e-8, 1e30, 2**40, 10**18)
PLAIN: tuple[Any, ...] = (
    None,
    True,
    False,
    *WORDS,
    *NUMBERS,
    [],
    {},
    [1],
    ["a"],
    {"enabled": True},
    {"x": 1},
)
NOT_ON_A_CPU = {"use_gds"}
"""Keys that DeepSpeed refuses on a CPU, where this program runs."""

Config = dict[str, Any]
KeyPath = tuple[str, ...]
Change = Callable[[random.Random, Config], None]


@dataclass(frozen=True)
class Mutant:
    """A ds_config after some changes."""

    number: int
    text: str
    world_size: int
    changes: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """What both say of a mutant."""

    mutant: Mutant
    refusal: str | None
    """What DeepSpeed says; None if it accepts."""
    findings: tuple[Finding, ...]

    @property
    def worst(self) -> str:
        """The class of what zlaunch says."""
        severities = {one.severity for one in self.findings}
        for severity in (Severity.ERROR, Severity.FAILS_LATER):
            if severity in severities:
                return str(severity.value)
        if any(one.is_mistake for one in self.findings):
            return MISTAKE
        return "ignored" if Severity.IGNORED in severities else "valid"

    @property
    def is_missed(self) -> bool:
        """Whether DeepSpeed refuses what `zlaunch config validate` lets pass."""
        return self.refusal is not None and self.worst in ("ignored", "valid")

    @property
    def is_false(self) -> bool:
        """Whether zlaunch says that DeepSpeed refuses what it accepts."""
        return self.refusal is None and self.worst == "error"

    @property
    def codes(self) -> str:
        """The codes and keys of the errors."""
        errors = [one for one in self.findings if one.severity is Severity.ERROR]
        return ", ".join(sorted({f"{one.code} {one.where}" for one in errors}))


MISTAKE = "misspelled"
CLASSES = ("error", "fails later", MISTAKE, "ignored", "valid")


# ------------------------------------------------------------------ mutants


def originals() -> Iterator[tuple[Config, int]]:
    """List valid ds_configs with the ranks they are for: files, and the repaired examples of all rules."""
    args, _ = read_arguments(ScriptArgs.of(["--max_steps", "100"]))
    model = ModelConfig({"hidden_size": 256}, "", "config.json")
    configs = [json.loads(file.read_text()) for file in [*sorted(CONFIGS.glob("*.json")), *CORPUS]]
    configs += [mended(rule) for rule in RULES]
    for config in configs:
        for world_size in WORLDS:
            values = resolve_autos(Values.of(config, WRITTEN), Context(world_size, args, model)).values
            filled = Mutant(0, json.dumps(values.config()), world_size, ())
            if refusal(filled) is None and not FATAL & {one.severity for one in findings(filled)}:
                yield values.config(), world_size


def mutants(count: int, seed: int) -> Iterator[Mutant]:
    """Change valid ds_configs at random."""
    chance, valid = random.Random(seed), list(originals())
    for number in range(count):
        config, world_size = chance.choice(valid)
        config, changes = copy.deepcopy(config), []
        for _ in range(chance.choices((1, 2, 3), weights=(5, 2, 1))[0]):
            change = chance.choice(CHANGES)
            change(chance, config)
            changes.append(change.__name__)
        text = json.dumps(config, indent=2)
        if chance.random() < 0.03:
            text, changes = _twice(chance, text), [*changes, "write a key twice"]
        yield Mutant(number, text, world_size, tuple(changes))


def _paths(config: Config, above: KeyPath = ()) -> list[KeyPath]:
    found = []
    for key, value in config.items():
        found.append((*above, key))
        if isinstance(value, dict):
            found += _paths(value, (*above, key))
    return found


def _chosen(chance: random.Random, config: Config) -> tuple[Config, str] | None:
    """Choose any key: the object around it, and its name."""
    if not (paths := _paths(config)):
        return None
    path = chance.choice(paths)
    return functools.reduce(lambda node, part: node[part], path[:-1], config), path[-1]


def _sections(config: Config) -> list[Config]:
    nested = (functools.reduce(lambda node, part: node[part], path, config) for path in _paths(config))
    return [config, *(value for value in nested if isinstance(value, dict))]


def _value(chance: random.Random, near: Any = None) -> Any:
    if isinstance(near, int | float) and not isinstance(near, bool) and chance.random() < 0.4:
        return chance.choice([-near, near * 2, near / 3, near + 1, str(near), float(near), near * 10**9])
    return copy.deepcopy(chance.choice(PLAIN))


def delete_key(chance: random.Random, config: Config) -> None:
    """Delete a key."""
    if chosen := _chosen(chance, config):
        del chosen[0][chosen[1]]


def misspell_key(chance: random.Random, config: Config) -> None:
    """Misspell a key."""
    if chosen := _chosen(chance, config):
        node, key = chosen
        at = chance.randrange(len(key)) if key else 0
        new = chance.choice(
            [
                key[:at] + key[at + 1 :],
                key[:at] + key[at : at + 2][::-1] + key[at + 2 :],
                key[:at] + chance.choice("aeinst_") + key[at:],
                key.upper(),
                key.replace("_", ""),
                f"{key}s",
                f"my_{key}",
            ]
        )
        node[new] = node.pop(key)


def rename_to_known(chance: random.Random, config: Config) -> None:
    """Give a value the name of another key."""
    if chosen := _chosen(chance, config):
        node, key = chosen
        node[chance.choice(KNOWN)[-1]] = node.pop(key)


def change_value(chance: random.Random, config: Config) -> None:
    """Write another value, often of another type."""
    if chosen := _chosen(chance, config):
        node, key = chosen
        node[key] = _value(chance, node[key])


def wrap_value(chance: random.Random, config: Config) -> None:
    """Put a value into a list, an object or text."""
    if chosen := _chosen(chance, config):
        node, key = chosen
        node[key] = chance.choice(
            [[node[key]], {key: node[key]}, {"value": node[key]}, json.dumps(node[key])]
        )


def move_key(chance: random.Random, config: Config) -> None:
    """Move a key into another section."""
    if chosen := _chosen(chance, config):
        node, key = chosen
        value = node.pop(key)
        chance.choice(_sections(config))[key] = value


def copy_key(chance: random.Random, config: Config) -> None:
    """Copy a key into another section."""
    if chosen := _chosen(chance, config):
        node, key = chosen
        chance.choice(_sections(config))[key] = copy.deepcopy(node[key])


def unwrap_section(chance: random.Random, config: Config) -> None:
    """Replace a section by its keys."""
    if chosen := _chosen(chance, config):
        node, key = chosen
        if isinstance(node[key], dict):
            node |= node.pop(key)


def swap_values(chance: random.Random, config: Config) -> None:
    """Swap two values of a section."""
    node = chance.choice(_sections(config))
    if len(node) > 1:
        one, other = chance.sample(sorted(node), 2)
        node[one], node[other] = node[other], node[one]


def add_known_key(chance: random.Random, config: Config) -> None:
    """Add a key that DeepSpeed has, with any value."""
    *above, key = chance.choice(KNOWN)
    node = config
    for part in above:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            return
    node[key] = _value(chance)


def add_removed_key(chance: random.Random, config: Config) -> None:
    """Add a key that DeepSpeed had."""
    *above, key = chance.choice(sorted(REMOVED)).split(".")
    node = config
    for part in above:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            return
    node[key] = _value(chance)


CHANGES: tuple[Change, ...] = (
    delete_key,
    misspell_key,
    rename_to_known,
    change_value,
    change_value,
    change_value,
    wrap_value,
    move_key,
    copy_key,
    unwrap_section,
    swap_values,
    add_known_key,
    add_known_key,
    add_known_key,
    add_removed_key,
)


def _twice(chance: random.Random, text: str) -> str:
    """Write a key twice, if it has a plain value."""
    lines = text.splitlines()
    plain = [number for number, line in enumerate(lines) if re.search(r'": [^{\[]+$', line)]
    if plain:
        at = chance.choice(plain)
        lines.insert(at, lines[at].rstrip(",") + ",")
    return "\n".join(lines)


# ------------------------------------------------------------------ verdicts


def refusal(mutant: Mutant) -> str | None:
    """Let DeepSpeed read a text on the first and the last rank; None if it accepts."""
    from deepspeed.runtime.tensor_parallel.init_utils import load_ds_config

    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(mutant.text)
        file.flush()
        try:
            for rank in {mutant.world_size - 1, 0}:
                with rank_of(mutant.world_size, rank):
                    as_rank(load_ds_config(file.name))
        except Exception as error:  # noqa: BLE001 - whatever it raises is a refusal
            return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return None


def findings(mutant: Mutant) -> tuple[Finding, ...]:
    """Let zlaunch read it."""
    try:
        document = parse(mutant.text, "ds_config.json")
    except Refused as refused:
        return refused.findings
    context = Context(mutant.world_size, interface=ConfigInterface.DEEPSPEED)
    return tuple(validate_document(document, context))


def verdicts(count: int, seed: int, only: Sequence[int] = ()) -> Iterator[Verdict]:
    """Compare what both say of mutants; those that depend on the hardware are left out."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    logging.disable(logging.CRITICAL)
    try:
        for mutant in mutants(count, seed):
            if (not only or mutant.number in only) and not any(
                f'"{key}"' in mutant.text for key in NOT_ON_A_CPU
            ):
                yield Verdict(mutant, refusal(mutant), findings(mutant))
    finally:
        logging.disable(logging.NOTSET)


def table(compared: Sequence[Verdict]) -> str:
    """Count the verdicts by what both say."""
    lines = ["| zlaunch says | DeepSpeed refuses | DeepSpeed accepts |", "|---|---|---|"]
    for worst in CLASSES:
        here = [one for one in compared if one.worst == worst]
        refused = sum(one.refusal is not None for one in here)
        lines.append(f"| {worst} | {refused:,} | {len(here) - refused:,} |")
    return "\n".join(lines)


def main() -> None:
    """Compare the verdicts, and print each disagreement and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", default=(), help="numbers of mutants to show")
    arguments = parser.parse_args()
    begin, compared = time.monotonic(), []
    for one in verdicts(arguments.mutants, arguments.seed, arguments.only):
        compared.append(one)
        kind = ""
        if one.is_missed:
            kind = "MISSED"
        elif one.is_false:
            kind = "FALSE"
        if kind or arguments.only:
            print(kind, one.mutant.number, one.mutant.world_size, one.mutant.changes, one.refusal, one.codes)
        if arguments.only:
            print(one.mutant.text, *map(str, one.findings), sep="\n")
    print(table(compared))
    later = collections.Counter[str]()
    for one in compared:
        if one.refusal is None and one.worst == "fails later":
            fatal = (finding for finding in one.findings if finding.severity is Severity.FAILS_LATER)
            later.update(finding.code for finding in fatal)
    print("accepted, but fails later:", dict(later.most_common()))
    missed, false = sum(one.is_missed for one in compared), sum(one.is_false for one in compared)
    share = false / max(len(compared), 1)
    print(
        f"{len(compared):,} mutants, {missed} missed, {false} ({share:.2%}) falsely called errors, "
        f"{time.monotonic() - begin:.0f} s"
    )
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
