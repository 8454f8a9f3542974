"""Slurm: one sbatch script, which starts one zlaunch on each node."""

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from zlaunch.console import shell_line
from zlaunch.errors import WrongUsage
from zlaunch.frozen import dataclass
from zlaunch.launch.scheduler import (
    SAVED,
    JobStatus,
    ProgramFailed,
    Scheduler,
    SubmitRequest,
    ask,
    own_program,
)
from zlaunch.rundir.layout import RUNS
from zlaunch.secrets import SECRET

SIGNAL_SECONDS = 90
"""How long before the time limit the job is asked to save."""

_SECRET = (
    "# srun passes on all variables, even if sbatch was told not to.",
    "export SLURM_EXPORT_ENV=ALL",
    "# Each start makes a secret, with which its nodes recognize each other.",
    f"export {SECRET}=$(head -c 24 /dev/urandom | base64)",
    "",
)

_RUNNING, _PENDING = "RUNNING", "PENDING"
_OVER: Mapping[str, int] = {
    "COMPLETED": 0,
    "FAILED": 1,
    "CANCELLED": 143,
    "DEADLINE": 143,
    "TIMEOUT": 143,
    "OUT_OF_MEMORY": 137,
    "PREEMPTED": SAVED,
    "NODE_FAIL": 69,
    "BOOT_FAIL": 69,
    "REVOKED": 69,
}
"""Final states → the exit status of a job that has none of its own."""

_REASONS: Mapping[str, str] = {
    "Resources": "waiting for nodes to become free",
    "Priority": "jobs of higher priority run first",
    "BeginTime": "Slurm starts it after a short delay",
    "Dependency": "waiting for another job",
    "JobHeldUser": "held: `scontrol release ID` releases it",
    "JobHeldAdmin": "held by an administrator",
    "PartitionTimeLimit": "its time limit is above that of the partition",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "PartitionDown": "the partition is down",
    "ReqNodeNotAvail": "a node it needs is not available",
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions": "nodes it "
    "needs are down, drained or reserved",
}


_OPTION = r"(?s)(?:--)?(?P<key>[A-Za-z][\w-]*)(?:=(?P<value>.*))?"
_LETTERS = {
    "A": "account",
    "a": "array",
    "c": "cpus-per-task",
    "D": "chdir",
    "G": "gpus",
    "J": "job-name",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
}
"""Short options of sbatch → long ones, of which zlaunch writes or reads some."""
_INSTEAD = {
    "nodes": "--nodes",
    "array": "--array",
    "requeue": "--requeue",
    "no-requeue": "--no-requeue",
}
"""Options of sbatch on which more of the script depends → those of zlaunch."""
_TASKS = ("ntasks", "ntasks-per-node")

_INDEXES = r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?"


class SbatchOption(NamedTuple):
    """An option in the words of sbatch; the value is None for a switch."""

    key: str
    value: str | None


def parse_option(text: str) -> SbatchOption:
    """Parse `qos=high` or `exclusive`; raise WrongUsage for an option of zlaunch itself."""
    if (match := re.fullmatch(_OPTION, text)) is None:
        raise WrongUsage(
            f"`--slurm {text}` is not KEY=VALUE", "write `--slurm qos=high` or `--slurm exclusive`"
        )
    key, value = match["key"].replace("_", "-"), match["value"]
    key = _LETTERS.get(key, key)
    if key in _TASKS:
        raise WrongUsage(
            f"`--slurm {text}`: each node has one task, a zlaunch that starts the ranks there",
            "leave it out; `--gpus 8` is the number of ranks of each node",
        )
    if (instead := _INSTEAD.get(key)) is not None:
        if value is not None:
            instead = f"{instead} {value}"
        raise WrongUsage(f"`--slurm {text}`: this is an option of zlaunch itself", f"write `{instead}`")
    return SbatchOption(key, value)


def parse_indexes(text: str) -> str:
    """Check the indexes of an array; raise WrongUsage for anything else."""
    if re.fullmatch(_INDEXES, text) is None:
        raise WrongUsage(
            f"`--array {text}` is not a list of indexes", "write `--array 0-3` or `--array 1,5%2`"
        )
    return text


@dataclass(frozen=True)
class SlurmRequest(SubmitRequest):
    """A job for Slurm, with the options that only Slurm has."""

    account: Annotated[str | None, typer.Option(metavar="NAME", help="Account to charge.")] = None
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Partition.")] = None
    gres: Annotated[
        str | None, typer.Option(metavar="LIST", help="Resources of each node, such as gpu:a100:8.")
    ] = None
    array: Annotated[
        str | None,
        typer.Option(metavar="INDEXES", parser=parse_indexes, help="Submit an array of jobs, such as 0-3."),
    ] = None
    slurm: Annotated[
        list[SbatchOption] | None,
        typer.Option(
            metavar="KEY=VALUE",
            parser=parse_option,
            help="Another option of sbatch, such as qos=high; may be repeated.",
        ),
    ] = None

    @property
    def options(self) -> Mapping[str, str | None]:
        """The options in the words of sbatch; None for a switch."""
        return dict(self.slurm or ())


def check(request: SlurmRequest) -> list[str]:
    """Raise WrongUsage for a line break, which would end an option in the script."""
    for word in (*_directives(request), *request.words, *request.script_args, str(request.directory)):
        if "\n" in str(word):
            raise WrongUsage(f"an sbatch script cannot contain a line break: {str(word)!r}")
    if _has_own_gpus(request):
        return []
    return request.without_gpus()


def render(request: SlurmRequest) -> str:
    """Write the sbatch script of a job."""
    lines = [
        "#!/bin/bash",
        *_directives(request),
        f"# Slurm does not create the directory of the log: mkdir -p {RUNS}",
        "",
        *_run_directory_lines(request),
        "",
        *_SECRET,
        *_step_lines(request),
    ]
    if request.requeue:
        lines += [
            "",
            f"# {SAVED}: it saved a checkpoint before a limit or a preemption, and is to be started again.",
            f'if [ "$status" -eq {SAVED} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {request.restarts} ]; then',
            '    scontrol requeue "$SLURM_JOB_ID"',
            "fi",
        ]
    return "\n".join([*lines, 'exit "$status"', ""])


def _has_own_gpus(request: SlurmRequest) -> bool:
    """Whether the user asks for GPUs in the words of Slurm."""
    return bool(request.gres or request.options.keys() & {"gres", "gpus", "gpus-per-node", "gpus-per-task"})


def _directives(request: SlurmRequest) -> list[str]:
    """Write the options of the job; options of `--slurm` replace those of zlaunch."""
    limit, signal_at, log = None, None, RUNS / "slurm-%j.log"
    if request.time_limit is not None:
        limit = _slurm_time(request.time_limit)
        signal_at = f"USR1@{min(SIGNAL_SECONDS, request.time_limit // 2)}"
    if request.array is not None:
        log = RUNS / "slurm-%A_%a.log"
    gpus = None
    if request.gpus and not _has_own_gpus(request):
        gpus = str(request.gpus)
    directives: dict[str, str | None] = {
        "job-name": request.name,
        "account": request.account,
        "partition": request.partition,
        "nodes": str(request.nodes),
        "ntasks-per-node": "1",
        "gres": request.gres,
        "gpus-per-node": gpus,
        "array": request.array,
        "time": limit,
        "signal": signal_at,
        "chdir": str(request.directory),
        "output": str(log),
        "open-mode": "append",
    }
    lines = [
        f"#SBATCH --{key}={_quoted(value)}"
        for key, value in directives.items()
        if value and key not in request.options
    ]
    if request.requeue:
        lines.append("#SBATCH --requeue")
    else:
        lines.append("#SBATCH --no-requeue")
    return [*lines, *(_directive(key, text) for key, text in request.options.items())]


def _directive(key: str, text: str | None) -> str:
    flag, equals = f"--{key}", "="
    if len(key) == 1:
        flag, equals = f"-{key}", " "
    if text is None:
        return f"#SBATCH {flag}"
    return f"#SBATCH {flag}{equals}{_quoted(text)}"


def _slurm_time(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes = f"{rest // 60:02}:{rest % 60:02}"
    if days:
        return f"{days}-{hours:02}:{minutes}"
    return f"{hours}:{minutes}"


def _quoted(text: str) -> str:
    r"""Quote a value if sbatch would split it; within quotes, sbatch reads `\\` as an escape but not `$`."""
    if not re.search(r"""[\s"'\\#]""", text):
        return text
    return '"' + re.sub(r"""(["\\])""", r"\\\1", text) + '"'


def _run_directory_lines(request: SlurmRequest) -> Iterator[str]:
    """Choose the run directory on the node, where the number of the job is known."""
    yield "# Slurm counts how often it has requeued the job. Each start has a run directory of its own."
    if request.run_dir is None:
        yield f'run_dir={shlex.quote(str(RUNS / request.run_name))}-"$SLURM_JOB_ID"'
    else:
        run_dir = shlex.quote(str(request.run_dir))
        if request.array is not None:
            run_dir += '-"$SLURM_ARRAY_TASK_ID"'
        yield f"run_dir={run_dir}"
    if request.is_resumable:
        yield "again=()"
    yield 'if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then'
    yield '    run_dir+="-attempt-$((SLURM_RESTART_COUNT + 1))"'
    if request.is_resumable:
        yield "    again=(--resume latest)"
    yield "fi"


def _step_lines(request: SlurmRequest) -> Iterator[str]:
    """Start one zlaunch on each node; a failed one ends the others itself."""
    # Without `none`, it may bind all ranks of a node to one core.
    step = "srun --ntasks-per-node=1 --kill-on-bad-exit=0 --cpu-bind=none"
    cores = request.options.get("cpus-per-task")
    if cores is not None:  # which srun does not take from sbatch
        step += f" --cpus-per-task={shlex.quote(cores)}"
    yield f"{step} \\"
    yield f"    {shell_line([*own_program(), 'train', *request.words])} \\"
    line = ['    --run-dir "$run_dir"']
    if request.is_resumable:
        line.append('"${again[@]}"')
    if request.script_args:
        line.append(shell_line(request.script_words))
    yield " ".join(line)
    yield "status=$?"


def submit(text: str, request: SlurmRequest) -> str:
    """Submit a script, and return the number of the job."""
    (request.directory / RUNS).mkdir(exist_ok=True)  # Slurm does not create the directory of the log
    return ask(["sbatch", "--parsable"], text).partition(";")[0]


def cancel_command(job: str, request: SlurmRequest) -> str:
    """Return the command that ends a job."""
    return f"scancel {job}"


def look(job: str, request: SlurmRequest) -> JobStatus:
    """Ask for the state of a job."""
    try:
        records = ask(["scontrol", "show", "job", job]).split("\n\n")
    except ProgramFailed as error:
        if "Invalid job id" not in error.said:
            raise
        return _from_accounting(job)
    states = [_status_of_record(record, request) for record in records]
    if len(states) == 1:
        return states[0]
    return _together(states)


def _status_of_record(record: str, request: SlurmRequest) -> JobStatus:
    name, number = _member(record, "JobState") or "", _member(record, "JobId") or ""
    restarts = int(_member(record, "Restarts") or 0)
    reason = exit_status = output = None
    if name != _RUNNING:
        reason = _explained(_member(record, "Reason"))
    if name in _OVER:
        exit_status = _exit_status(name, _member(record, "ExitCode") or "")
    log = re.search(r"^\s*StdOut=(.*)$", record, re.MULTILINE)
    if log and (restarts or name not in (_PENDING, "CONFIGURING")):
        output = Path(log[1])
    return JobStatus(
        name.lower(),
        reason,
        _member(record, "NodeList"),
        name in _OVER,
        exit_status,
        restarts,
        output,
        (_run_dir(request, number, _member(record, "ArrayTaskId"), restarts),),
    )


def _member(record: str, name: str) -> str | None:
    found = re.search(rf"(?:^|\s){name}=(\S+)", record)
    if found is None or found[1] in ("(null)", "None", "N/A", "Unknown"):
        return None
    return found[1]


def _explained(reason: str | None) -> str | None:
    if reason is None:
        return None
    words = _REASONS.get(reason)
    if words is None:
        return reason.replace("_", " ")
    if "_" in reason:
        return words
    return f"{words} ({reason})"


def _exit_status(name: str, code: str) -> int:
    """Read the exit status from `CODE:SIGNAL`; a job that Slurm ended may have none."""
    status, _, number = code.partition(":")
    if status.isdecimal() and int(status):
        return int(status)
    if number.isdecimal() and int(number):
        return 128 + int(number)
    return _OVER[name]


def _run_dir(request: SlurmRequest, number: str, task: str | None, restarts: int) -> Path:
    """Name the run directory as the script does."""
    name = f"{RUNS / request.run_name}-{number}"
    if request.run_dir is not None:
        name = str(request.run_dir)
        if request.array is not None:
            name += f"-{task}"
    if restarts:
        name += f"-attempt-{restarts + 1}"
    return request.directory / name


def _together(states: list[JobStatus]) -> JobStatus:
    """Summarize the states of the tasks of an array."""
    names = [state.name for state in states]
    counts = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
    is_over, exit_status = all(state.is_over for state in states), None
    if is_over:
        exit_status = next((state.exit_status for state in states if state.exit_status), 0)
    return JobStatus(
        counts,
        next((state.reason for state in states if state.reason), None),
        is_over=is_over,
        exit_status=exit_status,
        restarts=sum(state.restarts for state in states),
        runs=tuple(itertools.chain.from_iterable(state.runs for state in states)),
    )


def _from_accounting(job: str) -> JobStatus:
    """Ask the accounting database for a job that ended earlier; raise Unavailable without one."""
    lines = ask(["sacct", "-j", job, "-n", "-P", "-X", "-o", "State,ExitCode"]).splitlines()
    if not lines:
        return JobStatus("unknown", "Slurm has no record of the job any more", is_over=True, exit_status=1)
    return _together([_status_of_line(line) for line in lines])


def _status_of_line(line: str) -> JobStatus:
    """Read a line of sacct, such as `CANCELLED by 0|0:15`."""
    state, _, code = line.partition("|")
    name = state.split(" ")[0]
    if name in _OVER:
        return JobStatus(name.lower(), is_over=True, exit_status=_exit_status(name, code))
    return JobStatus(name.lower())


SCHEDULER = Scheduler(
    "Slurm",
    SlurmRequest,
    check,
    render,
    submit,
    look,
    cancel_command,
    shares_files=True,
    has_time_limit=True,
)
