"""Check that programs of other projects train the same as plain torch: `make program-parity`.

`python -m tools.programs.parity WORK` runs `zlaunch check` on each program that trains with DeepSpeed, as
`make programs` starts it, and writes docs/program-parity.md. A check downloads nothing: `zlaunch train` fills
the cache of the hub for programs that need it.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.programs.each import Trial, measured, options_of, try_each
from tools.programs.run import RANKS

PAGE = Path(__file__).parent.parent.parent / "docs" / "program-parity.md"


@dataclass
class Checked:
    """A program, and what was found."""

    command: str
    status: int
    answer: str
    row: str = ""
    """Model, engine and step."""
    largest: str = ""
    """The largest difference of a gradient, and what is allowed."""
    seconds: float = 0.0


def check(trial: Trial) -> Checked:
    """Check a program in a fresh copy of its folder."""
    folder, words = trial.places.run, f"{trial.job} {trial.arguments}"
    command = " ".join(f"zlaunch check {words}".split())
    for is_cached in (False, True):
        trial.set_up()
        before = {*folder.rglob("*"), folder / "stdout", folder / "stderr"}
        began = time.monotonic()
        status, out, err = trial.run(f"zlaunch check --json {words}", PROGRAMS_OBSERVER="")
        seconds = round(time.monotonic() - began, 1)
        left = {*folder.rglob("*")} - before
        if is_cached or "a check downloads nothing" not in err:
            break
        trial.run(f"zlaunch train --gpus {RANKS} {words}", PROGRAMS_OBSERVER="")
    if left:
        return Checked(command, status, f"left {', '.join(sorted(map(str, left)))}", seconds=seconds)
    try:
        found = json.loads(out)
    except ValueError:
        return Checked(command, status, " ".join(err.split()[-60:]) or f"exit {status}", seconds=seconds)
    engine, gradient = found["measured"]["engine"], found["verdict"]["largest"]["gradient"]
    row = f"{engine['model']}, stage {engine['stage']}, {engine['precision']}"
    largest = f"{gradient['distance']['distance']:.1e} of {gradient['allowed']:.1e}"
    return Checked(command, status, found["verdict"]["answer"], row, largest, seconds)


HEAD = """# Programs of other projects train the same as plain torch

`make program-parity` writes this page. Each program of [this table](programs.md) that trains with DeepSpeed
runs unchanged under [`zlaunch check`](parity.md) for three steps.

- **Gradient**: the difference that comes closest to what rounding explains, and what that is.
- **Seconds**: how long the check took, with the imports and the data of the program.

| program | way | trains | answer | gradient | seconds |
| --- | --- | --- | --- | --- | --- |
"""


def page(results: Mapping[str, Any]) -> str:
    """Write the table."""
    rows = []
    for program, way in measured():
        if (found := results.get(program.key(way))) is not None:
            cells = [f"{program.project}: {program.title}", options_of(way), found["row"], found["answer"]]
            rows.append(f"| {' | '.join([*cells, found['largest'], format(found['seconds'], '.0f')])} |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(try_each("parity", "inputs", check)))
