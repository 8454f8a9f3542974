"""Measure the time of short commands, compared with importing zlaunch's libraries and with other launchers.

    .venv/bin/python bench/cold_start.py [ROUNDS]

The commands take turns, so that a slow phase of the machine affects all of them. The ratio within a round is
more reliable than the time. zlaunch is compiled to bytecode first, as after an installation.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs" / "zero3.json"
BASELINE = "import typer, pydantic"
COMMANDS: dict[str, list[str | Path]] = {
    BASELINE: [sys.executable, "-c", BASELINE],
    "zlaunch --help": [BIN / "zlaunch", "--help"],
    "zlaunch train --help": [BIN / "zlaunch", "train", "--help"],
    "zlaunch train --dry-run": [BIN / "zlaunch", "train", "--dry-run"],
    "zlaunch config validate": [BIN / "zlaunch", "config", "validate", CONFIG],
    "torchrun --help": [BIN / "torchrun", "--help"],
    "accelerate launch --help": [BIN / "accelerate", "launch", "--help"],
    "deepspeed --help": [BIN / "deepspeed", "--help"],
}


def seconds(argv: list[str | Path]) -> float:
    """Return the wall time of a process."""
    began = time.perf_counter()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main(rounds: int) -> None:
    """Print the medians of all commands."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", ROOT / "zlaunch"], check=True)
    for argv in COMMANDS.values():
        seconds(argv)
    times = [{name: seconds(argv) for name, argv in COMMANDS.items()} for _ in range(rounds)]
    print(f"{'command':<28}{'seconds':>9}{'ratio':>8}   median of {rounds} rounds")
    for name in COMMANDS:
        took = statistics.median(round_[name] for round_ in times)
        ratio = statistics.median(round_[name] / round_[BASELINE] for round_ in times)
        print(f"{name:<28}{took:>9.2f}{ratio:>8.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
