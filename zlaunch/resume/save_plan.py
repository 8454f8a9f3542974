"""What a Trainer will save, when, and where, as far as its arguments and its source show; `--save`."""

import ast
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.errors import WrongUsage
from zlaunch.files import check_writable
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs
from zlaunch.job.recipes import recipe_of, saves_model_only, trainer_defaults_in
from zlaunch.job.script import ConfigInterface, Script

if TYPE_CHECKING:  # a training that starts at step 0 has no checkpoint to read
    from zlaunch.resume.resumed_data import DataPosition

OUTPUT = "--output_dir"

_IF_TOLD = ("--save_strategy", "epoch", "--save_total_limit", "2")
"""By default, recipes and their copies save the model alone; a checkpoint has seven times its bytes."""

SAVE_STEPS = 500
"""The Trainer's default of `--save_steps`."""

BYTES_PER_SECOND = 200e6
"""Speed at which a shared file system writes a checkpoint, at least."""
UNKNOWN_SAVE_SECONDS = 30.0

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
    resumed_step: int = 0
    """The step of the checkpoint that the run resumes from."""
    is_kept: bool = False
    """Whether `every` is that of this checkpoint, which a Trainer takes instead of `--save_steps`."""
    is_model_only: bool = False
    """Whether it certainly leaves out the state of the training, so that nothing resumes from one."""
    each: int | None = None
    """The bytes of one; None if they cannot be estimated."""
    free: int | None = None
    """The bytes that are free on the disk."""

    @property
    def seconds(self) -> float:
        """Estimate how long the first save takes."""
        return UNKNOWN_SAVE_SECONDS if self.each is None else self.each / BYTES_PER_SECOND

    @property
    def count(self) -> int | None:
        """How many this run saves, the last at its end; None if that is not known before the start."""
        if not self.every or not self.total or self.total <= self.resumed_step:
            return None
        return math.ceil(self.total / self.every) - self.resumed_step // self.every

    @property
    def most(self) -> int | None:
        """How many are on the disk at once: the oldest is deleted when the newest is complete."""
        if not self.limit:
            return self.count
        return self.limit + 1 if self.count is None else min(self.count, self.limit + 1)

    def is_at(self, step: int) -> bool:
        """Whether a checkpoint of a step will certainly be saved."""
        if not self.every or not self.total:
            return False
        is_last = step == self.total
        return (is_last or step % self.every == 0) and self.resumed_step < step <= self.total


def plan_saves(script: Script, args: ScriptArgs, resume: "DataPosition | None") -> SavePlan | None:
    """Read when a Trainer saves; None if it saves no checkpoints, or the script has no Trainer."""
    is_trainer = script.interface is ConfigInterface.TRAINER or script.sets_where_it_saves
    if not is_trainer or _saves_none(script, args):
        return None
    strategy, total = script.said(args, "save_strategy", "steps") or "", total_steps(script, args)
    limit = number(script.said(args, "save_total_limit", "0"))
    plan = SavePlan(
        directory=script.output_dir(args).absolute(),
        strategy=strategy,
        limit=None if limit is None else int(limit),
        resumed_step=0 if resume is None else resume.resumption.saved.step or 0,
        is_model_only=_saves_model_only(script, args),
    )
    if strategy != "steps":
        return plan
    every = steps_of(script.said(args, "save_steps", str(SAVE_STEPS)), total)
    kept = None if resume is None else resume.kept_arguments.get("save_steps")
    return replace(plan, every=kept or every, total=total, is_kept=kept not in (None, every))


def saves_if_told(script: Script) -> bool:
    """Whether its Trainer saves no checkpoints by default, as that of a recipe and of its copies."""
    recipe = recipe_of(script.path)
    if recipe is not None:
        return recipe.saves_model_only
    if not script.takes_trainer_args or "save_strategy" not in script.source:
        return False
    try:
        return saves_model_only(trainer_defaults_in(ast.parse(script.source)))
    except (SyntaxError, ValueError, RecursionError):
        return False


def _saves_none(script: Script, args: ScriptArgs) -> bool:
    given = script.trainer_flags(args).value("save_strategy")
    if given is None:
        return _SAVES_NOTHING.search(script.source) is not None
    return given == "no"


def _saves_model_only(script: Script, args: ScriptArgs) -> bool:
    if (is_on := script.trainer_flags(args).is_on("save_only_model")) is not None:
        return is_on
    return script.said(args, "save_only_model", "False") == "True"


def total_steps(script: Script, args: ScriptArgs) -> int | None:
    """Read `--max_steps`; None if it is not known, or the epochs end the training."""
    total = number(script.said(args, "max_steps", "-1"))
    return int(total) if total else None


def steps_of(text: str | None, total: int | None) -> int | None:
    """Read an interval in steps, or below 1 in shares of all; None if it is not known."""
    steps = number(text)
    if not steps:
        return None
    if steps >= 1:
        return round(steps)
    return math.ceil(total * steps) if total else None


def number(text: str | None) -> float | None:
    """Read a number, a negative one as 0; None if it is not known."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None


def save_arguments(directory: str, typed: ScriptArgs, script: Script) -> tuple[str, ...]:
    """Return the arguments that tell a script the directory of `--save`; those of the user come after them.

    Raise WrongUsage if the script is not known to take any, or the user named another directory, Unavailable
    if the directory cannot be written.
    """
    if (given := typed.value(OUTPUT)) is not None:
        raise WrongUsage(
            f"`--save {directory}` and `{OUTPUT} {given}` both name a directory", "keep one of them"
        )
    is_told = saves_if_told(script)
    flag = script.save_flag
    if is_told or (script.takes_trainer_args and not flag):
        flag = OUTPUT
    if flag == OUTPUT:  # what a script does with another argument is unknown
        check_writable(Path(directory), "--save")
    if is_told:
        return (OUTPUT, directory, *_IF_TOLD)
    if flag:
        return (flag, directory)
    raise WrongUsage(
        f"`--save {directory}`: {script.path.name} has no known argument for the directory to save to",
        "pass its own argument for this after `--`",
    )
