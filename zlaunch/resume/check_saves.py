"""Check what a Trainer will save: whether it can be loaded, and whether it can be written."""

import os
from collections.abc import Iterator
from pathlib import Path

from zlaunch.checkpoint.engine_files import OFFLOADED, engine_files
from zlaunch.checkpoint.find import find, step_in
from zlaunch.checkpoint.pattern_path import SPECIAL
from zlaunch.config.rules.trainer import no_gathered_weights
from zlaunch.config.rules.zero_stages import HAD_ANYWAY
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import Finding, Severity
from zlaunch.files import nearest, shown, typed
from zlaunch.job.script import ConfigInterface, Handover
from zlaunch.launch.plan import LaunchPlan
from zlaunch.resume.save_plan import SavePlan


def check_saves(plan: LaunchPlan) -> Iterator[Finding]:
    """Find everything that is wrong with what a Trainer will save."""
    if plan.program.interface is ConfigInterface.TRAINER:  # it creates the directory even if it saves nothing
        yield from _unwritable(plan)
    if plan.saves is not None:
        yield from _not_loadable(plan)
        yield from _pattern(plan)
        yield from _saved_before(plan)
        yield from _mixed(plan, plan.saves)


def _not_loadable(plan: LaunchPlan) -> Iterator[Finding]:
    """Find a Trainer whose `save_model` writes no weights that `from_pretrained` loads."""
    program = plan.program
    if not program.is_sure or program.handover is Handover.NOT:
        return
    zero = (plan.values[(ZERO, name)] for name in HAD_ANYWAY)
    if plan.values[(ZERO, "stage")] == 3 and True not in zero:
        yield Finding(
            no_gathered_weights.code,
            "at stage 3 `save_model` writes a partitioned checkpoint, not a model that can be loaded",
            f"`--set {ZERO}.{HAD_ANYWAY[0]}=true`, or `zlaunch checkpoint export` afterwards",
            severity=Severity.ADVICE,
        )


def _named(plan: LaunchPlan) -> Path | None:
    """Return the directory that the command line names; None if only the script knows it."""
    named = plan.args.value("output_dir")
    return Path(named) if named else None


def _unwritable(plan: LaunchPlan) -> Iterator[Finding]:
    """Find a directory in which nothing can be created."""
    named = _named(plan)
    if named is None:
        return
    found = nearest(named)
    is_folder = found.is_dir()
    if not is_folder or not os.access(found, os.W_OK | os.X_OK):
        said = "cannot be written" if is_folder else "is not a directory"
        yield Finding(
            "output-unwritable",
            f"`--output_dir {named}`: {os.path.normpath(found)} {said}",
            "name another directory",
            severity=Severity.FAILS_LATER,
        )


def _pattern(plan: LaunchPlan) -> Iterator[Finding]:
    """Find a directory in which DeepSpeed will not find the checkpoints that it has saved."""
    named = _named(plan)
    if named is None or not SPECIAL.search(str(named.absolute())):
        return
    # A `*` also matches itself, `[x]` does not.
    fails = bool(plan.args.is_on("load_best_model_at_end")) and "[" in str(named.absolute())
    then = "`--load_best_model_at_end` fails" if fails else "`--resume` may find no checkpoint in it"
    yield Finding(
        "output-is-pattern",
        f"`--output_dir {named}`: DeepSpeed takes `[`, `]`, `*` and `?` in the path of a checkpoint for a "
        f"pattern, so {then}",
        "name a directory without these characters",
        severity=Severity.FAILS_LATER if fails else Severity.ADVICE,
    )


def _saved_before(plan: LaunchPlan) -> Iterator[Finding]:
    """Find checkpoints over which a job with its optimizer on NVMe would have to save.

    `save_checkpoint` copies the swap files with `copytree`, which fails if their directory is there.
    """
    saves, is_swapped = plan.saves, plan.values[(ZERO, "stage")] == 3
    is_swapped &= plan.values[(ZERO, "offload_optimizer", "device")] == "nvme"
    if saves is None or not is_swapped:
        return
    for folder in sorted(saves.directory.glob(f"checkpoint-*/*/{OFFLOADED}")):
        checkpoint = folder.parent.parent
        if (step := step_in(checkpoint.name)) is not None:
            yield Finding(
                "nvme-saved-before",
                f"{shown(checkpoint)} has an optimizer of NVMe, over which DeepSpeed cannot save again",
                f"use another directory, or go on from it: `--resume {typed(checkpoint)} --offload cpu "
                "--allow-reshard`",
                severity=Severity.FAILS_LATER if saves.is_at(step) else Severity.ADVICE,
            )


def _mixed(plan: LaunchPlan, saves: SavePlan) -> Iterator[Finding]:
    """Find checkpoints of more ranks or another stage that will be saved over: their other files stay."""
    is_partitioned = plan.values[(ZERO, "stage")] == 3
    for one in find(saves.directory):
        found = None if one.engine is None else engine_files(one.engine)
        if found is None or one.named_step is None or not saves.is_at(one.named_step):
            continue
        ranks, has_whole = len({dp for dp, _ in found.optim}), any(dp is None for dp, _ in found.model)
        if ranks > plan.topology.world_size or has_whole == is_partitioned:
            yield Finding(
                "mixed-checkpoint",
                f"this job will save over {shown(one.folder)}, which other ranks or another stage have "
                "saved: some of its files will stay, so that it is not complete",
                f"use another directory, or move it away: `mv {typed(one.folder)} DIR`",
                severity=Severity.ADVICE,
            )
