"""The page about deaths: what the table says, and how long it took until nothing was left."""

import fcntl
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.deaths.deaths import LAUNCHERS, TABLE, Death
from tests.running import ROOT

PAGE = ROOT / "docs" / "deaths.md"
RECORDING = "ZLAUNCH_RECORD"
HEAD = """# How runs die, and what is left

This page is written by `make deaths`, which lets every one of these deaths really happen to two ranks on this
machine: real signals, a real control group, a real full disk, a real compiler error. After each death the test
counts the processes of the job, wherever they went, with a program that the script started in a session of its
own, and files like those that DeepSpeed leaves in shared memory. Seconds are those from the death until nothing
was left and zlaunch had ended, under torchrun and under deepspeed; a stall begins when it is noticed; a dash:
torchrun has no such process. `tests/deaths/` holds every cell but the seconds, of which no more than 10 are
allowed, and 20 where two jobs die at a time; there, two runs in one folder die without touching each other, too.

"""
COLUMNS = (
    "death",
    "exit status",
    "left behind",
    "how",
    "verdict",
    *(f"seconds, {name}" for name in LAUNCHERS),
)

Seconds = Mapping[tuple[str, str], str]
"""Death and launcher → how long it took."""


def page(seconds: Seconds) -> str:
    """Write the page."""
    return (
        HEAD
        + "\n".join(
            [_row(COLUMNS), _row(["---"] * len(COLUMNS)), *(_cells(death, seconds) for death in TABLE)]
        )
        + "\n"
    )


def _cells(death: Death, seconds: Seconds) -> str:
    verdict = f"`{death.verdict}`" if death.verdict else "-"
    took = [seconds.get((death.name, name), "?") if name in death.launchers else "-" for name in LAUNCHERS]
    return _row([death.name, str(death.status), "0", death.how, verdict, *took])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def seconds_in(text: str) -> Seconds:
    """Read the seconds back."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {
        (row[0], launcher): cell
        for row in rows
        if len(row) == len(COLUMNS)
        for launcher, cell in zip(LAUNCHERS, row[-len(LAUNCHERS) :], strict=True)
    }


def record(death: Death, launcher: str, seconds: float) -> None:
    """Write what was measured into the page that is being recorded, if one is."""
    if not os.environ.get(RECORDING):
        return
    file = Path(os.environ[RECORDING])
    with file.open("a+") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        written.seek(0)
        known = {**seconds_in(written.read()), (death.name, launcher): f"{seconds:.1f}"}
        written.truncate(0)
        written.write(page(known))
