"""Check that programs of other projects train the same as plain torch: `make program-parity`.

`python -m tools.programs.parity WORK` runs `zlaunch check` on each program that trains with DeepSpeed, as
`make programs` starts it, and writes docs/program-parity.md. A check downloads nothing: `zlaunch train` fills
the cache of the hub for programs that need it.
"""

import argparse
import json
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.programs.gather import gather
from tools.programs.hub import hub
from tools.programs.memory import measured, read
from tools.programs.program import Program, Way
from tools.programs.run import RANKS, Places, environment_of, run_words, set_up, words_of

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


def check(program: Program, way: Way, work: Path, url: str) -> Checked:
    """Check a program in a fresh copy of its folder."""
    folder = work / "parity" / re.sub(r"[^0-9a-zA-Z]", "-", program.key(way))
    inputs = work / "inputs"
    places = Places(url, inputs / "data", inputs / "ds", inputs / "hub/models", folder)
    source = work / "checkouts" / program.source.folder
    python = work / f"venv-{program.needs}/bin/python"
    environment = environment_of(program, source, python, url) | {"PROGRAMS_OBSERVER": ""}
    target = program.script.rpartition("/")[2]
    if program.script.startswith("-m "):
        target = program.script
    handed = way.bare if way.zlaunch is None else way.zlaunch
    words = f"{way.options} {target} -- {program.arguments} {handed}"
    command = " ".join(f"zlaunch check {words}".split())
    for is_cached in (False, True):
        set_up(program, source, places)
        before = {*folder.rglob("*"), folder / "stdout", folder / "stderr"}
        began = time.monotonic()
        status, out, err = run_words(words_of(f"zlaunch check --json {words}", places), folder, environment)
        seconds = round(time.monotonic() - began, 1)
        left = {*folder.rglob("*")} - before
        if is_cached or "a check downloads nothing" not in err:
            break
        run_words(words_of(f"zlaunch train --gpus {RANKS} {words}", places), folder, environment)
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
            options = f"`{way.options.removesuffix(' --precision fp32')}`" if way.options else way.label
            cells = [f"{program.project}: {program.title}", options, found["row"], found["answer"]]
            rows.append(f"| {' | '.join([*cells, found['largest'], format(found['seconds'], '.0f')])} |")
    return HEAD + "\n".join(rows) + "\n"


def main() -> None:
    """Check what was asked for, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.programs.parity")
    parser.add_argument("work", type=Path, help="folder for environments, sources and runs")
    parser.add_argument("--only", default="", help="part of the name of a program, such as `TRL: dpo`")
    parser.add_argument("--gathered", action="store_true", help="fetch nothing")
    asked = parser.parse_args()
    work = asked.work.resolve()
    if not asked.gathered:
        gather(work)
    file = work / "parity.json"
    with hub(work / "inputs/hub") as url:
        for program, way in measured():
            if asked.only not in program.key(way):
                continue
            result = check(program, way, work, url)
            file.write_text(json.dumps({**read(file), program.key(way): asdict(result)}, indent=1))
            shown = f"{result.answer}; {result.row}; gradient {result.largest}"
            print(f"{program.key(way)}: {result.seconds:.0f} s, exit {result.status}: {shown}", flush=True)
    PAGE.write_text(page(read(file)))


if __name__ == "__main__":
    main()
