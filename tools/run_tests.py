"""Run all tests in parts, and print a summary: `python -m tools.run_tests`."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

PARTS = {
    "fast": ("-m", "not job and not hosts"),
    "deaths": ("--dist", "worksteal", "-m", "job", "tests/deaths"),
    # Tests of one file share slow fixtures, so one worker runs the whole file.
    "jobs and hosts": ("--dist", "loadfile", "-m", "job or hosts", "--ignore", "tests/deaths"),
}
"""Part → arguments of pytest. Training jobs wait more than they compute, so two workers share the cores."""


@dataclass
class Outcome:
    """The result of a part."""

    status: int
    seconds: float
    passed: int = 0
    failed: int = 0
    skipped: int = 0


def run(arguments: tuple[str, ...], report: Path) -> Outcome:
    """Run one part in its own pytest."""
    began = time.monotonic()
    argv = [sys.executable, "-m", "pytest", "-n", "2", f"--junitxml={report}", *arguments]
    status = subprocess.run(argv, check=False).returncode
    outcome = Outcome(status, time.monotonic() - began)
    if report.exists():  # not if pytest itself could not start
        suite = ET.parse(report).getroot().find("testsuite")  # noqa: S314 - pytest wrote it
        assert suite is not None
        total, failures, errors, outcome.skipped = (
            int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")
        )
        outcome.failed = failures + errors
        outcome.passed = total - outcome.failed - outcome.skipped
    return outcome


def main(parts: Mapping[str, tuple[str, ...]] = PARTS) -> int:
    """Run all parts, even if one fails; return 1 if any of them failed."""
    with tempfile.TemporaryDirectory() as directory:
        outcomes = {
            name: run(arguments, Path(directory) / f"{number}.xml")
            for number, (name, arguments) in enumerate(parts.items())
        }
    print(f"\n{'part':16}{'passed':>8}{'failed':>8}{'skipped':>9}{'minutes':>9}")
    for name, outcome in outcomes.items():
        ended = "" if outcome.status in (0, 1) else f"   pytest exited with {outcome.status}"
        numbers = f"{outcome.passed:8}{outcome.failed:8}{outcome.skipped:9}{outcome.seconds / 60:9.1f}"
        print(f"{name:16}{numbers}{ended}")
    passed, failed, skipped = (
        sum(getattr(outcome, name) for outcome in outcomes.values())
        for name in ("passed", "failed", "skipped")
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(any(outcome.status for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
