"""Show the progress of a submitted job."""

import os
import sys

from zlaunch import console
from zlaunch.cli.runs.why import explained
from zlaunch.errors import Unavailable, ZlaunchError
from zlaunch.launch.scheduler import JobStatus, SubmitRequest
from zlaunch.launch.submit import SubmitReporter
from zlaunch.runs.store import open_run


class SubmitView(SubmitReporter):
    """Prints the output of the job to stdout, everything else to stderr."""

    def __init__(self, request: SubmitRequest) -> None:
        """Prepare to show a job."""
        self._request = request
        self._shown: object = None
        self._is_silent = False
        self._is_within_line = False

    def _say(self, text: str) -> None:
        if self._is_within_line and console.is_one_stream():
            console.say("")
            self._is_within_line = False
        console.say(*console.paragraph(text))

    def submitted(self, job: str, cancel: str) -> None:
        """Name the job."""
        self._say(f"submitted as {job}; `{cancel}` cancels it")

    def changed(self, before: JobStatus | None, state: JobStatus) -> None:
        """Show the state, and where the output goes as soon as there is some."""
        again = bool(state.restarts) and state.name in ("pending", "running")
        words = [f"{state.name}{' again' if again else ''}"]
        words += [f"on {state.where}"] if state.where and not state.is_over else []
        text = " ".join(words)
        if state.reason and not (state.is_over and not state.exit_status):
            text += f": {state.reason}"
        self._say(text)
        if isinstance(state.output, os.PathLike) and state.output != self._shown:
            self._say(f"its output goes to {os.path.relpath(state.output)}")
            self._shown = state.output
        self._is_silent = False

    def output(self, chunk: bytes) -> None:
        """Pass the output on."""
        console.job_output(chunk)
        self._is_within_line = not chunk.endswith(b"\n")

    def unanswered(self, error: Unavailable) -> None:
        """Say once that the scheduler gives no answer."""
        if not self._is_silent:
            self._say(f"{error.message}; asking again")
            self._is_silent = True

    def ended(self, job: str, state: JobStatus) -> None:
        """Show the verdict of each run that can be seen from here, and the exit status."""
        for root in state.runs:
            if root.is_dir():
                self._verdict(str(root))
        status = 1 if state.exit_status is None else state.exit_status
        self._say(f"job {job}: {state.name}, exit status {status}")

    def _verdict(self, root: str) -> None:
        try:
            console.say(*explained(open_run(root, None), sys.stderr))
        except ZlaunchError as error:
            self._say(error.message)

    def left(self, job: str, cancel: str) -> None:
        """Say that the job keeps running."""
        self._say("")
        self._say(f"stopped watching; the job {job} keeps running; `{cancel}` cancels it")
