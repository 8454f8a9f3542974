"""Run `zlaunch check --matrix`, and write the table into docs/parity.md: `python -m tools.write_parity`."""

import json
import subprocess
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path

from zlaunch.cli.views.check_matrix import answer, reasons, rows
from zlaunch.hosts.adapters import adapter_of
from zlaunch.parity.matrix import CheckedCell

PAGE = Path(__file__).parent.parent / "docs" / "parity.md"
BEGIN, END = "<!-- begin: python -m tools.write_parity -->\n", "<!-- end -->\n"
MODEL = "meta-llama/Llama-3.2-1B"
"""A model with tied embeddings."""


def table(done: tuple[CheckedCell, ...]) -> str:
    """Write the matrix in Markdown."""
    head, *body = rows(done)
    lines = [head, ["---"] * len(head), *body]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    for word, why, places in reasons(done):
        text += f"\n- **{word}**: {why}  \n  {places}\n"
    return text


def section(done: tuple[CheckedCell, ...]) -> str:
    """Write what was checked, and with which releases."""
    packages = ", ".join(f"{name} {version(name.lower())}" for name in ("DeepSpeed", "torch", "transformers"))
    return (
        f"`zlaunch check {MODEL} --matrix` with {packages}, {date.today():%d %B %Y}:\n"
        f"{answer(done, len(done))}.\n\n{table(done)}"
    )


def main() -> None:
    """Check, and replace what is between the marks."""
    argv = [sys.executable, "-m", "zlaunch", "check", MODEL, "--matrix", "--json", *sys.argv[1:]]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False).stdout
    cells: tuple[CheckedCell, ...] = adapter_of(tuple[CheckedCell, ...]).validate_python(json.loads(done))
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}{section(cells)}{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
