"""Where the jobs of `make gpu-jobs` run, and how they are started and asked about."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu_cells import MODELS, small
from bench.gpu_device import device_use
from bench.gpu_results import ROOT

SCRIPT = ROOT / "bench" / "gpu_train.py"
ZLAUNCH = (sys.executable, "-m", "zlaunch")
JOB_SECONDS = {"cuda": 200, "cpu": 900}
"""How long one job may take; on a CPU it compiles first."""

Answer = dict[str, Any]


class Unexpected(Exception):
    """A job did not end as it must."""


@dataclass(frozen=True)
class Bed:
    """Where jobs run: the device, and a folder for models and runs."""

    device: str
    folder: Path

    def model(self, name: str) -> Path:
        """Write a model's directory; a small one for the CPU."""
        folder = self.folder / f"{name}-{self.device}"
        folder.mkdir(exist_ok=True)
        config = MODELS[name] if self.device == "cuda" else small(MODELS[name])
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def argv(self, run: Path, flags: tuple[str, ...], arguments: tuple[str, ...]) -> list[str]:
        """Write a command line of zlaunch; of arguments that are given twice the later counts."""
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
    ) -> Answer:
        """Run a job to its end; return what `zlaunch runs show` knows of the last attempt."""
        run = Path(tempfile.mkdtemp(prefix="run-", dir=self.folder)) / "run"
        done = subprocess.run(
            self.argv(run, flags, arguments),
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=self.patience,
            text=True,
            errors="replace",
            check=False,
        )
        attempts = sorted(run.parent.glob("run*"))
        if not attempts:
            raise Unexpected(f"nothing was started: {last_of(done.stdout)}")
        return {**self.shown(attempts[-1]), "said": done.stdout, "attempts": [one.name for one in attempts]}

    def shown(self, run: Path) -> Answer:
        """Ask zlaunch about a run."""
        argv = [*ZLAUNCH, "runs", "show", str(run), "--json"]
        found: Answer = json.loads(subprocess.run(argv, capture_output=True, check=True).stdout)
        return found

    @property
    def patience(self) -> float:
        """How long one job may take; seconds."""
        return JOB_SECONDS[self.device]

    def in_use(self) -> int:
        """Say how much of the device is in use; bytes."""
        return device_use() if self.device == "cuda" else 0


def last_of(text: str) -> str:
    """Take the last lines of what a program said."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-400:]


def ends(found: Answer, how: str, code: str | None = None) -> Answer:
    """Hold a job to its ending, and keep what is shown of it."""
    ending = found["ending"] or {}
    verdict = (ending.get("verdict") or {}).get("code")
    if (ending.get("how"), verdict) != (how, code):
        raise Unexpected(f"{ending.get('how')}, {verdict}: {last_of(found['said'])}")
    pools = {pool["name"]: pool for pool in found["memory"]["pools"] if pool["measured"]}
    job = found["job"]
    return {
        "ended": f"{how}{f', {code}' if code else ''}; {found['seconds']:.0f} s",
        "memory": {name: [pool["predicted"], pool["measured"]] for name, pool in pools.items()},
        "facts": f"stage {found['stage']}, {job['accelerator']}, micro-batch {job['micro_batch']}",
    }
