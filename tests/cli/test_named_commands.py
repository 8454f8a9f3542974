"""Every command that zlaunch names can be typed: its texts, findings, verdicts and pages, by zlaunch's own parser.

What the end of a run advises is started in `tests/program/test_advised.py`.
"""

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product
from pathlib import Path

import pytest

from tests.checks.recorded import all_recorded, machine_facts
from tests.checks.test_agreement import JOBS
from tests.commands import command_named, commands, options_of
from tests.diagnosis.table import DEATHS
from tests.running import ROOT
from zlaunch.checks.host import check_host
from zlaunch.cli import _UsageError
from zlaunch.config.rules import RULES
from zlaunch.config.validate import validate_mapping
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.errors import WrongUsage, ZlaunchError
from zlaunch.job.trainer_releases import ADDED, REMOVED
from zlaunch.launch.all_hosts import findings_of

_NAMED = re.compile(r"`(zlaunch [^`]+|--[a-z -][^`]*)`")
_OPEN = re.compile(r"\b[A-Z]{1,}\b|…|\{\}")
"""What stands for a word of the user."""
_FIELD = "FIELD"
_NOUNS = (
    "--help",
    "OPTIONS]",
    "[--",
    "zlaunch nvme tune -o",
    "zlaunch runs stop --save",
    "zlaunch train --submit",
    "zlaunch train trl",
)
"""Options by their names, a mistake that a page shows, and help, which ends the parser."""
_REFUSED = ("--gpus 0", "--kind pytorchjob")
"""Values of options that a message refuses."""


def refusal(span: str) -> str | None:
    """Say why a command, or an option of some command, cannot be typed; a word of the user may have any value."""
    words = shlex.split(span.replace("[", " ").replace("]", " "))
    if words[0] != "zlaunch":
        takers = [path for path, command in commands().items() if words[0] in options_of(command)]
        refusals = [refused_by(path, words) for path in takers]
        if any(said is None or said.startswith("Missing") or "requires" in said for said in refusals):
            return None
        return next(iter(refusals), None)
    words = words[1:]
    path = command_named(words)
    rest = words[len(path) :]
    if hasattr(commands()[path], "commands"):
        return f"no such command: {span}" if rest and not rest[0].startswith("-") else None
    return refused_by(path, rest) if rest else None


def refused_by(path: tuple[str, ...], words: Sequence[str]) -> str | None:
    try:
        commands()[path].make_context(f"zlaunch {' '.join(path)}", [*words])
    except WrongUsage as error:
        said = error.message
    except ZlaunchError:
        return None  # what it names is not here
    except _UsageError as error:
        said = error.format_message()
    else:
        return None
    open_words = [word for word in words if _OPEN.search(word)]
    is_open = any(word in said for word in open_words) or (open_words and "unable to parse" in said)
    if is_open or "does not exist" in said:
        return None
    return str(said)


def texts_of_source(file: Path) -> Iterator[str]:
    """List the texts in a module, without the docstrings; a field of one is a word."""
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    formatted = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    hidden = {id(part) for node in formatted for part in node.values}
    hidden |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for text in formatted:
        yield "".join(
            str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else _FIELD
            for part in text.values
        )
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield node.value


def texts_of_page(file: Path) -> str:
    """Return a page, with the commands of its code blocks in backticks and without what a shell does."""
    text = re.sub(r" \\\n +", " ", file.read_text("utf-8"))  # a command of several lines
    text = re.sub(r"^    (?:\$ )?(zlaunch .*)$", r"`\1`", text, flags=re.MULTILINE)
    return re.sub(r"`(zlaunch [^`]*?)(?: #|;| \||  )[^`]*`", r"`\1`", text)


def named(texts: Iterator[str]) -> list[str]:
    spans = {span for text in texts for span in _NAMED.findall(text)}
    return sorted(span for span in spans if span not in _REFUSED and not any(noun in span for noun in _NOUNS))


def in_source() -> list[str]:
    texts = [text for file in (ROOT / "zlaunch").rglob("*.py") for text in texts_of_source(file)]
    texts += [
        file.read_text("utf-8").replace('\\"', '"') for file in (ROOT / "zlaunch/config").rglob("*.json")
    ]
    helps = [file.read_text("utf-8") for file in (ROOT / "zlaunch/cli").rglob("*.py")]
    examples = re.findall(r"^ +(zlaunch \w+ .*)$", "\n".join(helps), re.MULTILINE)
    return [*named(iter(texts)), *examples]


def on_pages() -> list[str]:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return named(map(texts_of_page, pages))


def told() -> list[str]:
    """List what rules, verdicts and checks of machines name, with the values of a job."""
    texts: list[str | None] = []
    for rule in RULES:
        for finding in validate_mapping(dict(rule.broken), rule.context):
            texts += [finding.message, finding.hint]
    for run in chain.from_iterable(DEATHS.values()):
        verdict = diagnose(run)
        texts += [verdict.cause, *verdict.facts, *verdict.advice]
    for machine, needs in product(all_recorded(), JOBS.values()):
        for finding in findings_of(check_host(machine_facts(machine), needs)):
            texts += [finding.message, finding.hint]
    return named(filter(None, texts))


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("spans", [in_source, on_pages, told])
def test_every_command_and_option_that_is_named_can_be_typed(spans: Callable[[], list[str]]) -> None:
    found = spans()
    assert len(found) > 40
    assert {span: said for span in found if (said := refusal(span))} == {}


def test_every_argument_that_a_finding_or_a_verdict_advises_is_one_of_every_trainer() -> None:
    arguments = {word for span in told() for word in re.findall(r"--(\w+)", span)}
    assert arguments & {*ADDED, *REMOVED} == set()
