"""The options of `zlaunch train`: one table for each panel of its help, and one of each scheduler."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from zlaunch.cli import options
from zlaunch.cli.job_options import ConfigOptions
from zlaunch.cli.option_table import OptionPanel
from zlaunch.frozen import dataclass
from zlaunch.job.spec import (
    STEP_PATIENCE_SECONDS,
    Debug,
    GpuChoice,
    OnNan,
    OnOom,
    OnPreempt,
    OnStall,
    Profile,
    parse_debug,
    parse_gpus,
    parse_profile,
    parse_time_limit,
)
from zlaunch.launch.backends import launchers
from zlaunch.launch.schedulers import schedulers

if TYPE_CHECKING:
    LauncherName: TypeAlias = str
    SchedulerName: TypeAlias = str
else:
    LauncherName, SchedulerName = Literal[launchers()], Literal[tuple(schedulers())]

MOST_USED = (
    *("stage", "offload", "precision", "ds_config", "overrides"),
    *("gpus", "hosts", "resume", "submit", "dry_run"),
)


@dataclass(frozen=True)
class ProgramOptions:
    """What to train."""

    script: Annotated[
        str | None,
        typer.Argument(
            metavar="SCRIPT [-- SCRIPT ARGS]",
            help="Training script or recipe (default: a small language model).",
            autocompletion=options.completed("scripts"),
        ),
    ] = None
    module: Annotated[
        str | None,
        typer.Option(
            "--module", "-m", metavar="NAME", help="Run a module instead of a script, like `python -m`."
        ),
    ] = None
    python: options.Python = None
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME[=VALUE]",
            help="Set a variable of the ranks, on all hosts; may be repeated.",
        ),
    ] = None
    no_ask: Annotated[
        bool, typer.Option("--no-ask", help="Do not run the script to find out its arguments.")
    ] = False
    job: options.Job = None


@dataclass(frozen=True)
class ZeroOptions(ConfigOptions):
    """The ds_config, and whether it fits."""

    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="First run two steps of DeepSpeed on fake tensors.")
    ] = False
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="First compare 3 steps with plain torch on the CPU; do not start if they differ."
        ),
    ] = False
    seq_len: options.SeqLen = None
    force: Annotated[
        bool, typer.Option("--force", help="Start even if memory or other resources are short.")
    ] = False


@dataclass(frozen=True)
class HostOptions:
    """Where the ranks run."""

    gpus: Annotated[
        GpuChoice | None,
        typer.Option(
            metavar="N|LIST",
            parser=parse_gpus,
            help="Number of GPUs, or their numbers: 2 or 0,2 (default: all). "
            "Without a GPU, number of ranks on the CPU (default: 2).",
        ),
    ] = None
    hosts: options.Hosts = None
    hostfile: options.Hostfile = None
    include: Annotated[
        str | None, typer.Option(metavar="HOST:SLOTS", help="Use only these slots: w0@w1:0,2.")
    ] = None
    exclude: Annotated[str | None, typer.Option(metavar="HOST:SLOTS", help="Use all slots except these.")] = (
        None
    )
    launcher: Annotated[
        LauncherName | None,
        typer.Option(help="Launcher (default: torchrun; deepspeed if the script wants --local_rank)."),
    ] = None
    no_ssh: Annotated[
        bool,
        typer.Option("--no-ssh", help="Show the command to type on each host; with --node-rank, run it."),
    ] = False
    node_rank: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="With --no-ssh: which of the hosts this is.")
    ] = None
    on: Annotated[
        str | None,
        typer.Option(
            metavar="GPUS",
            help="With --dry-run or --submit: plan for these GPUs, such as 2x8xH100-80GB on two hosts.",
            autocompletion=options.completed("gpus"),
        ),
    ] = None
    offline: Annotated[bool, typer.Option("--offline", help="With --dry-run: ask no other host.")] = False
    join_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1.0, help="Seconds to wait for the zlaunch of every other node."),
    ] = 600


@dataclass(frozen=True)
class CheckpointOptions:
    """What is loaded and saved."""

    resume: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|latest|RUN",
            help="Resume from a checkpoint: a directory, `latest` (newest of this job), or a run.",
            autocompletion=options.completed("resumed"),
        ),
    ] = None
    allow_reshard: Annotated[
        bool,
        typer.Option(
            "--allow-reshard", help="Convert the checkpoint of --resume if ranks, stage or offload differ."
        ),
    ] = False
    save: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Directory for the model and its checkpoints (of a Trainer: `--output_dir`)."
        ),
    ] = None


@dataclass(frozen=True)
class WatchOptions:
    """What to do about stalls, failures and requests to stop."""

    show_ranks: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="Ranks whose output to show: 0,3, all or none (default: none in a terminal, else 0).",
        ),
    ] = None
    on_stall: Annotated[OnStall, typer.Option(help="What to do when no rank makes progress.")] = "report"
    stall_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1.0, help="Seconds without progress before a run counts as stalled."
        ),
    ] = STEP_PATIENCE_SECONDS
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Number of restarts after failures that may not recur, such as a lost rank.",
        ),
    ] = 0
    on_oom: Annotated[
        OnOom, typer.Option(help="When memory runs out; retry: use less memory, with the same global batch.")
    ] = "stop"
    on_nan: Annotated[
        OnNan,
        typer.Option(
            help="When the loss stays NaN; rollback: resume from the newest checkpoint that was saved before."
        ),
    ] = "report"
    on_preempt: Annotated[
        OnPreempt | None,
        typer.Option(
            help="What SIGTERM does (default: save under Slurm and Kubernetes, else stop); SIGUSR1 saves.",
            show_default=False,
        ),
    ] = None
    save_within: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1.0,
            help="Time to save and stop (default: 25 after SIGTERM, otherwise 300).",
        ),
    ] = None
    time_limit: Annotated[
        float | None,
        typer.Option(
            metavar="TIME",
            parser=parse_time_limit,
            help="Save and stop within this time: 3:30:00 or 90m. With --submit, the job's time limit.",
        ),
    ] = None
    profile: Annotated[
        Profile | None,
        typer.Option(
            metavar="STEPS[@RANKS]",
            parser=parse_profile,
            help="Record steps: 10-12 or 10-12@0,1 with torch's profiler (default: rank 0), "
            "nsys or nsys:10-12 with Nsight Systems.",
        ),
    ] = None
    debug: Annotated[
        Debug | None,
        typer.Option(
            metavar="RANK[:PORT]",
            parser=parse_debug,
            help="Make a rank wait for a debugger (default port: 5678).",
        ),
    ] = None


@dataclass(frozen=True)
class SubmitOptions:
    """What all schedulers are told."""

    submit: Annotated[
        SchedulerName | None, typer.Option(help="Submit the job to a scheduler, and follow it to its end.")
    ] = None
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=options.MOST_NODES, metavar="N", help="Number of nodes (default: 1)."),
    ] = None
    job_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the job (default: of the script).")
    ] = None
    requeue: Annotated[
        bool | None,
        typer.Option(
            "--requeue/--no-requeue",
            help="Restart the job after a preemption or its time limit (default: yes).",
        ),
    ] = None
    detach: Annotated[bool, typer.Option("--detach", help="Do not follow the job.")] = False


@dataclass(frozen=True)
class OutputOptions:
    """What is shown and written."""

    dry_run: options.DryRun = False
    full: options.Full = False
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run directory (default: runs/<time>-<name>).")
    ] = None
    share: Annotated[
        bool,
        typer.Option("--share", help="Let others read the run directory, as your umask allows."),
    ] = False
    notify: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOW",
            help="Tell of the end: bell, desktop, a URL or a command that gets JSON; may be repeated.",
        ),
    ] = None
    as_json: options.AsJson = False


def panels() -> Iterator[OptionPanel]:
    """List the panels in the order of the help."""
    yield OptionPanel.of("What to train", ProgramOptions)
    yield OptionPanel.of("ZeRO and memory", ZeroOptions)
    yield OptionPanel.of("Hosts", HostOptions)
    yield OptionPanel.of("Watch and restart", WatchOptions)
    yield OptionPanel.of("Checkpoints", CheckpointOptions)
    yield OptionPanel.of("Schedulers (with --submit)", SubmitOptions)
    for name, scheduler in schedulers().items():
        yield OptionPanel(f"{scheduler.title} (with --submit {name})", scheduler.request, scheduler.options)
    yield OptionPanel.of("Output", OutputOptions)
