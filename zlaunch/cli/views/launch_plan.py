"""Plans as text."""

import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from zlaunch import console
from zlaunch.cli.views.settings_text import batch_rows, precision_words, process_text, zero_words
from zlaunch.config.resolve.autos import OpenReason, ranks_of
from zlaunch.dsconfig.batch import Size
from zlaunch.dsconfig.text.document import KeyPath, dotted
from zlaunch.files import shown
from zlaunch.hosts.machine.ports import LOOPBACK
from zlaunch.hosts.machine.resources import local_names
from zlaunch.hosts.rank_environment import Variable
from zlaunch.job.recipes import recipe_of
from zlaunch.job.script import DS_CONFIG_VARIABLE, ConfigInterface, Handover
from zlaunch.job.trainer_args import TrainerArgs
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.time_limit import limit_words
from zlaunch.resume.save_plan import SavePlan, saves_if_told, total_steps
from zlaunch.secrets import hide_arguments
from zlaunch.units import duration, plural, size, steps_text
from zlaunch.worker.hook.debug_timeouts import PATIENT

if TYPE_CHECKING:  # a job that resumes nothing needs none of it
    from zlaunch.resume.resumed_data import DataPosition


def plan_lines(plan: LaunchPlan, complete: bool) -> Iterator[str]:
    """Write a plan: a summary before a start; in a dry run all of it, with the summary at the end."""
    if complete:
        first, *details = _details(plan)
        yield from (first.lstrip("\n"), *details, "")
    yield from console.table(list(_summary(plan)), indent="")
    for finding in plan.warnings:
        yield from console.finding_lines(finding, sys.stderr)


def _summary(plan: LaunchPlan) -> Iterator[tuple[str, str]]:
    yield "job", _job(plan)
    yield "script", console.shell_line(plan.script_words[:1]) if plan.module is None else f"-m {plan.module}"
    if plan.python.executable != sys.executable:
        versions = plan.python.versions(["torch", "deepspeed"])
        words = [f"{name} {versions[name] or 'of unknown version'}" for name in versions]
        yield "python", f"{plan.python.executable} with {', '.join(words)}"
    if (source := plan.facts.surroundings.source) is not None:
        yield "within", source
    yield "ranks", _ranks(plan)
    yield from batch_rows(plan.values, _data_ranks(plan))
    for who in dict.fromkeys(plan.left.values()):
        if who != OpenReason.DATA_LOADER:  # which the batch shows
            yield "auto", f"{', '.join(key for key in plan.left if plan.left[key] == who)}: {who}"
    match plan.script.handover:
        case Handover.VARIABLE if DS_CONFIG_VARIABLE in plan.environment:  # a rerun has its record's
            yield "ds_config", f"in ${DS_CONFIG_VARIABLE}: {plan.environment[DS_CONFIG_VARIABLE].why}"
        case Handover.ACCELERATE if not plan.script.is_sure:
            yield "ds_config", "passed in accelerate's environment variables, which the Trainer also reads"
    if steps := total_steps(plan.training.script, plan.training.args):
        yield "steps", _steps(steps, plan)
    if (estimate := plan.facts.estimate) is not None and estimate.forecast.on_gpu:
        yield "memory", f"{estimate.fit.words}: {process_text(estimate)}"
    yield from _save_rows(plan)
    if plan.data_position is not None:
        yield from _resume_rows(plan.data_position)
    yield from _observed(plan)
    yield "run", os.path.relpath(plan.layout.root)


def _observed(plan: LaunchPlan) -> Iterator[tuple[str, str]]:
    if plan.debug is not None:
        waits = f"rank {plan.debug.rank} waits for a debugger on {LOOPBACK}:{plan.debug.port}"
        if plan.topology.spans_hosts:
            waits += f" of {plan.debug.host}"
        yield "debug", f"{waits}; the other ranks wait for it without a timeout"
    if (profile := plan.facts.job.profile) is not None:
        ranks = "all ranks"
        if profile.ranks is not None:
            ranks = f"rank {', '.join(map(str, profile.ranks))}"
        what, tool = ranks, "torch's profiler"
        if profile.first is not None and profile.last is not None:
            what = f"{steps_text(profile.first, profile.last)} of {ranks}"
        if profile.with_nsys:
            tool = "Nsight Systems"
        steps = total_steps(plan.training.script, plan.training.args)
        if steps is not None and profile.first is not None and steps < profile.first:
            tool += f", but the job ends after {plural(steps, 'step')}"
        yield "profile", f"{what}, with {tool}"


def _data_ranks(plan: LaunchPlan) -> Size | None:
    """Count the ranks that divide the global batch; None if only the script knows."""
    if OpenReason.GROUPS in plan.left.values() or not plan.values.leaves:
        return None
    return ranks_of(plan.values, plan.facts.context(TrainerArgs()).context)


def _save_rows(plan: LaunchPlan) -> Iterator[tuple[str, str]]:
    if plan.script.interface is ConfigInterface.TRAINER or plan.saves is not None:
        yield "saves", _saves(plan)
    if plan.limit is not None:
        training = plan.training
        save = None if training.save_directory is None else training.save_seconds
        yield "limit", limit_words(plan.limit, save)


def _job(plan: LaunchPlan) -> str:
    program = plan.script
    if program.interface is ConfigInterface.NONE:
        if not program.without_deepspeed:
            return "no DeepSpeed"
        return f"no DeepSpeed: the script trains with {program.without_deepspeed}"
    if program.own_config is not None:
        its_own = f"the ds_config of the script itself ({program.own_config.where})"
        return f"{its_own}: {zero_words(plan.values)}" if plan.values.leaves else its_own
    precision = "precision of the script"
    if plan.precision is not None:
        precision = precision_words(plan.precision, plan.values)
    if plan.precision == "bf16" and plan.facts.machine.best_precision == "fp32":
        device = plan.facts.machine.device
        precision = f"bf16 on {device}: `--precision fp32` is many times as fast"
    words = f"{zero_words(plan.values)}, {precision}"
    return words if program.is_sure else f"{words}, if the script takes this ds_config"


MOST_NAMES: Final = 3
"""Names of hosts with the same devices that are all written."""

_WHEN = {"epoch": "after each epoch", "best": "when the metric is best"}


def _saves(plan: LaunchPlan) -> str:
    saves = plan.saves
    if saves is None:
        recipe = recipe_of(plan.script.path)
        if recipe is not None and recipe.saves_model_only:
            return "the model at the end; `--save DIR` adds checkpoints"
        if saves_if_told(plan.script) and not plan.facts.job.save:
            return "no checkpoints; `--save DIR` adds them"
        return "no checkpoints"
    when = _WHEN.get(saves.strategy, "when the script says")
    if saves.every:
        when = f"every {plural(saves.every, 'step')}"
        if saves.is_kept:
            when += ", as in the checkpoint,"
        if saves.total and saves.count == 1:
            when = f"after the last step ({saves.total})"
    what = "the model alone" if saves.is_model_only else "a checkpoint"
    words = f"{what} {when} to {shown(saves.directory)}"
    if saves.each is not None:
        words += f", {size(saves.each)} each"
    elif plan.facts.estimate is None and plan.facts.resumption is None:
        words += ", of unknown size (`--rehearse` finds it)"
    words += _how_many(saves)
    if saves.free is not None:
        words += f"; {size(saves.free)} are free"
    if saves.is_model_only:
        words += "; no job can resume from it: leave out `--save_only_model`"
    return words


def _how_many(saves: SavePlan) -> str:
    if saves.count == 1:
        return ""
    if saves.most is None:
        return ", all of them kept" if saves.limit == 0 else ""
    how_many = f", at most {saves.most} at once"
    if saves.limit is not None and saves.most == saves.count:
        how_many = f", {saves.most} in all"
    if saves.each is not None:
        how_many += f": {size(saves.most * saves.each)}"
    return how_many


def _resume_rows(position: "DataPosition") -> Iterator[tuple[str, str]]:
    yield "resume", _resumed(position)
    if (conversion := position.resumption.conversion) is not None:
        takes = f"to {shown(conversion.folder)}, about {size(conversion.disk.peak)} of disk"
        yield "convert", f"before the start, {takes}: {'; '.join(conversion.reasons)}"


def _resumed(position: "DataPosition") -> str:
    saved, seen, skipped = position.resumption.saved, position.seen, position.skipped
    at = f"{shown(saved.checkpoint.folder)}, step {saved.step}"
    if not position.is_trainer:
        return f"{at}; the script decides where its data continues"
    if position.ignores:
        return f"{at}; with `--ignore_data_skip`, the data of this epoch is seen again"
    if seen is None or skipped is None:
        return f"{at}; the Trainer skips the data of these steps"
    if skipped == seen:
        return f"{at}; the Trainer skips the {plural(seen, 'sample')} that it has seen"
    if skipped < seen:
        return (
            f"{at}; the batch is smaller, so the Trainer skips {skipped} of the {plural(seen, 'sample')} "
            f"that it has seen: {seen - skipped} are seen again"
        )
    return (
        f"{at}; the batch is larger, so the Trainer skips {plural(skipped, 'sample')}, but has seen {seen}: "
        f"{skipped - seen} are never seen"
    )


def _ranks(plan: LaunchPlan) -> str:
    count = plural(plan.topology.world_size, "rank")
    if plan.accelerator == "cpu" and not plan.topology.spans_hosts:
        without = f"{count} on the CPU: {plan.facts.machine.why_cpu}"
        if plan.script.interface is ConfigInterface.NONE:
            return without
        return f"{without}, so DeepSpeed's CPU accelerator is used"
    kind = "GPU" if plan.accelerator == "cuda" else "slot"
    hosts = plan.topology.hosts
    alike: dict[tuple[int, ...], list[str]] = {}
    for host in hosts:
        alike.setdefault(tuple(host.devices), []).append(host.name)
    groups = (f"{_names(names)} {kind} {', '.join(map(str, devices))}" for devices, names in alike.items())
    return f"{count} on {plural(len(hosts), 'host')}: {'; '.join(groups)}"


def _names(names: Sequence[str]) -> str:
    """Write the names of hosts; of many, the first and the last."""
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{names[0]} to {names[-1]}, {len(names)} with"


def _steps(total: int, plan: LaunchPlan) -> str:
    """Write the number of steps, and how long they may take where the speed of the GPU is known."""
    estimate = plan.facts.estimate
    if estimate is None or estimate.speed is None:
        return str(total)
    best, worst = (duration(total * seconds) for seconds in estimate.speed.roofline.likely)
    return f"{total}, in {best} to {worst}"


def _details(plan: LaunchPlan) -> Iterator[str]:
    if plan.values.leaves:
        yield "\nds_config, with the source of each value"
        yield from console.notes(list(_section_lines(plan, plan.values.config())))
    if plan.ds_config != plan.values:
        yield 'what the script decides is "auto" in the file, and the Trainer fills it in'
    if plan.args.words:
        yield "\narguments of the script, with the source of each"
        rows = [(console.shell_line(hide_arguments(words)), source) for words, source in plan.args.sources()]
        yield from console.notes(rows)
    command = f"\ncommand for {plan.launcher}"
    if len(plan.topology.hosts) > 1:
        command += f" on {plan.topology.hosts[0].name}"
    if plan.script.handover is not Handover.NOT:
        command += "; the ds_config is written when the job starts"
    yield command
    yield from console.command_lines(hide_arguments(plan.argv))
    yield "\nchanges to the environment of every rank"
    variables = dict(plan.environment)
    if plan.debug is not None:
        why = "`--debug`: the ranks wait for each other"
        variables |= {name: Variable(value, why) for name, value in PATIENT.items()}
    yield from console.notes([(f"{name}={v.shown(name)}", v.why) for name, v in variables.items()])
    if len(plan.topology.hosts) > 1 or plan.accelerator == "cuda":
        yield "\nranks"
        header = ("rank", "host", "LOCAL_RANK", "device")
        slots = [(str(s.rank), s.host, str(s.local_rank), str(s.device)) for s in plan.topology.slots()]
        yield from console.table([header, *slots])
    if plan.ops:
        yield "\nnative ops, compiled if missing"
        yield from console.table([(op.name, op.why) for op in plan.ops])


def _section_lines(
    plan: LaunchPlan, section: Mapping[str, Any], path: KeyPath = ()
) -> Iterator[tuple[str, str]]:
    for key, value in section.items():
        leaf = plan.values.leaves.get((*path, key))
        indent = "  " * len(path)
        if leaf is not None:
            yield (
                f"{indent}{key} = {json.dumps(value)}",
                plan.left.get(dotted((*path, key)), str(leaf.source)),
            )
        else:
            yield f"{indent}{key}", ""
            yield from _section_lines(plan, value, (*path, key))


def attach_lines(plan: LaunchPlan, directory: str) -> Iterator[str]:
    """Write the configuration for editors that support the Debug Adapter Protocol."""
    listener = plan.debug
    if listener is None:
        return
    if listener.host not in local_names(socket.gethostname()):
        tunnel = f"ssh -N -L {listener.port}:{LOOPBACK}:{listener.port} {listener.host}"
        yield f"on the machine of your editor, keep this tunnel open: `{tunnel}`"
    name = plan.module or plan.script_words[0].rpartition("/")[2]
    yield "paste into `configurations` of .vscode/launch.json, which nvim-dap reads too:"
    configuration = {
        "name": f"zlaunch: rank {listener.rank} of {name}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": LOOPBACK, "port": listener.port},
        "pathMappings": [{"localRoot": directory, "remoteRoot": directory}],
        "justMyCode": False,
        "subProcess": False,
    }
    yield from json.dumps(configuration, indent=2).splitlines()
