"""What a Trainer will save, when, and where: as far as its arguments and its source say it."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from zlaunch.checkpoint.find import trainer_state
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.resume.resumption import DataPosition

SAVE_STEPS = 500
"""The Trainer's default of `--save_steps`."""

_SAVES_NOTHING = re.compile(r"""\bsave_strategy\b[^\n,=]{0,40}=\s*["']no["']""")
"""In a script that saves nothing by default."""


@dataclass(frozen=True, slots=True)
class SavePlan:
    """When a Trainer saves checkpoints, and how many of them there are."""

    directory: Path
    strategy: str = "steps"
    """`steps`, `epoch` or `best`; empty if only the script knows it."""
    every: int | None = None
    """Steps from one to the next; None if that is not known."""
    total: int | None = None
    """Steps of the whole training; None if that is not known."""
    limit: int | None = 0
    """How many are kept, 0 for all; None if only the script knows it."""
    began: int = 0
    """The step of the checkpoint that the run goes on from."""
    is_kept: bool = False
    """Whether `every` is that of this checkpoint, which a Trainer takes instead of `--save_steps`."""
    each: int | None = None
    """The bytes of one; None if they cannot be estimated."""
    free: int | None = None
    """The bytes that are free on the disk."""

    @property
    def count(self) -> int | None:
        """How many this run saves, the last at its end; None if that is not known before the start."""
        if not self.every or not self.total or self.total <= self.began:
            return None
        return math.ceil(self.total / self.every) - self.began // self.every

    @property
    def most(self) -> int | None:
        """How many are on the disk at once: the oldest is deleted when the newest is complete."""
        kept = self.limit + 1 if self.limit else None
        return min((one for one in (self.count, kept) if one is not None), default=None)

    def is_at(self, step: int) -> bool:
        """Whether a checkpoint of a step will certainly be saved."""
        if not self.every or not self.total:
            return False
        return step % self.every == 0 and self.began < step <= self.total


def plan_saves(script: Script, args: ScriptArgs, resume: DataPosition | None) -> SavePlan | None:
    """Read when a Trainer saves; None if it saves no checkpoints, or the script has no Trainer."""
    given = script.trainer_flags(args).value("save_strategy")
    saves_none = bool(_SAVES_NOTHING.search(script.source)) if given is None else given == "no"
    if script.interface is not ConfigInterface.TRAINER or saves_none:
        return None
    strategy = script.said(args, "save_strategy", "steps") or ""
    total, began = total_steps(script, args), 0
    every = steps_of(script.said(args, "save_steps", str(SAVE_STEPS)), total)
    kept = None
    if resume is not None:
        kept = kept_arguments(resume).get("save_steps")
        began = resume.resumption.saved.step or 0
    limit = number(script.said(args, "save_total_limit", "0"))
    return SavePlan(
        directory=script.output_dir(args).absolute(),
        strategy=strategy,
        every=(kept or every) if strategy == "steps" else None,
        total=total if strategy == "steps" else None,
        limit=None if limit is None else int(limit),
        began=began,
        is_kept=kept not in (None, every),
    )


def kept_arguments(resume: DataPosition) -> dict[str, int]:
    """Read the arguments that a resumed Trainer takes from its checkpoint.

    `_init_training_state` of transformers loads the whole state, in which they are, and only warns.
    """
    state = trainer_state(resume.resumption.directory) if resume.is_trainer else {}
    names = ("save_steps", "logging_steps", "eval_steps")
    return {name: value for name in names if isinstance(value := state.get(name), int) and value > 0}


def total_steps(script: Script, args: ScriptArgs) -> int | None:
    """Read `--max_steps`; None if it is not known, or the epochs end the training."""
    total = number(script.said(args, "max_steps", "-1"))
    return int(total) if total else None


def steps_of(text: str | None, total: int | None) -> int | None:
    """Read an interval in steps, or below 1 in shares of all; None if it is not known."""
    steps = number(text)
    if steps is not None and 0 < steps < 1:
        steps = math.ceil(total * steps) if total else None
    return round(steps) if steps else None


def number(text: str | None) -> float | None:
    """Read a number, a negative one as 0; None if it is not known."""
    try:
        found = float(text or "")
    except ValueError:
        return None
    return max(0.0, found) if math.isfinite(found) else None
