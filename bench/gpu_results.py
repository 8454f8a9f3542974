"""Results that survive an interruption: a JSON file, rewritten after each result, and Markdown tables."""

import hashlib
import importlib.metadata
import json
import platform
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "deepspeed", "accelerate", "peft")

Row = dict[str, Any]
"""The results of one cell or job by name, and what was run."""


class Results:
    """Results by cell or job. Those of other versions, or of a changed cell, are set aside."""

    def __init__(self, path: Path, versions: dict[str, str], inputs: dict[str, Any]) -> None:
        """Load existing results; `inputs` are what is run, by name and in the order of the table."""
        self._path, self.versions = path, versions
        self._lock = threading.Lock()
        before: Row = {"versions": versions, "rows": {}}
        if path.exists():
            before = json.loads(path.read_text())
        if before["versions"] != versions:
            path.replace(path.with_suffix(".old.json"))
            before = {"rows": {}}
        self.rows: dict[str, Row] = {}
        for name, value in inputs.items():
            row = before["rows"].get(name, {})
            self.rows[name] = row if row.get("input") == value else {"input": value}

    def missing(self, kind: str) -> list[str]:
        """Return the names without a result of this kind, or with an error."""
        return [name for name, row in self.rows.items() if "error" in row.get(kind, {"error": ""})]

    def add(self, name: str, kind: str, result: Row) -> None:
        """Save a result; thread-safe."""
        with self._lock:
            self.rows[name][kind] = result
            write_atomically(self._path, json.dumps({"versions": self.versions, "rows": self.rows}, indent=1))

    def page(self, title: str, note: str, *sections: Iterable[str]) -> str:
        """Format a Markdown page with the versions of all packages."""
        device, *others = self.versions.items()
        versions = ", ".join(f"{name} {version}" for name, version in others)
        lines = [f"# {title}: {device[1]}", "", f"{versions}. {note}"]
        for section in sections:
            lines += ["", *section]
        return "\n".join(lines) + "\n"


def table_head(*names: str) -> tuple[str, str]:
    """Format the first two lines of a Markdown table."""
    return table_row(names), "|---" * len(names) + "|"


def table_row(cells: Iterable[str]) -> str:
    """Format a line of a Markdown table."""
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in cells) + " |"


def write_atomically(path: Path, text: str) -> None:
    """Write a file that stays complete if the process is killed."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text)
    partial.replace(path)


def versions(device: str) -> dict[str, str]:
    """Return what the results depend on, the device first, without importing heavy packages."""
    return {
        "device": device_name() if device == "cuda" else "the CPU, standing in",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "source": _digest(),
    }


def versions_measured(file: Path) -> dict[str, str]:
    """Return what the results in a file depend on; exit if other packages are installed here."""
    measured: dict[str, str] = json.loads(file.read_text())["versions"]
    here = {name: importlib.metadata.version(name) for name in PACKAGES}
    if other := [f"{name} {measured[name]}" for name in PACKAGES if measured[name] != here[name]]:
        raise SystemExit(f"the results were measured with {', '.join(other)}: install the same to predict")
    return measured


def device_name() -> str:
    """Return the name of the first GPU."""
    import pynvml

    pynvml.nvmlInit()
    return str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)))


def _digest() -> str:
    files = [*ROOT.glob("zlaunch/estimate/rehearsal/*.py"), *ROOT.glob("zlaunch/estimate/memory/*.py")]
    files += [ROOT / "bench" / name for name in ("gpu_cell.py", "gpu_device.py", "gpu_train.py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:12]
