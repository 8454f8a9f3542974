"""Check what a Trainer will save: whether it can be loaded, and whether it can be written."""

from collections.abc import Iterator
from pathlib import Path

from zlaunch.checkpoint.engine_files import OFFLOADED
from zlaunch.checkpoint.find import SavedBy, find, step_in
from zlaunch.checkpoint.pattern_path import SPECIAL
from zlaunch.config.rules.trainer import no_gathered_weights
from zlaunch.config.rules.zero_stages import HAD_ANYWAY
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import Finding, Severity
from zlaunch.files import shown, typed, why_not_writable
from zlaunch.job.script import ConfigInterface, Handover
from zlaunch.resume.save_plan import SavePlan
from zlaunch.resume.training import PlannedTraining
from zlaunch.units import listed


def check_saves(training: PlannedTraining) -> Iterator[Finding]:
    """Find everything that is wrong with what a Trainer will save."""
    if training.script.interface is not ConfigInterface.TRAINER:
        return  # its source says where it saves, and no argument can change that
    named = _named_directory(training)
    if named is not None:
        yield from _unwritable(named)  # it creates the directory even if it saves nothing
    if training.saves is not None:
        yield from _not_loadable(training)
        if named is not None:
            yield from _pattern(training, named)
        yield from _nvme_saved_before(training, training.saves)
        yield from _saved_over(training, training.saves)


def _named_directory(training: PlannedTraining) -> Path | None:
    """Return the directory that the command line names; None if only the script knows it."""
    named = training.args.value("output_dir")
    return Path(named) if named else None


def _unwritable(named: Path) -> Iterator[Finding]:
    if (reason := why_not_writable(named)) is not None:
        yield Finding(
            "output-unwritable",
            f"`--output_dir {named}`: {reason}",
            "name another directory",
            severity=Severity.FAILS_LATER,
        )


def _not_loadable(training: PlannedTraining) -> Iterator[Finding]:
    """Find a Trainer whose `save_model` writes no weights that `from_pretrained` loads."""
    script = training.script
    if training.stage != 3 or not script.is_sure or script.handover is Handover.NOT:
        return
    if True not in [training.config[(ZERO, name)] for name in HAD_ANYWAY]:
        yield Finding(
            no_gathered_weights.code,
            "at stage 3 `save_model` writes a partitioned checkpoint, not a model that can be loaded",
            f"`--set {ZERO}.{HAD_ANYWAY[0]}=true`, or `zlaunch checkpoint export` afterwards",
            severity=Severity.ADVICE,
        )


def _pattern(training: PlannedTraining, named: Path) -> Iterator[Finding]:
    place = str(named.absolute())
    if not SPECIAL.search(place):
        return
    severity, effect = Severity.ADVICE, "`--resume` may find no checkpoint in it"
    if training.args.is_on("load_best_model_at_end") and "[" in place:
        # A `*` also matches itself, `[x]` does not.
        severity, effect = Severity.FAILS_LATER, "`--load_best_model_at_end` fails"
    yield Finding(
        "output-is-pattern",
        f"`--output_dir {named}`: DeepSpeed takes `[`, `]`, `*` and `?` in the path of a checkpoint for a "
        f"pattern, so {effect}",
        "name a directory without these characters",
        severity=severity,
    )


def _nvme_saved_before(training: PlannedTraining, saves: SavePlan) -> Iterator[Finding]:
    """Find checkpoints over which a job with its optimizer on NVMe would have to save.

    `save_checkpoint` copies the swap files with `copytree`, which fails if their directory is there.
    """
    if training.stage != 3 or training.offload != "nvme":
        return
    for folder in sorted(saves.directory.glob(f"checkpoint-*/*/{OFFLOADED}")):
        checkpoint = folder.parent.parent
        if (step := step_in(checkpoint.name)) is not None:
            yield Finding(
                "nvme-saved-before",
                f"{shown(checkpoint)} has an optimizer on NVMe, which DeepSpeed cannot overwrite",
                f"use another directory, or resume from it: `--resume {typed(checkpoint)} --offload cpu "
                "--allow-reshard`",
                severity=Severity.FAILS_LATER if saves.is_at(step) else Severity.ADVICE,
            )


def _saved_over(training: PlannedTraining, saves: SavePlan) -> Iterator[Finding]:
    """Find checkpoints that will be saved over; of more ranks or another stage, other files stay."""
    is_partitioned = training.stage == 3
    whole: list[Path] = []
    for checkpoint in find(saves.directory):
        files, step = checkpoint.engine_files(), checkpoint.named_step
        if files is None or step is None or not saves.is_at(step):
            continue
        ranks, has_whole = len({dp for dp, _ in files.optim}), any(dp is None for dp, _ in files.model)
        if ranks > training.world_size or has_whole == is_partitioned:
            yield Finding(
                "mixed-checkpoint",
                f"this job will overwrite {shown(checkpoint.folder)}, which other ranks or another stage "
                "saved: some of its files will stay, so it will not be complete",
                f"use another directory, or move it away: `mv {typed(checkpoint.folder)} DIR`",
                severity=Severity.ADVICE,
            )
        elif checkpoint.saved_by is SavedBy.TRAINER:
            whole.append(checkpoint.folder)
    if whole:
        names = listed([shown(folder) for folder in whole], 3)
        yield Finding(
            "overwrites-checkpoints",
            f"this job will overwrite {names}",
            "use another directory, or move away what you want to keep",
            severity=Severity.ADVICE,
        )
