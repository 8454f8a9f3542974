"""Run all tests, and sum up by part: `python -m tools.run_tests`. A test that fails stops no other."""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

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
    return "failed" if names & {"failure", "error"} else "skipped" if "skipped" in names else "passed"


def outcomes(report: Path) -> dict[str, Outcome]:
    """Read what pytest reports, by part."""
    found: dict[str, Outcome] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        named = (one.get("value", "") for one in case.iter("property") if one.get("name") == PART)
        outcome = found.setdefault(next(named, "no part"), Outcome())
        outcome.seconds += float(case.get("time", 0))
        outcome.tests[ending(case)] += 1
    return found


def main(arguments: tuple[str, ...] = ARGUMENTS) -> int:
    """Run all tests; return how pytest ended."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        argv = [sys.executable, "-m", "pytest", f"--junitxml={report}", *arguments]
        status = subprocess.run(argv, check=False).returncode
        found = outcomes(report) if report.exists() else {}  # not if pytest itself could not start
    print(f"\n{'part':16}{'passed':>8}{'failed':>8}{'skipped':>9}{'minutes':>9}")
    for name, outcome in sorted(found.items()):
        numbers = "".join(
            f"{outcome.tests[how]:{width}}" for how, width in (("passed", 8), ("failed", 8), ("skipped", 9))
        )
        print(f"{name:16}{numbers}{outcome.seconds / 60:9.1f}")
    total = sum((outcome.tests for outcome in found.values()), Counter[str]())
    minutes = (time.monotonic() - began) / 60
    print(
        ", ".join(f"{total[how]} {how}" for how in ("passed", "failed", "skipped")),
        f"in {minutes:.1f} minutes",
    )
    if status not in (0, 1):
        print(f"pytest ended with {status}")
    return status


if __name__ == "__main__":
    sys.exit(main())
