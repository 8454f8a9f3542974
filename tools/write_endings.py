"""Write docs/endings.md from the signatures: `python -m tools.write_endings`."""

from collections.abc import Iterator
from pathlib import Path

from zlaunch.diagnosis import ROOMS, signatures_in
from zlaunch.diagnosis.signature import Signature

PAGE = Path(__file__).parent.parent / "docs" / "endings.md"

HEAD = """# How a run can end

This page is written by `make docs` from the signatures themselves. `zlaunch runs why ID` and
`how-it-ended.json` name one of these codes. It is about the rank with which it began: a rank that lost
its connection, waited in vain or was told to stop comes after one that failed of itself.
"""


def page() -> str:
    """Write the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield HEAD.rstrip("\n")
    for room in ROOMS:
        title = (room.__doc__ or "").strip().splitlines()[0].rstrip(".")
        yield f"\n## {title}\n\n| code | what it is | what tells it |\n|---|---|---|"
        yield from map(_row, signatures_in(room))


def _row(one: Signature) -> str:
    return f"| `{one.code}` | {_cell(one.what)} | {_cell(one.tell)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
