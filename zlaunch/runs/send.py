"""Send the metrics of a run to a tracker, those it has and, until it is over, those to come."""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from zlaunch.errors import Unavailable
from zlaunch.process import PipedProgram, ours
from zlaunch.rundir.layout import RunDir
from zlaunch.runs.store import load_run

LOOK_SECONDS = 1.0
LAST_SECONDS = 60.0
"""How long a tracker may take to send the last lines."""


def send_metrics(
    root: Path, tracker: str, project: str, *, follow: bool, told: Callable[[int], None]
) -> dict[str, object]:
    """Send the lines of `metrics.jsonl`; return how many the tracker took, and where they are.

    `told` gets the number of lines that have been passed on. Raises Unavailable if the tracker fails.
    """
    python = load_run(root).files.job.get("python")
    argv = ours("zlaunch.worker.track", tracker, project, str(root.absolute()), python=python)
    with tempfile.TemporaryFile() as errors:
        program = PipedProgram(argv, os.environ, errors)
        reader, writer = program.take_streams()
        try:
            with os.fdopen(writer, "wb", buffering=0) as stdin:
                for number, line in enumerate(_lines(root, follow=follow), start=1):
                    stdin.write(line)
                    told(number)
        except BrokenPipeError:
            pass  # it has said why
        with os.fdopen(reader, "rb") as stdout:
            answer = stdout.read()
        if program.wait(LAST_SECONDS) != 0 or not answer:
            program.kill()
            errors.seek(0)
            raise _why(tracker, errors.read().decode("utf-8", "replace"))
    found: dict[str, object] = json.loads(answer)
    return found


def _lines(root: Path, *, follow: bool) -> Iterator[bytes]:
    """Read whole lines, and wait for more as long as the run goes on."""
    with RunDir(root).metrics.open("rb") as metrics:
        rest = b""
        while True:
            is_last = not follow or load_run(root).state.is_over  # looked at before the last lines are read
            *lines, rest = (rest + metrics.read()).split(b"\n")
            yield from (line + b"\n" for line in lines)
            if is_last:
                return
            time.sleep(LOOK_SECONDS)


def _why(tracker: str, said: str) -> Unavailable:
    lines = [line for line in said.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it ended without a word"
    if "ModuleNotFoundError" in last or "ImportError" in last:
        return Unavailable(f"the Python of the run has no {tracker}: {last}", f"`pip install {tracker}`")
    return Unavailable(f"{tracker} failed: {last}")
