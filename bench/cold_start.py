"""CPU time of `--help` and of short commands: zlaunch beside its own two libraries and the other launchers.

    .venv/bin/python bench/cold_start.py [ROUNDS]
    .venv/bin/python bench/cold_start.py --imports

Counts user and system time of the whole process, which other work on the machine changes less than wall time.
The commands take turns, and the result is the median of the ratios of each round. zlaunch is compiled
first, as it is after an installation.

With --imports, lists for each command of zlaunch the modules that it imports without a call of any function.
They may have constants, types and classes that the command needs, or may not be needed.
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
    "zlaunch doctor": [BIN / "zlaunch", "doctor"],
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


UNCALLED = """
import sys
called = set()
sys.setprofile(lambda frame, event, _: called.add(frame.f_code) if event == "call" else None)
from zlaunch.cli import main
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
ran = {code.co_filename for code in called if code.co_name != "<module>"}
names = sorted(name for name in sys.modules if name.startswith("zlaunch."))
uncalled = [name for name in names if sys.modules[name].__file__ not in ran]
print(len(names), *uncalled, file=sys.stderr)
"""


def imports() -> None:
    """Print the modules without a call, package by package."""
    for name, (program, *words) in COMMANDS.items():
        if Path(program).name != "zlaunch":
            continue
        argv = [sys.executable, "-c", UNCALLED, *words]
        done = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
        count, *uncalled = done.stderr.splitlines()[-1].split()
        print(f"{name}: imports {count} modules, {len(uncalled)} of them without a call")
        packages: dict[str, list[str]] = {}
        for module in uncalled:
            _, package, *rest = module.split(".")
            packages.setdefault(package, []).append(".".join(rest))
        for package, modules in packages.items():
            print(f"  {package:<12}{' '.join(modules)}")


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
    if "--imports" in sys.argv:
        imports()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
