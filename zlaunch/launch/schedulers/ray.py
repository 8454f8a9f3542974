"""Ray: `ray job submit`, which runs one zlaunch on one node of a Ray cluster."""

import re
import shlex
import time

from zlaunch.errors import WrongUsage
from zlaunch.launch.scheduler import JobStatus, Scheduler, SubmitRequest, ask

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
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
    """Write the command line; Ray uploads the working directory, and counts the GPUs."""
    behind = ["--", *request.script_args] if request.script_args else []
    run_dir = [] if request.run_dir is None else ["--run-dir", str(request.run_dir)]
    gpus = [] if not request.gpus else [f"--entrypoint-num-gpus={request.gpus}"]
    name = "".join(one if one.isalnum() or one in "-_" else "-" for one in request.name)
    words = [
        *("ray", "job", "submit", "--no-wait"),
        f"--submission-id={name}-{time.strftime('%Y%m%d-%H%M%S')}",
        f"--working-dir={request.directory}",
        *gpus,
        "--",
        *("zlaunch", "train", *request.words, *run_dir, *behind),
    ]
    return f"{shlex.join(words)}\n"


def submit(text: str, request: SubmitRequest) -> str:
    """Run the command line, and return the identifier that it names."""
    words = shlex.split(text)
    ask(words)
    option = "--submission-id="
    return next(word.removeprefix(option) for word in words if word.startswith(option))


def cancel_command(job: str, request: SubmitRequest) -> str:
    """Return the command that ends a job."""
    return f"ray job stop {job}"


def look(job: str, request: SubmitRequest) -> JobStatus:
    """Ask for the state of a job."""
    said = _COLOURS.sub("", ask(["ray", "job", "status", job]))
    if found := re.search(rf"Job '{re.escape(job)}' (?:was )?(succeeded|failed|stopped)", said):
        code = re.search(r"exit code (\d+)", said) if found[1] == "failed" else None
        status = int(code[1]) if code else _OVER[found[1]]
        return JobStatus(found[1], is_over=True, exit_status=status, output=_logs(job))
    running = re.search(rf"Status for job '{re.escape(job)}': (\w+)", said)
    state = running[1].lower() if running else "pending"
    return JobStatus(state, output=None if state == "pending" else _logs(job))


def _logs(job: str) -> tuple[str, ...]:
    return ("ray", "job", "logs", "--follow", job)


SCHEDULER = Scheduler("Ray", SubmitRequest, check, render, submit, look, cancel_command)
