"""`zlaunch train --submit`: make the request for the scheduler, and submit it or show it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zlaunch import console
from zlaunch.cli.option_table import read
from zlaunch.cli.submission import note_secrets
from zlaunch.cli.train_options import OutputOptions, SubmitOptions
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.submission import SubmitView
from zlaunch.errors import WrongUsage
from zlaunch.job.spec import GpuChoice, JobSpec
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.reporter import PlanReporter
from zlaunch.launch.schedulers import schedulers
from zlaunch.launch.submit import NodesAsked, check_elsewhere, submit
from zlaunch.launch.surroundings import imagine


def submit_job(
    given: Mapping[str, Any],
    job: JobSpec,
    words: tuple[Sequence[str], Sequence[str]],
    options: LaunchOptions,
    reporter: PlanReporter,
) -> int:
    """Check a job, and submit it or show what would be submitted; return its exit status.

    `words` are the command line on the nodes, before and behind `--`.
    """
    asked, output = read(SubmitOptions, given), read(OutputOptions, given)
    scheduler = schedulers()[given["submit"]]
    seen = "can be read in what is submitted"
    if options.dry_run:
        seen = "is not shown, but can be read in what is submitted"
    note_secrets(job, seen, reporter)
    nodes = _nodes(asked.nodes, job, given["on"])
    is_resumable = check_elsewhere(job, nodes, options, reporter, must_exist=scheduler.shares_files)
    preempt, time_limit = job.run_options.preempt, None
    if preempt.time_limit is not None:
        time_limit = round(preempt.time_limit)
    request = scheduler.request(
        words=tuple(words[0]),
        script_args=tuple(words[1]),
        name=asked.job_name or job.name,
        directory=Path.cwd(),
        run_dir=output.run_dir,
        nodes=nodes.count,
        gpus=nodes.gpus,
        env=tuple(word for word in job.env if "=" not in word),
        time_limit=time_limit,
        save_within=preempt.save_within,
        is_resumable=is_resumable,
        requeue=asked.requeue is not False,
        **{name: given[name] for name in scheduler.options},
    )
    for note in scheduler.check(request):
        reporter.note(note)
    if options.dry_run:
        text = scheduler.render(request)
        if output.as_json:
            text = to_json({"script": text})
        console.data(text.rstrip("\n"))
        return 0
    return submit(scheduler, request, SubmitView(request), detach=asked.detach)


def _nodes(count: int | None, job: JobSpec, on: str | None) -> NodesAsked:
    """Return the nodes to ask for; `--on` gives the numbers that the user did not."""
    gpus = _gpus_per_node(job.gpus)
    if on is None:
        return NodesAsked(count or 1, gpus)
    there = imagine(on)
    each = len(there.machine.gpus)
    for option, asked, allocated in (("--nodes", count, there.count), ("--gpus", gpus, each)):
        if asked not in (None, allocated):
            message = f"`{option} {asked}` and `--on {on}` contradict each other"
            raise WrongUsage(message, f"leave `{option} {asked}` out")
    return NodesAsked(there.count, each, there)


def _gpus_per_node(choice: GpuChoice | None) -> int | None:
    if choice is None:
        return None
    if choice.devices is not None:
        devices = ",".join(map(str, choice.devices))
        raise WrongUsage(
            f"`--gpus {devices}` names devices, but a scheduler chooses them",
            f"write `--gpus {len(choice.devices)}`",
        )
    return choice.count
