"""Run all tests, and sum up by part: `python -m tools.run_tests`. A test that fails stops no other."""

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

from tools.report import LAST_RELEASE, MINUTES, ROOT, formatted

ARGUMENTS = ("-n", "2", "--dist", "loadfile", "--continue-on-collection-errors", "--durations=20")
"""What pytest is told. The jobs of tests wait more than they compute, so both cores take part."""

PART = "part"
"""The property of a test that names its part, see tests/conftest.py."""


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


def outcomes(report: Path) -> dict[str, Outcome]:
    """Read what pytest reports, by part."""
    parts: dict[str, Outcome] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        properties = {element.get("name"): element.get("value", "") for element in case.iter("property")}
        outcome = parts.setdefault(properties.get(PART, "no part"), Outcome())
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


def main(arguments: tuple[str, ...] = ARGUMENTS, minutes_file: Path = ROOT / MINUTES) -> int:
    """Run all tests; return how pytest ended."""
    began = time.monotonic()
    parts: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        argv = [sys.executable, "-m", "pytest", f"--junitxml={report}", *arguments]
        status = subprocess.run(argv, check=False).returncode
        if report.exists():  # not if pytest itself could not start
            parts = outcomes(report)
    print_outcomes(parts, (time.monotonic() - began) / 60)
    minutes = {name: round(outcome.seconds / 60, 1) for name, outcome in sorted(parts.items())}
    minutes_file.parent.mkdir(parents=True, exist_ok=True)
    minutes_file.write_text(json.dumps(minutes))
    if status not in (0, 1):
        print(f"pytest ended with {status}")
    return status


if __name__ == "__main__":
    sys.exit(main())
