"""Forecasts of GPU memory beside what one CUDA device measures: `python -m bench.gpu_check OUT`.

Every cell is rehearsed on the host, and trained by a fresh process on the device, one at a time; neither
knows of the other. What that saves is resumed by one more. OUT/gpu-check.json and OUT/gpu-check.md are
written after each answer. Started again, it goes on with what has none yet. `--device cpu` trains small
models instead, to rehearse all of this.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from bench.gpu_cells import CELLS, standing_in
from bench.gpu_device import DEVICES
from bench.gpu_results import Results, versions, written_whole
from bench.gpu_table import foretold, is_met, table

TASK_SECONDS = 150
"""How long one process may take on the device."""

Process = subprocess.Popen[str]


class Check:
    """The cells, what is known of them, and when to stop."""

    def __init__(self, device: str, out: Path, seconds: float, first: int) -> None:
        """Go on with what OUT holds."""
        self.device, self._deadline = device, time.monotonic() + seconds
        workloads = [standing_in(cell) if device == "cpu" else cell.workload() for cell in CELLS]
        questions = {str(cell): workload for cell, workload in zip(CELLS, workloads, strict=True)}
        self.results = Results(
            out / "gpu-check.json", versions(device), dict(list(questions.items())[:first])
        )
        self._page = out / "gpu-check.md"
        pools = DEVICES[device].pools
        self._quantities = (*pools, "process") if "reserved" in pools else tuple(pools)

    def seconds_left(self) -> float:
        """Say how long it may still take."""
        return self._deadline - time.monotonic()

    def show(self) -> str:
        """Write the table."""
        written_whole(self._page, text := table(self.results, self._quantities))
        return text

    def is_met(self) -> bool:
        """Say whether every cell could be compared, and the forecasts are as good as they are to be."""
        return is_met(self.results, self._quantities)

    def foretell(self, name: str) -> None:
        """Rehearse a cell, unless the time is over."""
        from pydantic import TypeAdapter

        from zlaunch.estimate.rehearse import rehearse
        from zlaunch.estimate.workload import Workload
        from zlaunch.hosts.gpu_catalog import overhead_bytes

        if self.seconds_left() < 0:
            return
        try:
            workload = TypeAdapter(Workload).validate_python(self.results.rows[name]["question"])
            # Nobody is there for NCCL to talk to.
            answer = foretold(
                rehearse([workload])[0], DEVICES[self.device].pools, sum(overhead_bytes(1)) // 2
            )
        except Exception as error:  # noqa: BLE001 - the other cells go on
            answer = {"error": f"{type(error).__name__}: {error}"}
        self.results.add(name, "foretold", answer)

    def measure(self, log: IO[str]) -> None:
        """Measure one cell after the other, until the time is over."""
        rows = self.results.rows
        tasks = {name: _tasks(rows[name]["question"]) for name in self.results.lacking("measured")}
        with Processes(lambda: self._process(log), sum(map(len, tasks.values()))) as processes:
            for name, those in tasks.items():
                if self.seconds_left() < 0:
                    break
                answer = processes.answer(those)
                self.results.add(name, "measured", answer)
                self.show()
                said = answer.get("error", "measured")
                print(f"{self.seconds_left():4.0f} s left  {name}: {said}", flush=True)

    def _process(self, log: IO[str]) -> Process:
        """Start a fresh process for a task."""
        argv, pipe = [sys.executable, "-m", "bench.gpu_cell", self.device], subprocess.PIPE
        environment = {
            **os.environ,
            "DS_ACCELERATOR": self.device,
            "DS_LOG_LEVEL": "error",
            "HF_HUB_OFFLINE": "1",
        }
        return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment)


def _tasks(workload: dict[str, Any]) -> list[dict[str, Any]]:
    """List what processes do for a cell, one after the other."""
    runs = ("train", "resume") if workload["save"] else ("train",)
    return [{"run": run, "workload": workload} for run in runs]


class Processes:
    """Does each task in a process of its own; the next one imports packages meanwhile."""

    def __init__(self, start: Callable[[], Process], most: int) -> None:
        """Start that many at most, and none before it is needed."""
        self._start, self._left = start, most
        self._next: Process | None = None

    def __enter__(self) -> "Processes":
        """Start nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the one that waits."""
        if self._next is not None:
            self._next.kill()
            self._next.communicate()

    def answer(self, tasks: list[dict[str, Any]]) -> dict[str, Any]:
        """Do the tasks of a cell, which share a checkpoint; return all phases, or the first error."""
        phases: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as checkpoint:
            for task in tasks:
                answer = _answer(self._take(), {**task, "checkpoint": checkpoint})
                if "error" in answer:
                    return answer
                phases = {**answer["phases"], **phases}  # what comes twice counts as it was at first
        return {**answer, "phases": phases}

    def _take(self) -> Process:
        """Take the process that waits, and let another one wait if one will be needed."""
        taken = self._next or self._start()
        self._left -= 1
        self._next = self._start() if self._left else None
        return taken


def _answer(process: Process, task: dict[str, Any]) -> dict[str, Any]:
    """Give a process its task; when this returns, it has left the device."""
    try:
        text, _ = process.communicate(json.dumps(task), timeout=TASK_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return {"error": f"it took more than {TASK_SECONDS} s"}
    if text:
        found: dict[str, Any] = json.loads(text)
        return found
    status = process.returncode
    return {
        "error": f"it ended by {signal.Signals(-status).name}" if status < 0 else f"it ended with {status}"
    }


def main() -> None:
    """Rehearse on all cores but two while the device measures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--seconds", type=float, default=510)
    parser.add_argument("--first", type=int, default=len(CELLS), help="how many cells")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    check = Check(options.device, options.out, options.seconds, options.first)
    pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 2))
    pending = [pool.submit(check.foretell, name) for name in check.results.lacking("foretold")]
    with open(options.out / "gpu-check.log", "a") as log:  # noqa: PTH123 - processes write to it too
        check.measure(log)
    for one in pending:
        one.result()
    print(check.show(), flush=True)
    sys.exit(0 if check.is_met() else 1)


if __name__ == "__main__":
    main()
