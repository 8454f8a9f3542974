"""`zlaunch train`: plan a job, show the plan, run it."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from zlaunch import console
from zlaunch.cli import options, submission
from zlaunch.cli.job_command import told_by_file, typed_args
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.launch import LaunchView
from zlaunch.cli.views.run import members
from zlaunch.errors import WrongUsage
from zlaunch.hosts.machine.interpreter import find_module_in
from zlaunch.job.args import ds_config_of
from zlaunch.job.recipes import recipe_named
from zlaunch.job.script import RESUME
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import (
    STAGES,
    JobSpec,
    PreemptOptions,
    RestartPolicy,
    RunOptions,
    parse_debug,
    parse_duration,
    parse_gpus,
    parse_offload,
    parse_override,
)
from zlaunch.launch.ask import show_help
from zlaunch.launch.facts import default_recipe
from zlaunch.launch.no_ssh import as_member, commands
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.prepare import prepare
from zlaunch.launch.run import run
from zlaunch.launch.surroundings import find_surroundings
from zlaunch.runs.store import load_run


def train(
    context: typer.Context,
    script: Annotated[
        str | None,
        typer.Argument(
            metavar="SCRIPT [-- SCRIPT ARGS]",
            help="Training script or recipe (default: a small language model).",
            autocompletion=options.completed("scripts"),
        ),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(
            "--module", "-m", metavar="NAME", help="Run a module instead of a script, like `python -m`."
        ),
    ] = None,
    python: options.Python = None,
    stage: Annotated[
        Literal["0", "1", "2", "3", "auto"] | None,
        typer.Option(help="ZeRO stage (default: from --ds-config, else 2); auto: the fastest that fits."),
    ] = None,
    offload: options.Offload = None,
    nvme: options.Nvme = None,
    precision: options.Precision = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="N|LIST", help="Number of GPUs, or their numbers: 2 or 0,2 (default: all)."),
    ] = None,
    launcher: Annotated[
        Literal["torchrun", "deepspeed", "openmpi"] | None,
        typer.Option(help="Launcher (default: torchrun; deepspeed if the script wants --local_rank)."),
    ] = None,
    ds_config: options.DsConfig = None,
    overrides: options.Overrides = None,
    hostfile: options.Hostfile = None,
    hosts: options.Hosts = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME[=VALUE]", help="Set a variable of the ranks, on all hosts."),
    ] = None,
    no_ssh: Annotated[
        bool,
        typer.Option("--no-ssh", help="Show the command to type on each host; with --node-rank, run it."),
    ] = False,
    node_rank: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="With --no-ssh: which of the hosts this is.")
    ] = None,
    include: Annotated[
        str | None, typer.Option(metavar="HOST:SLOTS", help="Use only these slots: w0@w1:0,2.")
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(metavar="HOST:SLOTS", help="Use all slots except these.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|latest|RUN",
            help="Resume from a checkpoint: a directory, `latest` (newest of this job), or a run.",
            autocompletion=options.completed("resumed"),
        ),
    ] = None,
    allow_reshard: Annotated[
        bool,
        typer.Option(
            "--allow-reshard", help="Convert the checkpoint of --resume if ranks, stage or offload differ."
        ),
    ] = False,
    save: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Directory for the model and its checkpoints (of a Trainer: `--output_dir`)."
        ),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run directory (default: runs/<time>-<name>).")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start even if memory or other resources are short.")
    ] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="First run two steps of DeepSpeed on fake tensors.")
    ] = False,
    show_ranks: Annotated[
        str | None,
        typer.Option(
            metavar="RANKS",
            help="Ranks whose output to show: 0,3, all or none (default: none in a terminal, else 0).",
        ),
    ] = None,
    on_stall: Annotated[
        Literal["report", "stop"], typer.Option(help="What to do when no rank makes progress.")
    ] = "report",
    stall_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=1.0, help="Seconds without progress before a run counts as stalled."
        ),
    ] = 60.0,
    max_restarts: Annotated[
        int,
        typer.Option(
            min=0, help="Number of restarts after failures that may not recur, such as a lost rank."
        ),
    ] = 0,
    on_oom: Annotated[
        Literal["stop", "retry"],
        typer.Option(help="When memory runs out; retry: use less memory, with the same global batch."),
    ] = "stop",
    on_nan: Annotated[
        Literal["report", "stop", "rollback"],
        typer.Option(
            help="When the loss stays NaN; rollback: resume from the newest checkpoint that was saved before."
        ),
    ] = "report",
    on_preempt: Annotated[
        Literal["save", "stop"] | None,
        typer.Option(
            help="What SIGTERM does (default: save under Slurm and Kubernetes, else stop); SIGUSR1 saves.",
            show_default=False,
        ),
    ] = None,
    save_within: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1.0,
            help="Time to save and stop (default: 25 after SIGTERM, otherwise 300).",
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Save and stop before this time is over, that of the job with --submit: 3:30:00 or 90m.",
        ),
    ] = None,
    debug: Annotated[
        str | None,
        typer.Option(metavar="RANK[:PORT]", help="Make a rank wait for a debugger (default port: 5678)."),
    ] = None,
    no_ask: Annotated[
        bool,
        typer.Option("--no-ask", help="Do not run the script to find out its arguments."),
    ] = False,
    join_timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=1.0, help="Seconds to wait for the zlaunch of every other node."),
    ] = 600.0,
    submit: submission.Submit = None,
    nodes: submission.Nodes = None,
    job_name: submission.JobName = None,
    account: submission.Account = None,
    partition: submission.Partition = None,
    gres: submission.Gres = None,
    array: submission.Array = None,
    requeue: submission.Requeue = None,
    slurm: submission.SlurmOptions = None,
    image: submission.Image = None,
    namespace: submission.Namespace = None,
    kind: submission.Kind = None,
    volume: submission.Volumes = None,
    workdir: submission.Workdir = None,
    detach: submission.Detach = False,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="GPUS",
            help="With --dry-run or --submit: plan for these GPUs, such as 2x8xH100-80GB on two hosts.",
            autocompletion=options.completed("gpus"),
        ),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="With --dry-run: ask no other host.")] = False,
    dry_run: options.DryRun = False,
    job: options.Job = None,
    as_json: options.AsJson = False,
) -> None:
    """Start a ZeRO job and monitor it to its end.

    Options that zlaunch does not know, and everything after `--`, go to the script. With --json, the
    last line of the output is an object about the run; with --dry-run, the output is the plan.
    """
    typed = typed_args(context)
    args, ds_config = ds_config_of(typed, ds_config)
    _check_resume(resume, allow_reshard, args.value(RESUME))
    program = _program(script, module, python)
    spec = JobSpec(
        script=program,
        python=python,
        args=args,
        stage=None if stage in (None, "auto") else STAGES[stage],
        offload=None if offload is None else parse_offload(offload),
        nvme_dir=None if nvme is None else nvme.absolute(),
        precision=precision,
        gpus=None if gpus is None else parse_gpus(gpus),
        launcher=launcher,
        ds_config=ds_config,
        overrides=tuple(parse_override(text) for text in overrides or ()),
        env=tuple(env or ()),
        hostfile=hostfile,
        hosts=hosts,
        include=include,
        exclude=exclude,
        module=module,
        debug=None if debug is None else parse_debug(debug),
        resume=resume,
        allow_reshard=allow_reshard,
        save=save,
        may_ask=not no_ask,
        config_flags=() if args == typed else typed.config_flags,
        wishes=RunOptions(
            show_ranks,
            on_stall,
            stall_after,
            RestartPolicy(max_restarts, on_oom, on_nan),
            PreemptOptions(
                on_preempt,
                save_within,
                None if time_limit is None else parse_duration(time_limit, "--time-limit"),
            ),
        ),
        **told_by_file(context),
    )
    if node_rank is not None and not no_ssh:
        raise WrongUsage("`--node-rank` has no effect without `--no-ssh`", "add `--no-ssh`")
    if _asks_for_help(spec):
        raise typer.Exit(show_help(spec))
    view = LaunchView(as_json=as_json)
    launch = LaunchOptions(
        interactive=console.is_interactive(),
        run_dir=run_dir,
        rehearse=rehearse,
        force=force,
        dry_run=dry_run,
        auto_stage=stage == "auto",
    )
    if submit is not None:
        submission.refuse_of_others(context.params, spec, submit)
        asked = submission.Submission(
            *(submit, nodes, time_limit, job_name, account, partition, gres, array, requeue, slurm or ()),
            *(image, namespace, kind, volume or (), workdir),
            detach,
        )
        words = submission.words_of_train(spec.asked or sys.argv)
        raise typer.Exit(
            submission.submit_job(
                asked, spec, words, run_dir, view, context.command, options=launch, on=on, as_json=as_json
            )
        )
    submission.refuse_alone(context.params, spec)
    if no_ssh and node_rank is None:
        submission.note_secrets(spec.args.words, "the commands", view)
        told = list(commands(spec, spec.asked or sys.argv))
        if as_json:
            console.data(json.dumps([{"host": name, "command": typed} for name, typed in told], indent=2))
        else:
            console.data(*(line for name, typed in told for line in (f"# on {name}", typed)))
        raise typer.Exit
    spec, chosen = (spec, None) if node_rank is None else as_member(spec, node_rank)
    surroundings = find_surroundings(
        os.environ, join_timeout, view, dry_run, chosen=chosen, on=on, is_offline=offline
    )
    status = run(prepare(spec, launch, view, surroundings), launch, view)
    if as_json and view.run is not None:
        console.data(to_json(members(load_run(view.run)), indent=None))
    raise typer.Exit(status)


def _check_resume(resume: str | None, allow_reshard: bool, given: str | None) -> None:
    if resume is not None and given:
        raise WrongUsage(f"`--resume {resume}` and `{RESUME} {given}` both name a checkpoint", "keep one")
    if allow_reshard and resume is None:
        instead = f"`--resume {given}` instead of `{RESUME} {given}`" if given else "`--resume DIR` too"
        raise WrongUsage("`--allow-reshard` converts only what `--resume` names", f"write {instead}")


def _asks_for_help(job: JobSpec) -> bool:
    """Whether a script would show its help; `-h` among others may be an argument that it defines."""
    if not {"--help", "-h"} & {*job.args.words}:
        return False
    source = read_script(job.script).source  # a file of another kind is an error
    is_own = "'-h'" in source or '"-h"' in source
    return "--help" in job.args.words or job.args.words[-1] == "-h" or not is_own


def _program(script: str | None, module: str | None, python: Path | None) -> Path:
    if module is not None:
        return find_module_in(python, module)
    if script is None:
        return default_recipe()
    return recipe_named(script) or Path(script)
