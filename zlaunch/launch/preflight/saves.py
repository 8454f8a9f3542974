"""What a Trainer will save, when, and how much of the disk that takes over the whole run."""

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from zlaunch.config.rules.trainer import no_gathered_weights
from zlaunch.config.rules.zero_stages import HAD_ANYWAY
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import Finding, Severity
from zlaunch.files import nearest, shown
from zlaunch.job.script import ConfigInterface, Handover, Script
from zlaunch.job.trainer_args import flags
from zlaunch.launch.facts import default_recipe
from zlaunch.launch.plan import LaunchPlan
from zlaunch.units import plural, size

SAVE_STEPS = 500
"""The Trainer's default of `--save_steps`."""

_WHEN = {"epoch": "after each epoch", "best": "when the metric is best"}


@dataclass(frozen=True, slots=True)
class SavePlan:
    """When a Trainer saves a checkpoint, and how many of them there are."""

    directory: Path
    when: str
    """In words: `every 500 steps`."""
    count: int | None
    """Over the whole run; None if it is not known before the start."""
    limit: int | None
    """How many are kept; None for all."""

    @property
    def most(self) -> int | None:
        """How many are on the disk at once: the oldest is deleted when the newest is complete."""
        kept = None if self.limit is None else self.limit + 1
        return min((one for one in (self.count, kept) if one is not None), default=None)


def plan_saves(script: Script, argv: Sequence[str], saves: bool) -> SavePlan | None:
    """Read when a Trainer saves from its arguments; None unless it `saves` checkpoints."""
    if script.interface is not ConfigInterface.TRAINER or not saves:
        return None
    said = _Arguments(script, argv)
    strategy = said.text("save_strategy", "steps")
    when, count = _WHEN.get(strategy, ""), None
    if strategy == "steps":
        steps, total = said.number("save_steps", SAVE_STEPS), said.number("max_steps", 0)
        if steps and steps < 1 and total:  # a share of all steps
            steps = math.ceil(total * steps)
        when = f"every {plural(round(steps), 'step')}" if steps and steps >= 1 else ""
        count = math.ceil(total / steps) if total and steps and when else None
    limit = said.number("save_total_limit", 0)
    directory = script.output_dir(argv).absolute()
    return SavePlan(directory, when or "when the script says", count, int(limit) if limit else None)


@dataclass(frozen=True)
class _Arguments:
    """Arguments of a Trainer, with its defaults, unless the source of the script may set others."""

    script: Script
    argv: Sequence[str]

    def text(self, name: str, default: str) -> str:
        given = dict(flags(self.argv)).get(name)
        is_open = self.script.reported is None and self.script.mentions(name)
        return given or ("" if is_open else default)

    def number(self, name: str, default: float) -> float | None:
        """None if it is not known."""
        with suppress(ValueError):
            return max(0.0, float(self.text(name, str(default))))
        return None


def save_note(plan: LaunchPlan, saves: SavePlan | None, checkpoint_bytes: int | None) -> str | None:
    """Say in one line what a Trainer will save; None for a script of which that is not known."""
    if plan.program.interface is not ConfigInterface.TRAINER:
        return None
    if saves is None:
        is_recipe = plan.program.path == default_recipe()
        return "nothing; `--save DIR` keeps the model" if is_recipe else "no checkpoints"
    each = "" if checkpoint_bytes is None else f", {size(checkpoint_bytes)} each"
    said = f"a checkpoint {saves.when} to {shown(saves.directory)}{each}"
    try:
        free = size(shutil.disk_usage(nearest(saves.directory)).free)
    except OSError:
        return said
    if saves.most is None:
        return f"{said}, all of them kept; {free} are free"
    how_many = f"{saves.most} in all" if saves.most == saves.count else f"at most {saves.most} at once"
    takes = "" if checkpoint_bytes is None else f": {size(saves.most * checkpoint_bytes)}"
    return f"{said}, {how_many}{takes}; {free} are free"


def check_loadable(plan: LaunchPlan, saves: SavePlan | None) -> Iterator[Finding]:
    """Find a Trainer whose `save_model` writes no weights that `from_pretrained` loads."""
    program = plan.program
    if saves is None or not program.is_sure or program.handover is Handover.NOT:
        return
    zero = (plan.values[(ZERO, name)] for name in HAD_ANYWAY)
    if plan.values[(ZERO, "stage")] == 3 and True not in zero:
        yield Finding(
            no_gathered_weights.code,
            "at stage 3 `save_model` writes a partitioned checkpoint, not a model that can be loaded",
            f"`--set {ZERO}.{HAD_ANYWAY[0]}=true`, or `zlaunch checkpoint export` afterwards",
            severity=Severity.ADVICE,
        )
