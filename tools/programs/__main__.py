"""`python -m tools.programs WORK`: run the programs, and write docs/programs.md."""

import argparse
import json
import re
from dataclasses import asdict
from pathlib import Path

from tools.programs.gather import gather
from tools.programs.hub import hub
from tools.programs.program import Program, Way
from tools.programs.report import SIDES, write
from tools.programs.run import Places, Result, run
from tools.programs.table import PROGRAMS


def main() -> None:
    """Run what was asked for, and write the page when every program has results."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.programs", description="Run programs of other projects."
    )
    parser.add_argument("work", type=Path, help="folder for environments, sources and runs")
    parser.add_argument("--only", default="", help="part of the name of a program, such as `TRL: dpo`")
    parser.add_argument("--side", choices=SIDES, help="only under the bare launcher, or only under zlaunch")
    parser.add_argument("--missing", action="store_true", help="only what has no result")
    asked = parser.parse_args()
    work = asked.work.resolve()
    gather(work)
    file = work / "results.json"
    with hub(work / "inputs/hub") as url:
        for program in PROGRAMS:
            for way in program.ways:
                if asked.only not in program.key(way):
                    continue
                for side in SIDES:
                    key = f"{program.key(way)} {side}"
                    if asked.side not in (side, None) or (asked.missing and key in read(file)):
                        continue
                    result = run_one(program, way, side, work, url)
                    results = {**read(file), key: result}
                    file.write_text(
                        json.dumps({name: asdict(one) for name, one in results.items()}, indent=1)
                    )
                    print(f"{key:75} exit {result.status}, {result.seconds:.0f} s, {result.end}", flush=True)
    write(read(file), work)


def read(file: Path) -> dict[str, Result]:
    """Return the results of earlier runs."""
    if not file.exists():
        return {}
    return {key: Result(**fields) for key, fields in json.loads(file.read_text()).items()}


def run_one(program: Program, way: Way, side: str, work: Path, url: str) -> Result:
    """Run a program in one way."""
    folder = work / "runs" / re.sub(r"[^0-9a-zA-Z]", "-", program.key(way)) / side
    inputs = work / "inputs"
    places = Places(url, inputs / "data", inputs / "ds", inputs / "hub/models", folder)
    source = work / "checkouts" / program.source.folder
    python = work / f"venv-{program.needs}/bin/python"
    return run(program, way, source=source, python=python, places=places, is_zlaunch=side == "zlaunch")


if __name__ == "__main__":
    main()
