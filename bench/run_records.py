"""Measure how long old runs and large logs take to read: `python -m bench.run_records`.

Seconds are CPU time, the least of several runs. Ratios are relative to `zlaunch --help` in the same run: the
start of Python and of the program.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 2000
LOG_BYTES = 2_000_000_000
REPEATS = 5

OLD_RUN = Path(__file__).parents[1] / "tests" / "rundir" / "old_runs" / "failed"


def seconds(argv: list[str], folder: Path) -> float:
    """Run a command several times; return the least CPU time."""
    times = []
    for _ in range(REPEATS):
        before = os.times()
        subprocess.run(argv, cwd=folder, capture_output=True, check=True)
        after = os.times()
        times.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    return min(times)


def main() -> None:
    """Make runs and a log without line breaks, and print the table."""
    zlaunch = [sys.executable, "-m", "zlaunch"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = folder / "runs" / "20260101-000000-first"
        shutil.copytree(OLD_RUN, first)
        job = json.loads((first / "job.json").read_text())
        for number in range(1, RUNS):
            copy = folder / "runs" / f"20260101-{number:06}-train"
            shutil.copytree(OLD_RUN, copy)
            (copy / "job.json").write_text(json.dumps({**job, "started": job["started"] + number}))
        log = first / "logs" / "rank-0.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("wb") as opened:
            block = b"x" * (1 << 20)
            for _ in range(LOG_BYTES >> 20):
                opened.write(block)
            opened.write(b"\nlast\n")
        rows = {
            "`zlaunch --help`": [*zlaunch, "--help"],
            f"`zlaunch runs list`, {RUNS} runs": [*zlaunch, "runs", "list"],
            f"`zlaunch runs list --limit {RUNS}`": [*zlaunch, "runs", "list", "--limit", str(RUNS)],
            f"`zlaunch runs logs --tail 1`, {LOG_BYTES // 10**9} GB": [
                *zlaunch,
                "runs",
                "logs",
                first.name,
                "--tail",
                "1",
            ],
            f"`tail -n 1`, {LOG_BYTES // 10**9} GB": ["tail", "-n", "1", str(log)],
        }
        base = 0.0
        print("| command | s | ratio |\n|---|---|---|")
        for title, argv in rows.items():
            took = seconds(argv, folder)
            base = base or took
            print(f"| {title} | {took:.2f} | {took / base:.1f} |", flush=True)


if __name__ == "__main__":
    main()
