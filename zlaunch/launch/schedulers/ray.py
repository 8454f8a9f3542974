"""Ray: `ray job submit`, which runs one zlaunch on one node of a Ray cluster."""

import re
import time

from zlaunch.console import shell_line
from zlaunch.errors import WrongUsage
from zlaunch.launch.scheduler import JobStatus, Scheduler, SubmitRequest, ask

_COLOURS = r"\x1b\[[0-9;]*m"
_OVER = {"succeeded": 0, "failed": 1, "stopped": 143}
"""How a job ended → the exit status if Ray names none."""


def check(request: SubmitRequest) -> list[str]:
    """Raise WrongUsage for several nodes: a job of Ray is one command on one node."""
    if request.nodes > 1:
        raise WrongUsage(
            f"`--submit ray --nodes {request.nodes}`: a job of Ray runs on one node", "leave `--nodes` out"
        )
    return request.without_gpus()


def render(request: SubmitRequest) -> str:
    """Write the command line."""
    return f"{shell_line(_words(request))}\n"


def _words(request: SubmitRequest) -> list[str]:
    """The command; Ray uploads the working directory, and counts the GPUs."""
    name = re.sub(r"[^\w-]", "-", request.name)
    words = ["ray", "job", "submit", "--no-wait"]
    words += [f"--submission-id={name}-{time.strftime('%Y%m%d-%H%M%S')}"]
    words += [f"--working-dir={request.directory}"]
    if request.gpus:
        words += [f"--entrypoint-num-gpus={request.gpus}"]
    words += ["--", "zlaunch", "train", *request.words]
    if request.run_dir is not None:
        words += ["--run-dir", str(request.run_dir)]
    return [*words, *request.script_words]


def submit(text: str, request: SubmitRequest) -> str:
    """Run the command line, and return the identifier that it names."""
    words = _words(request)
    ask(words)
    option = "--submission-id="
    return next(word.removeprefix(option) for word in words if word.startswith(option))


def cancel_command(job: str, request: SubmitRequest) -> str:
    """Return the command that ends a job."""
    return f"ray job stop {job}"


def look(job: str, request: SubmitRequest) -> JobStatus:
    """Ask for the state of a job."""
    text = re.sub(_COLOURS, "", ask(["ray", "job", "status", job]))
    if over := re.search(rf"Job '{re.escape(job)}' (?:was )?(succeeded|failed|stopped)", text):
        status = _OVER[over[1]]
        if over[1] == "failed" and (code := re.search(r"exit code (\d+)", text)):
            status = int(code[1])
        return JobStatus(over[1], is_over=True, exit_status=status, output=_logs(job))
    state = re.search(rf"Status for job '{re.escape(job)}': (\w+)", text)
    if state is None or state[1].lower() == "pending":
        return JobStatus("pending")
    return JobStatus(state[1].lower(), output=_logs(job))


def _logs(job: str) -> tuple[str, ...]:
    return ("ray", "job", "logs", "--follow", job)


SCHEDULER = Scheduler("Ray", SubmitRequest, check, render, submit, look, cancel_command)
