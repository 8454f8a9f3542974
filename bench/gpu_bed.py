"""Start the jobs of `make gpu-jobs`, and read their results."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.gpu_cells import MODELS, small
from bench.gpu_device import device_use
from bench.gpu_results import ROOT, Row

SCRIPT = ROOT / "bench" / "gpu_train.py"
ZLAUNCH = (sys.executable, "-m", "zlaunch")
JOB_SECONDS = {"cuda": 200, "cpu": 900}
"""Seconds after which a job is killed; on a CPU it compiles native ops first."""


class Unexpected(Exception):
    """A job did not end as expected."""


@dataclass(frozen=True)
class Bed:
    """The device for jobs, and a folder for models and runs."""

    device: str
    folder: Path

    def model(self, name: str) -> Path:
        """Write a model's directory; a tiny model for the CPU."""
        folder = self.folder / f"{name}-{self.device}"
        folder.mkdir(exist_ok=True)
        config = MODELS[name] if self.device == "cuda" else small(MODELS[name])
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def argv(self, run: Path, flags: tuple[str, ...], arguments: tuple[str, ...]) -> list[str]:
        """Return a command line of zlaunch; `arguments` override the defaults."""
        length, batch = ("1024", "8") if self.device == "cuda" else ("32", "2")
        sizes = ("--sequence_length", length, "--per_device_train_batch_size", batch)
        words = ("--model", str(self.model("0.1B")), *sizes, *arguments)
        return [
            *ZLAUNCH,
            *("train", str(SCRIPT), "--gpus", "1", "--run-dir", str(run), *flags),
            *("--", "--output_dir", str(run / "out"), *words),
        ]

    def train(
        self, flags: tuple[str, ...], arguments: tuple[str, ...] = (), environment: Mapping[str, str] = {}
    ) -> Row:
        """Run a job; return the output of `zlaunch runs show --json` for the last attempt, with its log."""
        run = Path(tempfile.mkdtemp(prefix="run-", dir=self.folder)) / "run"
        done = subprocess.run(
            self.argv(run, flags, arguments),
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=self.timeout,
            text=True,
            errors="replace",
            check=False,
        )
        attempts = sorted(run.parent.glob("run*"))
        if not attempts:
            raise Unexpected(f"no run was started: {last_lines(done.stdout)}")
        return {
            **self.shown(attempts[-1]),
            "output": done.stdout,
            "attempts": [path.name for path in attempts],
        }

    def shown(self, run: Path) -> Row:
        """Return the output of `zlaunch runs show --json`."""
        argv = [*ZLAUNCH, "runs", "show", str(run), "--json"]
        found: Row = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
        return found

    @property
    def timeout(self) -> float:
        """Seconds after which a job is killed."""
        return JOB_SECONDS[self.device]

    def in_use(self) -> int:
        """Return the memory of the device that is in use; bytes."""
        return device_use() if self.device == "cuda" else 0


def last_lines(text: str) -> str:
    """Return the last lines of a program's output."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-400:]


def expect(found: Row, how: str, code: str | None = None) -> Row:
    """Return the row of a job; raise Unexpected if it did not end as expected."""
    ending = found["ending"] or {}
    verdict = (ending.get("verdict") or {}).get("code")
    if (ending.get("how"), verdict) != (how, code):
        raise Unexpected(f"{ending.get('how')}, {verdict}: {last_lines(found['output'])}")
    pools = {pool["name"]: pool for pool in found["memory"]["pools"] if pool["measured"]}
    job = found["job"]
    return {
        "ended": f"{how}{f', {code}' if code else ''}; {found['seconds']:.0f} s",
        "memory": {name: [pool["predicted"], pool["measured"]] for name, pool in pools.items()},
        "facts": f"stage {found['stage']}, {job['accelerator']}, micro-batch {job['micro_batch']}",
    }
