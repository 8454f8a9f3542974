"""Compare predicted with measured GPU memory: `python -m bench.gpu_check OUT`.

Each cell is trained by a new process on the device, one at a time. Another process resumes its checkpoint.
Independently, it is rehearsed on the host: afterwards, as rehearsals would slow the measurements down, or
with `--only predict` on another machine with the same packages. OUT/gpu-check.json and OUT/gpu-check.md are
written after each result; a second start continues with missing results. `--device cpu` trains tiny models
on the CPU, to test the check itself.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from bench.gpu_cells import CELLS, cpu_workload
from bench.gpu_device import DEVICES
from bench.gpu_results import Results, Row, versions, versions_measured, write_atomically
from bench.gpu_table import is_met, predicted_row, table
from zlaunch.hosts.machine.interpreter import installed_stack

FILE = "gpu-check.json"
TASK_SECONDS = 150
"""Seconds after which a process is killed."""
WAITING = 3
"""Processes that import packages while another one uses the device; imports take longer than a cell."""

Process = subprocess.Popen[str]


class Check:
    """The cells, their results, and the deadline."""

    def __init__(
        self, device: str, out: Path, seconds: float, first: int, found: dict[str, str] | None = None
    ) -> None:
        """Load the results in OUT, measured with the versions `found`: by default those here."""
        self.device, self._deadline = device, time.monotonic() + seconds
        workloads = [cpu_workload(cell) if device == "cpu" else cell.workload() for cell in CELLS]
        inputs = dict(zip(map(str, CELLS[:first]), workloads, strict=False))
        self.results = Results(out / FILE, found or versions(device), inputs)
        self._page = out / "gpu-check.md"
        pools = DEVICES[device].pools
        self._quantities = (*pools, "process") if "reserved" in pools else tuple(pools)

    def show(self) -> str:
        """Write the table; return it."""
        write_atomically(self._page, text := table(self.results, self._quantities))
        return text

    def is_met(self) -> bool:
        """Whether all cells were compared and all goals are met."""
        return is_met(self.results, self._quantities)

    def predict(self, name: str) -> None:
        """Rehearse a cell, unless the deadline has passed."""
        from pydantic import TypeAdapter

        from tests.estimate.rehearsing import rehearse
        from zlaunch.estimate.workload import Workload
        from zlaunch.hosts.machine.gpu_catalog import CONTEXT_BYTES

        try:
            workload = TypeAdapter(Workload).validate_python(self.results.rows[name]["input"])
            context = sum(CONTEXT_BYTES) // 2  # no NCCL: there are no other ranks
            result = predicted_row(rehearse([workload])[0], DEVICES[self.device].pools, context)
        except Exception as error:  # noqa: BLE001 - continue with the other cells
            result = {"error": f"{type(error).__name__}: {error}"}
        self.results.add(name, "predicted", result)

    def measure(self, log: IO[str]) -> None:
        """Measure one cell after the other, until the deadline."""
        rows = self.results.rows
        tasks = {name: _tasks(rows[name]["input"]) for name in self.results.missing("measured")}
        with Processes(lambda: _start_process(self.device, log), tasks) as processes:
            for _ in processes.measure(self.results, self._deadline):
                self.show()


def measure_times(results: Results, device: str, deadline: float, log: IO[str]) -> None:
    """Time one cell after the other, until the deadline."""
    inputs = {name: results.rows[name]["input"] for name in results.missing("measured")}
    tasks = {name: [{"run": "time", "workload": workload}] for name, workload in inputs.items()}
    with Processes(lambda: _start_process(device, log), tasks) as processes:
        for _ in processes.measure(results, deadline):
            pass


def _start_process(device: str, log: IO[str]) -> Process:
    """Start a process that waits for a task."""
    argv, pipe = [sys.executable, "-m", "bench.gpu_cell", device], subprocess.PIPE
    environment = {
        **os.environ,
        "DS_ACCELERATOR": device,
        "DS_LOG_LEVEL": "error",
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment)


def _tasks(workload: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tasks of a cell, for one process each."""
    runs = ("train", "resume") if workload["save"] else ("train",)
    return [{"run": run, "workload": workload} for run in runs]


class Processes:
    """Runs each task in a new process, while the next processes import packages."""

    def __init__(self, start: Callable[[], Process], tasks: Mapping[str, list[dict[str, Any]]]) -> None:
        """Prepare to run the tasks of each cell."""
        self._start, self._tasks = start, tasks
        self._remaining = sum(map(len, tasks.values()))
        self._waiting: deque[Process] = deque()

    def __enter__(self) -> "Processes":
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the waiting processes."""
        for process in self._waiting:
            process.kill()
            process.communicate()

    def measure(self, results: Results, deadline: float) -> Iterator[str]:
        """Run one cell after the other, until the deadline; yield each name after its result is added."""
        for name, tasks in self._tasks.items():
            if time.monotonic() > deadline:
                break
            result = self.run(tasks)
            results.add(name, "measured", result)
            yield name
            status = result.get("error", "measured")
            print(f"{deadline - time.monotonic():4.0f} s left  {name}: {status}", flush=True)

    def run(self, tasks: list[dict[str, Any]]) -> Row:
        """Run the tasks of a cell, which share a checkpoint; return all phases, or the first error."""
        phases: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as checkpoint:
            for task in tasks:
                result = _run(self._take(), {**task, "checkpoint": checkpoint})
                if "error" in result:
                    return result
                phases = {**result["phases"], **phases}  # `load` and `initialize` of the first task count
        return {**result, "phases": phases}

    def _take(self) -> Process:
        """Return the process that waits longest, and start others if there are more tasks."""
        while self._remaining and len(self._waiting) <= WAITING:
            self._waiting.append(self._start())
            self._remaining -= 1
        return self._waiting.popleft()


def _run(process: Process, task: dict[str, Any]) -> Row:
    """Send a process its task, and wait until it has ended."""
    try:
        text, _ = process.communicate(json.dumps(task), timeout=TASK_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return {"error": f"it took more than {TASK_SECONDS} s"}
    if text:
        result: Row = json.loads(text)
        return result
    status = process.returncode
    return {"error": f"it ended with {signal.Signals(-status).name if status < 0 else f'status {status}'}"}


def main() -> None:
    """Measure one cell after the other, then rehearse the cells that were measured on all cores."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=DEVICES, default="cuda")
    parser.add_argument("--seconds", type=float, default=510)
    parser.add_argument("--first", type=int, default=len(CELLS), help="how many cells")
    parser.add_argument("--only", choices=("measure", "predict"), help="half of the check")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    found = None
    if options.only == "predict":
        found = versions_measured(options.out / FILE)
    check = Check(options.device, options.out, options.seconds, options.first, found)
    if options.only != "predict":
        with open(options.out / "gpu-check.log", "a") as log:  # noqa: PTH123 - processes write to it too
            check.measure(log)
    if options.only != "measure":
        installed_stack()  # the threads below would all ask for it at once
        with ThreadPoolExecutor() as pool:
            list(pool.map(check.predict, check.results.missing("predicted")))
    print(check.show(), flush=True)
    sys.exit(0 if check.is_met() else 1)


if __name__ == "__main__":
    main()
