"""Write docs/known-defects.md from the table of defects: `python -m tools.write_defects`."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from zlaunch.dsconfig.known_defects import NAMES, Defect, defects

PAGE: Final = Path(__file__).parent.parent / "docs" / "known-defects.md"

HEAD: Final = """# Known defects of releases

Releases of DeepSpeed, accelerate and transformers since 2024 that train something other than what the config
says, hang or fail with it. `make docs` generates this page from
[known_defects.json](../zlaunch/dsconfig/known_defects.json).

`zlaunch config validate`, `train`, `plan`, `check` and `doctor` report those that the job at hand meets, as
`known-defect`. They go by the installed releases; `zlaunch config validate --deepspeed 0.18.2` asks about
another. A defect is a warning. It is reported only if all of its conditions are known to hold: a config that
leaves the stage to an argument, say, meets none that is about a stage. It is taken to be for GPUs and for
several ranks.

**Reproduced** means that `python -m tools.known_defects`, a part of `make matrix`, shows the defect on a CPU
in the last release that has it, and that it is gone in the first one without. The others were read from the
sources of these releases and from the threads that are linked.
"""

OUTCOMES: Final[Mapping[str, str]] = {
    "wrong": "silently wrong",
    "hang": "hangs",
    "crash": "fails",
    "slow": "slow",
    "fades": "silently wrong at first",
}


def page() -> str:
    """Return the page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    rows = defects()
    reproduced = sum(defect.is_reproduced for defect in rows)
    yield f"{len(rows)} defects, {reproduced} of them reproduced."
    for package, name in NAMES.items():
        yield f"\n## {name}"
        for defect in (row for row in rows if row.package == package):
            yield from _defect(defect)


def _defect(defect: Defect) -> Iterator[str]:
    yield f"\n### {defect.name}\n"
    yield f"*{NAMES[defect.package]} {defect.releases}. {OUTCOMES[defect.outcome].capitalize()}.*"
    yield f"It {defect.what}.\n"
    yield f"- if {'; or '.join(map(_conditions, defect.conditions))}"
    yield f"- cure: {defect.remedy}"
    yield f"- {', '.join(map(_link, defect.links))}"
    if defect.is_reproduced:
        yield "- reproduced"
    else:
        yield "- not reproduced"


def _conditions(conditions: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}` {_condition(wanted)}" for name, wanted in conditions.items())


def _condition(wanted: Any) -> str:
    if isinstance(wanted, list):
        return f"is {' or '.join(map(json.dumps, wanted))}"
    if not isinstance(wanted, dict):
        return f"is {json.dumps(wanted)}"
    ((test, limit),) = wanted.items()
    if test == "written":
        return "is written" if limit else "is not written"
    if test == "not":
        return f"is not {' or '.join(map(json.dumps, limit))}"
    return f"is {test.replace('_', ' ')} {limit}"


def _link(url: str) -> str:
    owner_and_name, _, number = url.removeprefix("https://github.com/").partition("/issues/")
    if not number:
        owner_and_name, _, number = owner_and_name.partition("/pull/")
    return f"[{owner_and_name.rpartition('/')[2]} {number}]({url})"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
