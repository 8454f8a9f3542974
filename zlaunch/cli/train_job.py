"""What `zlaunch train` does with its options."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zlaunch import console
from zlaunch.cli import submission
from zlaunch.cli.job_command import told_by_file, typed_args
from zlaunch.cli.job_options import ConfigOptions
from zlaunch.cli.option_table import members, read
from zlaunch.cli.train_options import OutputOptions
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.plan_view import PlanView
from zlaunch.cli.ways_to_notify import check_notify
from zlaunch.errors import ExitStatus, WrongUsage
from zlaunch.hosts.cluster.started_by import Member
from zlaunch.hosts.machine.interpreter import find_module_in
from zlaunch.job.args import ScriptArgs, ds_config_of
from zlaunch.job.recipes import default_recipe, recipe_named
from zlaunch.job.script import RESUME
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec, PreemptOptions, RestartPolicy, RunOptions, script_path
from zlaunch.launch.ask import show_help
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.no_ssh import as_member, commands
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.preflight import show_plan
from zlaunch.launch.prepare import prepare
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.surroundings import find_surroundings


def start(context: Any, given: Mapping[str, Any]) -> int:
    """Start the job of a command line, submit it, or show it; return the exit status."""
    job = job_of(context, given)
    node_rank, output = given["node_rank"], read(OutputOptions, given)
    if node_rank is not None and not given["no_ssh"]:
        raise WrongUsage("`--node-rank` has no effect without `--no-ssh`", "add `--no-ssh`")
    if _asks_for_help(job):
        return show_help(job)
    for how in output.notify or ():
        check_notify(how)
    view = PlanView(as_json=output.as_json, full=output.full)
    launch = LaunchOptions(
        interactive=console.is_interactive(),
        auto_stage=given["stage"] == "auto",
        **members(LaunchOptions, given),
    )
    submission.check_options(given, job)
    if given["check"]:
        from zlaunch.cli.check_script import check_first  # few jobs are checked

        if (answer := check_first(job)) is not ExitStatus.OK:
            return answer
    if given["submit"] is not None:
        from zlaunch.cli.submit_job import submit_job  # only a scheduler needs it

        words = submission.split_words(job.asked or sys.argv, context.command, given["submit"])
        return submit_job(given, job, words, launch, view)
    if given["no_ssh"] and node_rank is None:
        _show_commands(job, output, view)
        return 0
    if output.share:
        submission.note_shared_secrets(job, view)
    if output.dry_run:
        show_plan(_inspected(job, given, launch, view), launch, view)
        return 0
    from zlaunch.cli.run_job import run_job  # a dry run needs none of what runs a job

    return run_job(
        lambda reporter: _inspected(job, given, launch, reporter),
        launch,
        as_json=output.as_json,
        ways=output.notify or (),
    )


def _inspected(job: JobSpec, given: Mapping[str, Any], launch: LaunchOptions, view: PlanReporter) -> JobFacts:
    chosen: Member | None = None
    if given["node_rank"] is not None:
        job, chosen = as_member(job, given["node_rank"])
    surroundings = find_surroundings(
        os.environ,
        given["join_timeout"],
        view,
        launch.dry_run,
        chosen=chosen,
        on=given["on"],
        is_offline=given["offline"],
    )
    return prepare(job, launch, view, surroundings)


def job_of(context: Any, given: Mapping[str, Any]) -> JobSpec:
    """Read the options of a job; most are fields of the same name."""
    typed = typed_args(context)
    script = _script_file(given["script"], given["module"], given["python"])
    args, ds_config = ds_config_of(typed, given["ds_config"], _switches_of(script, typed))
    _check_resume(given, args.value(RESUME))
    policy = RestartPolicy(**members(RestartPolicy, given))
    preempt = PreemptOptions(**members(PreemptOptions, given))
    config_flags: tuple[str, ...] = ()
    if args != typed:  # it named a ds_config
        config_flags = typed.config_flags
    read_otherwise: dict[str, Any] = {
        "script": script,
        "args": args,
        **read(ConfigOptions, given).job_members,
        "ds_config": ds_config,
        "env": tuple(given["env"] or ()),
        "may_ask": not given["no_ask"],
        "has_no_ask": True,
        "is_to_start": not given["dry_run"],
        "config_flags": config_flags,
        "run_options": RunOptions(policy=policy, preempt=preempt, **members(RunOptions, given)),
    }
    return JobSpec(**{**members(JobSpec, given), **read_otherwise, **told_by_file(context)})


def _switches_of(script: Path, typed: ScriptArgs) -> frozenset[str]:
    """Return the switches of a script, if one of them may be taken for a flag with a ds_config."""
    if typed.value("deepspeed") is None or not script.is_file():
        return frozenset()
    return read_script(script).switches


def _check_resume(given: Mapping[str, Any], resumed: str | None) -> None:
    resume = given["resume"]
    if resume is not None and resumed:
        raise WrongUsage(f"`--resume {resume}` and `{RESUME} {resumed}` both name a checkpoint", "keep one")
    if given["allow_reshard"] and resume is None:
        instead = "`--resume DIR` too"
        if resumed:
            instead = f"`--resume {resumed}` instead of `{RESUME} {resumed}`"
        raise WrongUsage("`--allow-reshard` converts only what `--resume` names", f"write {instead}")


def _asks_for_help(job: JobSpec) -> bool:
    """Whether a script would show its help; `-h` among others may be an argument that it defines."""
    if not {"--help", "-h"} & {*job.args.words}:
        return False
    source = read_script(job.script).source  # a file of another kind is an error
    defines_h = "'-h'" in source or '"-h"' in source
    return "--help" in job.args.words or job.args.words[-1] == "-h" or not defines_h


def _script_file(script: str | None, module: str | None, python: Path | None) -> Path:
    if module is not None:
        return find_module_in(python, module)
    if script is None:
        return default_recipe()
    return recipe_named(script) or script_path(script)


def _show_commands(job: JobSpec, output: OutputOptions, view: PlanReporter) -> None:
    submission.note_secrets(job, "is not shown: type it in its place", view)
    lines = list(commands(job, job.asked or sys.argv))
    if output.as_json:
        console.data(to_json([{"host": name, "command": typed} for name, typed in lines]))
        return
    for name, typed in lines:
        console.data(f"# on {name}", typed)
