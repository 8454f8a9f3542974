"""Answers that outlive the program that got them: a JSON file, written whole after each."""

import hashlib
import importlib.metadata
import json
import platform
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "transformers", "deepspeed", "accelerate", "peft")

Answers = dict[str, Any]
"""What is known of one question, by part."""


class Results:
    """Answers by question. Those of other versions, and of a question asked otherwise, are put aside."""

    def __init__(self, path: Path, versions: dict[str, str], questions: dict[str, Any]) -> None:
        """Read what is there; `questions` are in the order in which they are shown."""
        self._path, self.versions = path, versions
        self._lock = threading.Lock()
        before: Answers = {"versions": versions, "rows": {}}
        if path.exists():
            before = json.loads(path.read_text())
        if before["versions"] != versions:
            path.replace(path.with_suffix(".old.json"))
            before = {"rows": {}}
        self.rows: dict[str, Answers] = {}
        for name, question in questions.items():
            known = before["rows"].get(name, {})
            self.rows[name] = known if known.get("question") == question else {"question": question}

    def lacking(self, part: str) -> list[str]:
        """Name the questions that have no such answer, or an error instead."""
        return [name for name, row in self.rows.items() if "error" in row.get(part, {"error": ""})]

    def add(self, name: str, part: str, answer: Any) -> None:
        """Keep an answer; any thread may."""
        with self._lock:
            self.rows[name][part] = answer
            written_whole(self._path, json.dumps({"versions": self.versions, "rows": self.rows}, indent=1))


def written_whole(path: Path, text: str) -> None:
    """Write a file that is whole or as it was, whenever this ends."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def versions(device: str) -> dict[str, str]:
    """Say what answers depend on; nothing heavy is imported for that."""
    return {
        "device": device_name() if device == "cuda" else "the CPU, standing in",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "source": _digest(),
    }


def device_name() -> str:
    """Ask the driver."""
    import pynvml

    pynvml.nvmlInit()
    return str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)))


def _digest() -> str:
    found = [*ROOT.glob("zlaunch/estimate/rehearsal/*.py"), *ROOT.glob("zlaunch/estimate/memory/*.py")]
    found += [ROOT / "bench" / name for name in ("gpu_cell.py", "gpu_device.py", "gpu_train.py")]
    text = b"".join(file.read_bytes() for file in sorted(found) if file.exists())
    return hashlib.sha256(text).hexdigest()[:12]
