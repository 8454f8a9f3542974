"""Print the section of CHANGELOG.md about a version: `python tools/release_notes.py 0.3.0`."""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"


def notes(text: str, version: str) -> str:
    """Return the section of a version, without its heading; raise ValueError if there is none."""
    pattern = rf"^## {re.escape(version)}(?: [^\n]*)?\n(.*?)(?=^## |\Z)"
    found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        raise ValueError(f"CHANGELOG.md has no section `## {version}`")
    return found[1].strip()


if __name__ == "__main__":
    try:
        print(notes(CHANGELOG.read_text("utf-8"), sys.argv[1]))
    except ValueError as error:
        sys.exit(f"error: {error}")
