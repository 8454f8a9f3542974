"""Run the tests, and sum up by part: `python -m tools.run_tests`. A test that fails stops no other.

A test that is marked `full` is left to `--all`, which is `make test-all`; `--list-left` lists these tests.
This is the rule by which tests that train, start ranks or use hosts are marked:

- Each shape of processes is tested once: one rank, two ranks, hosts over ssh, nodes of Slurm, nodes that a
  person starts. Each launcher, and each means by which ranks start on hosts, trains once, at one stage.
- Each verdict is reached once, under one launcher, by one command.
- Each question (are the losses equal, is anything left, was it saved) is asked once wherever the answer may
  differ.
- Of a table that is compared with the real packages, one row for each mechanism is tested.

A test that repeats one of these with other values is marked, unless it takes less than two seconds.

`TOUCHED` maps files to marked tests, and of those that a change calls for, the shortest run, up to a minute
in all. The files are those that differ from `origin/main` or, where none do, from the
commit before. Where git knows neither, nothing is added.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from tools.report import LAST_RELEASE, MINUTES, ROOT, formatted

WORKERS = len(os.sched_getaffinity(0)) + 1
"""One more than there are cores: tests wait a fifth of their time, for Slurm, for ssh, for grace periods."""
ARGUMENTS = ("-n", str(WORKERS), "--dist", "loadfile", "--continue-on-collection-errors", "--durations=20")
"""What pytest is told."""

PART = "part"
NODE = "node"
"""The properties of a test that name its part and its node, see tests/conftest.py."""

TOUCHED: dict[str, tuple[str, ...]] = {
    "bench/": ("tests/test_gpu_check.py", "tests/checkpoint/test_kills.py"),
    "configs/": ("tests/jobs/test_training.py",),
    "docs/checkpoints.md": ("tests/checkpoint/test_page.py",),
    "docs/clusters.md": ("tests/cluster/test_clusters_page.py",),
    "docs/learn/": ("tests/test_learn.py",),
    "recipes/": ("tests/jobs/test_recipes.py", "tests/jobs/test_tour.py", "tests/jobs/test_training.py"),
    "zlaunch/checks/": ("tests/cluster/",),
    "zlaunch/checkpoint/": ("tests/checkpoint/", "tests/resume/"),
    "zlaunch/config/": ("tests/contract/test_late_rules.py",),
    "zlaunch/diagnosis/": ("tests/deaths/", "tests/jobs/test_preempt.py"),
    "zlaunch/estimate/": ("tests/estimate/", "tests/program/test_plan.py", "tests/test_learn.py"),
    "zlaunch/hosts/": ("tests/cluster/", "tests/jobs/test_members.py", "tests/jobs/test_op_builds.py"),
    "zlaunch/launch/asked_program.py": ("tests/program/test_ask.py",),
    "zlaunch/launch/backends/": ("tests/jobs/test_training.py", "tests/deaths/", "tests/cluster/"),
    "zlaunch/launch/measure/": ("tests/jobs/test_measured_plan.py",),
    "zlaunch/launch/monitoring/": ("tests/jobs/test_preempt.py",),
    "zlaunch/launch/no_ssh.py": ("tests/cluster/test_losses.py",),
    "zlaunch/launch/node_start.py": ("tests/jobs/test_members.py",),
    "zlaunch/launch/op_build.py": ("tests/jobs/test_op_builds.py",),
    "zlaunch/launch/ops_on_hosts.py": ("tests/cluster/test_ops.py",),
    "zlaunch/launch/rerun.py": ("tests/program/test_runs.py", "tests/jobs/test_other_python.py"),
    "zlaunch/launch/schedulers/": ("tests/cluster/", "tests/launch/schedulers/"),
    "zlaunch/launch/submit.py": ("tests/cluster/test_submit.py",),
    "zlaunch/parity/": ("tests/parity/",),
    "zlaunch/resume/": ("tests/resume/", "tests/jobs/test_preempt.py", "tests/jobs/test_retry.py"),
    "zlaunch/runs/": ("tests/program/test_runs.py",),
    "zlaunch/worker/": ("tests/jobs/test_preempt.py", "tests/deaths/"),
}
"""Where a change is → the tests marked `full` that it calls for, beside those of a test file that changes."""


@dataclass
class Outcome:
    """The result of a part."""

    seconds: float = 0.0
    tests: Counter[str] = field(default_factory=Counter)


def ending(case: ET.Element) -> str:
    """Say how a test ended."""
    names = {element.tag for element in case}
    if names & {"failure", "error"}:
        return "failed"
    if "skipped" in names:
        return "skipped"
    return "passed"


def properties(case: ET.Element) -> dict[str, str]:
    """Read the properties of a test."""
    return {one.get("name", ""): one.get("value", "") for one in case.iter("property")}


def outcomes(cases: Iterable[ET.Element]) -> dict[str, Outcome]:
    """Sum up what pytest reports, by part."""
    parts: dict[str, Outcome] = {}
    for case in cases:
        outcome = parts.setdefault(properties(case).get(PART, "no part"), Outcome())
        outcome.seconds += float(case.get("time", 0))
        outcome.tests[ending(case)] += 1
    return parts


def print_outcomes(parts: dict[str, Outcome], minutes: float) -> None:
    """Print a table of the parts, with the minutes of the last release beside those of this run."""
    last = json.loads(LAST_RELEASE.read_text())
    print(f"\n{'part':16}{'passed':>8}{'failed':>8}{'skipped':>9}{'minutes':>9}{last['release']:>9}")
    total = Counter[str]()
    for name, outcome in sorted(parts.items()):
        tests = outcome.tests
        numbers = f"{tests['passed']:8}{tests['failed']:8}{tests['skipped']:9}{outcome.seconds / 60:9.1f}"
        print(f"{name:16}{numbers}{formatted(last['test minutes'].get(name)):>9}")
        total += tests
    counts = ", ".join(f"{total[how]} {how}" for how in ("passed", "failed", "skipped"))
    print(f"{counts} in {minutes:.1f} minutes")


def changed_files() -> list[str]:
    """Name the files that differ from `origin/main`, or from the commit before; none if both are unknown."""
    found = set(_git("ls-files", "--modified", "--others", "--exclude-standard"))
    for base in (_git("merge-base", "origin/main", "HEAD"), _git("rev-parse", "--verify", "HEAD~1")):
        if base and (changed := _git("diff", "--name-only", base[0], "HEAD")):
            return sorted(found.union(changed))
    return sorted(found)


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def called_for(files: Iterable[str]) -> list[str]:
    """Say which tests these files call for."""
    found = {file for file in files if file.startswith("tests/")}
    for file in files:
        for prefix, tests in TOUCHED.items():
            if file.startswith(prefix):
                found.update(tests)
    return sorted(found)


def list_left(also: Sequence[str]) -> int:
    """Print the tests that are left to `--all`, with their seconds."""
    from tests.distribution import SECONDS, left_out

    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "full"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    left = left_out((line for line in done.stdout.splitlines() if "::" in line), tuple(also))
    for node in reversed(left):
        print(f"{SECONDS.get(node, 0):6.1f}  {node}")
    print(f"{len(left)} tests, {sum(SECONDS.get(node, 0) for node in left) / 60:.1f} minutes of a worker")
    return 0


def record(cases: Iterable[ET.Element]) -> None:
    """Write down how long tests took; keep what is known of others whose files still exist."""
    from tests.distribution import DURATIONS, RECORDED_FROM, SECONDS

    known = {node: seconds for node, seconds in SECONDS.items() if (ROOT / node.partition("::")[0]).exists()}
    for case in cases:
        node, seconds = properties(case).get(NODE, ""), round(float(case.get("time", 0)), 1)
        known.pop(node, None)
        if seconds >= RECORDED_FROM:
            known[node] = seconds
    DURATIONS.write_text(json.dumps(known, indent=0, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")


def run(arguments: Sequence[str], minutes_file: Path = ROOT / MINUTES, *, is_recorded: bool = False) -> int:
    """Run tests; return how pytest ended."""
    began = time.monotonic()
    cases: list[ET.Element] = []
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        argv = [sys.executable, "-m", "pytest", f"--junitxml={report}", *arguments]
        status = subprocess.run(argv, check=False).returncode
        if report.exists():  # not if pytest itself could not start
            cases = [*ET.parse(report).iter("testcase")]  # noqa: S314 - pytest wrote it
    parts = outcomes(cases)
    print_outcomes(parts, (time.monotonic() - began) / 60)
    minutes = {name: round(outcome.seconds / 60, 1) for name, outcome in sorted(parts.items())}
    minutes_file.parent.mkdir(parents=True, exist_ok=True)
    minutes_file.write_text(json.dumps(minutes))
    if status not in (0, 1):
        print(f"pytest ended with {status}")
    if is_recorded:
        record(cases)
    return status


def main() -> int:
    """Run the tests that are asked for."""
    parser = argparse.ArgumentParser(description="Run the tests, and sum up by part.")
    parser.add_argument("--all", action="store_true", help="run those marked `full`, too")
    parser.add_argument("--list-left", action="store_true", help="only list the tests that are left out")
    parser.add_argument("--record", action="store_true", help="write down how long each test takes")
    args, more = parser.parse_known_args()
    if args.all:
        return run((*ARGUMENTS, *more), is_recorded=args.record)
    also = called_for(changed_files())
    if args.list_left:
        return list_left(also)
    short = ("--short", *(f"--also={path}" for path in also))
    return run((*ARGUMENTS, *short, *more), is_recorded=args.record)


if __name__ == "__main__":
    sys.exit(main())
