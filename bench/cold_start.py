"""CPU time of `--help` and of short commands: zlaunch beside its own two libraries and the other launchers.

    .venv/bin/python bench/cold_start.py [ROUNDS]

Counts user and system time of the whole process, which other work on the machine changes less than wall time.
The commands take turns, and the result is the median of the ratios of each round. zlaunch is compiled
first, as it is after an installation.
"""

import resource
import statistics
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs" / "zero3.json"
BASELINE = "import typer, pydantic"
COMMANDS: dict[str, list[str | Path]] = {
    BASELINE: [sys.executable, "-c", BASELINE],
    "zlaunch --help": [BIN / "zlaunch", "--help"],
    "zlaunch config --help": [BIN / "zlaunch", "config", "--help"],
    "zlaunch train --help": [BIN / "zlaunch", "train", "--help"],
    "zlaunch train --dry-run": [BIN / "zlaunch", "train", "--dry-run"],
    "zlaunch config validate": [BIN / "zlaunch", "config", "validate", CONFIG],
    "zlaunch config schema": [BIN / "zlaunch", "config", "schema"],
    "zlaunch runs list": [BIN / "zlaunch", "runs", "list"],
    "torchrun --help": [BIN / "torchrun", "--help"],
    "accelerate launch --help": [BIN / "accelerate", "launch", "--help"],
    "deepspeed --help": [BIN / "deepspeed", "--help"],
}


def cpu_seconds(argv: list[str | Path]) -> float:
    """Run a process and return the CPU time that it and its children took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int) -> None:
    """Measure in turn and print medians."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", ROOT / "zlaunch"], check=True)
    for argv in COMMANDS.values():
        cpu_seconds(argv)
    times = [{name: cpu_seconds(argv) for name, argv in COMMANDS.items()} for _ in range(rounds)]
    print(f"{'command':<28}{'CPU, s':>9}{'ratio':>8}   median of {rounds} rounds")
    for name in COMMANDS:
        took = statistics.median(round_[name] for round_ in times)
        ratio = statistics.median(round_[name] / round_[BASELINE] for round_ in times)
        print(f"{name:<28}{took:>9.2f}{ratio:>8.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
