"""`zlaunch train --submit`: its options, and the command line that runs on the nodes."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from zlaunch import console
from zlaunch.cli.options import MOST_NODES
from zlaunch.cli.views.submission import SubmitView
from zlaunch.errors import WrongUsage
from zlaunch.job.spec import GpuChoice, JobSpec, parse_duration
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.schedulers import SCHEDULERS, Scheduler
from zlaunch.launch.schedulers.request import SubmitRequest
from zlaunch.launch.submit import NodesAsked, check_elsewhere, submit
from zlaunch.launch.surroundings import imagine
from zlaunch.secrets import assigned_secrets, secret_arguments

Submit = Annotated[
    Literal["slurm", "kubernetes", "ray"] | None,
    typer.Option(help="Submit the job to a scheduler, and follow it to its end."),
]
Nodes = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_NODES, metavar="N", help="With --submit: number of nodes (default: 1)."),
]
JobName = Annotated[
    str | None, typer.Option(metavar="NAME", help="With --submit: name of the job (default: of the script).")
]
Account = Annotated[str | None, typer.Option(metavar="NAME", help="With --submit slurm: account to charge.")]
Partition = Annotated[str | None, typer.Option(metavar="NAME", help="With --submit slurm: partition.")]
Gres = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="With --submit slurm: resources of each node, such as gpu:a100:8."),
]
Array = Annotated[
    str | None, typer.Option(metavar="INDEXES", help="With --submit slurm: array of jobs, such as 0-3.")
]
Requeue = Annotated[
    bool | None,
    typer.Option(
        "--requeue/--no-requeue",
        help="With --submit: restart the job after a preemption or its time limit (default: yes).",
    ),
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option("--slurm", metavar="KEY=VALUE", help="Another option of sbatch, such as qos=high."),
]
Image = Annotated[
    str | None,
    typer.Option(metavar="IMAGE", help="With --submit kubernetes: image with zlaunch and the script."),
]
Namespace = Annotated[str | None, typer.Option(metavar="NAME", help="With --submit kubernetes: namespace.")]
Kind = Annotated[
    Literal["jobset", "trainjob", "pytorchjob"] | None,
    typer.Option(help="With --submit kubernetes: kind of manifest (default: jobset)."),
]
Volumes = Annotated[
    list[str] | None,
    typer.Option(
        "--volume",
        metavar="CLAIM:PATH",
        help="With --submit kubernetes: a persistent volume and where it is mounted.",
    ),
]
Workdir = Annotated[
    str | None, typer.Option(metavar="DIR", help="With --submit kubernetes: working directory.")
]
Detach = Annotated[bool, typer.Option("--detach", help="With --submit: do not follow the job.")]

_OPTION = re.compile(r"(?:--)?(?P<key>[A-Za-z][\w-]*)(?:=(?P<value>.*))?", re.DOTALL)
_OF_HOSTS = ("hosts", "include", "exclude", "no_ssh", "node_rank", "offline")
"""Options for hosts that no scheduler chooses."""

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

_INDEXES = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")

_NOT_THERE = ("dry_run", "detach", "run_dir", "as_json", "on")
"""Options for the machine that submits, beside those of this module."""


@dataclass(frozen=True)
class Submission:
    """The options for submitting, as the user gave them."""

    scheduler: str
    nodes: int | None = None
    time_limit: str | None = None
    job_name: str | None = None
    account: str | None = None
    partition: str | None = None
    gres: str | None = None
    array: str | None = None
    requeue: bool | None = None
    slurm: Sequence[str] = ()
    image: str | None = None
    namespace: str | None = None
    kind: str | None = None
    volume: Sequence[str] = ()
    workdir: str | None = None
    detach: bool = False


NAMES = tuple(one.name if one.name != "scheduler" else "submit" for one in fields(Submission))
"""The parameters of the command that are here."""


def refuse_alone(given: Mapping[str, Any], job: JobSpec) -> None:
    """Raise WrongUsage for a typed option that needs `--submit`; in zlaunch.yaml it is ignored."""
    for name in _typed(given, job):
        flag = _flag(name, given[name])
        raise WrongUsage(
            f"`{flag}` has no effect without `--submit`", f"write `--submit slurm`, or leave `{flag}` out"
        )


def refuse_of_others(given: Mapping[str, Any], job: JobSpec, scheduler: str) -> None:
    """Raise WrongUsage for an option that makes no sense with this scheduler, or shows a secret.

    Those of another scheduler are ignored in zlaunch.yaml.
    """
    for name in _OF_HOSTS:
        if given.get(name) not in (None, False) and name not in job.places:
            flag = _flag(name, given[name])
            raise WrongUsage(
                f"`{flag}` has no effect with `--submit {scheduler}`",
                "leave it out: a scheduler chooses the hosts",
            )
    for name in assigned_secrets(job.env):
        raise WrongUsage(
            f"`--env {name}=…` would write a secret into what is submitted",
            f"set {name} in the environment of the nodes, and write `--env {name}`",
        )
    others = {name for one in SCHEDULERS.values() for name in one.OWN_OPTIONS}
    for name in _typed(given, job):
        if name in others - {*SCHEDULERS[scheduler].OWN_OPTIONS}:
            raise WrongUsage(
                f"`{_flag(name, given[name])}` has no effect with `--submit {scheduler}`", "leave it out"
            )


def note_secrets(words: Sequence[str], where: str, reporter: Reporter) -> None:
    """Say which argument of the script may be a secret that others will see."""
    for shown in secret_arguments(words)[:1]:
        reporter.note(f"`{shown}` can be read in {where}; a variable and `--env NAME` keep it secret")


def _typed(given: Mapping[str, Any], job: JobSpec) -> Iterator[str]:
    """List the parameters of this module that the command line sets."""
    for name in NAMES[1:]:
        if name == "time_limit":  # which zlaunch heeds without a scheduler, too
            continue
        is_given = given.get(name) not in (None, [], ()) and (name, given[name]) != ("detach", False)
        if is_given and name not in job.places:
            yield name


def _flag(name: str, value: object) -> str:
    return f"--{'no-' if value is False else ''}{name.replace('_', '-')}"


def submit_job(
    asked: Submission,
    job: JobSpec,
    words: Sequence[str],
    run_dir: Path | None,
    reporter: Reporter,
    command: Any,
    *,
    options: LaunchOptions,
    on: str | None = None,
    as_json: bool = False,
) -> int:
    """Check a job, and submit it or show what would be submitted; return its exit status."""
    scheduler: Scheduler = SCHEDULERS[asked.scheduler]
    if asked.array is not None and _INDEXES.fullmatch(asked.array) is None:
        raise WrongUsage(
            f"`--array {asked.array}` is not a list of indexes", "write `--array 0-3` or `--array 1,5%2`"
        )
    note_secrets(job.args.words, "what is submitted", reporter)
    nodes = _nodes(asked, job, on)
    is_resumable = check_elsewhere(job, nodes, options, reporter, must_exist=scheduler.SHARES_FILES)
    left_out = {*NAMES, *_NOT_THERE} - ({"time_limit"} if not scheduler.HAS_TIME_LIMIT else set())
    own, behind = split_words(words, command, left_out)
    request = SubmitRequest(
        words=own,
        script_args=behind,
        name=asked.job_name or job.name,
        directory=Path.cwd(),
        run_dir=run_dir,
        nodes=nodes.count,
        gpus=nodes.gpus,
        env=tuple(word for word in job.env if "=" not in word),
        time_limit=_seconds(asked.time_limit),
        save_within=job.wishes.preempt.save_within,
        is_resumable=is_resumable,
        account=asked.account,
        partition=asked.partition,
        gres=asked.gres,
        array=asked.array,
        requeue=asked.requeue is not False,
        options=_options(asked.slurm),
        image=asked.image,
        namespace=asked.namespace,
        kind=asked.kind,
        volumes=tuple(map(_volume, asked.volume)),
        workdir=asked.workdir,
    )
    for note in scheduler.check(request):
        reporter.note(note)
    if options.dry_run:
        text = scheduler.render(request)
        console.raw_data((json.dumps({"script": text}) + "\n" if as_json else text).encode())
        return 0
    return submit(scheduler, request, SubmitView(request), detach=asked.detach)


def _nodes(asked: Submission, job: JobSpec, on: str | None) -> NodesAsked:
    """Return the nodes to ask for; `--on` gives the numbers that the user did not."""
    gpus = _gpus(job.gpus)
    if on is None:
        return NodesAsked(asked.nodes or 1, gpus)
    there = imagine(on)
    each = len(there.machine.gpus)
    if asked.nodes not in (None, there.count) or gpus not in (None, each):
        given = f"--nodes {asked.nodes}" if asked.nodes not in (None, there.count) else f"--gpus {gpus}"
        raise WrongUsage(f"`{given}` and `--on {on}` contradict each other", f"leave `{given}` out")
    return NodesAsked(there.count, each, there)


def _gpus(choice: GpuChoice | None) -> int | None:
    """Return the GPUs of each node."""
    if choice is not None and choice.devices is not None:
        devices = ",".join(map(str, choice.devices))
        raise WrongUsage(
            f"`--gpus {devices}` names devices, but a scheduler chooses them",
            f"write `--gpus {len(choice.devices)}`",
        )
    return None if choice is None else choice.count


def _seconds(text: str | None) -> int | None:
    return None if text is None else round(parse_duration(text, "--time-limit"))


def _volume(text: str) -> tuple[str, str]:
    claim, _, path = text.partition(":")
    if not claim or not path.startswith("/"):
        raise WrongUsage(f"`--volume {text}` is not CLAIM:PATH", "write `--volume datasets:/data`")
    return claim, path


def _options(texts: Sequence[str]) -> dict[str, str | None]:
    options: dict[str, str | None] = {}
    for text in texts:
        if (found := _OPTION.fullmatch(text)) is None:
            raise WrongUsage(
                f"`--slurm {text}` is not KEY=VALUE", "write `--slurm qos=high` or `--slurm exclusive`"
            )
        key, value = found["key"].replace("_", "-"), found["value"]
        key = _LETTERS.get(key, key)
        if key in _TASKS:
            raise WrongUsage(
                f"`--slurm {text}`: each node has one task, a zlaunch that starts the ranks there",
                "leave it out; `--gpus 8` is the number of ranks of each node",
            )
        if (instead := _INSTEAD.get(key)) is not None:
            typed = instead if value is None else f"{instead} {value}"
            raise WrongUsage(f"`--slurm {text}`: this is an option of zlaunch itself", f"write `{typed}`")
        options[key] = value
    return options


def words_of_train(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the words after `train` in the command line of zlaunch."""
    return tuple(argv[argv.index("train") + 1 :])


def split_words(
    words: Sequence[str], command: Any, left_out: Set[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split a command line of `train` at `--`, and leave out the options for the machine that submits."""
    cut = words.index("--") if "--" in words else len(words)
    own, behind = list(words[:cut]), tuple(words[cut + 1 :])
    params = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts)}
    kept: list[str] = []
    place = 0
    while place < len(own):
        name, has_value, _ = own[place].partition("=")
        option = params.get(name) or params.get(name.replace("_", "-"))
        takes_value = name.startswith("-") and option is not None and not option.is_flag and not has_value
        length = 2 if takes_value else 1
        if option is None or not name.startswith("-") or option.name not in left_out:
            kept += own[place : place + length]
        place += length
    return tuple(kept), behind
