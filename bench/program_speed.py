"""Compare steps per second under zlaunch and under bare torchrun: `python -m bench.program_speed WORK`.

WORK is the folder of `make programs`. Pairs alternate in order, and the Trainer measures itself.
"""

import re
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from tools.programs.__main__ import run_one
from tools.programs.hub import hub
from tools.programs.table import PROGRAMS

PAIRS, STEPS = 3, 800


def main() -> None:
    """Print a row for each pair, and the median ratio."""
    work = Path(sys.argv[1]).resolve()
    program = next(one for one in PROGRAMS if one.title == "run_clm")
    arguments = program.arguments.replace("--max_steps 12", f"--max_steps {STEPS}")
    program = replace(program, arguments=arguments, name="run_clm, speed")
    ratios = []
    with hub(work / "inputs/hub") as url:
        for pair in range(PAIRS):
            speeds = {}
            for side in ("bare", "zlaunch") if pair % 2 == 0 else ("zlaunch", "bare"):
                run_one(program, program.ways[0], side, work, url)
                speeds[side] = _speed(next((work / "runs").glob(f"*run-clm--speed*/{side}")))
            ratios.append(speeds["zlaunch"] / speeds["bare"])
            print(f"{speeds['bare']:.2f} {speeds['zlaunch']:.2f} {ratios[-1]:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}")


def _speed(folder: Path) -> float:
    """Return steps per second, as the Trainer writes them into the model's folder."""
    found = re.search(r'"train_steps_per_second": ([\d.]+)', (folder / "out/train_results.json").read_text())
    if found is None:
        raise SystemExit(f"{folder} has no speed; see its stderr")
    return float(found[1])


if __name__ == "__main__":
    main()
