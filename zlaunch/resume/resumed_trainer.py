"""Check what a Trainer takes from its checkpoint, and what is left for it to train."""

from collections.abc import Iterator

from zlaunch.checkpoint.find import TRAINER_STATE, trainer_state
from zlaunch.errors import Finding, Severity
from zlaunch.files import typed
from zlaunch.launch.plan import LaunchPlan
from zlaunch.resume.resumption import DataPosition
from zlaunch.resume.save_plan import kept_arguments, number, steps_of, total_steps


def check_resumed_trainer(plan: LaunchPlan, resume: DataPosition) -> Iterator[Finding]:
    """Find what surprises in a Trainer that goes on from its checkpoint; nothing of it is an error."""
    if resume.is_trainer:
        yield from _kept_arguments(plan, resume)
        yield from _at_its_end(plan, resume)


def _kept_arguments(plan: LaunchPlan, resume: DataPosition) -> Iterator[Finding]:
    total = total_steps(plan.program, plan.args)
    for name, kept in kept_arguments(resume).items():
        given = plan.args.value(name)
        if steps_of(given, total) not in (None, kept):
            yield _advice(
                "kept-argument",
                f"`--{name} {given}` has no effect: the Trainer goes on with the `{name}` of the "
                f"checkpoint, which is {kept}",
                f"change `{name}` in {typed(resume.resumption.directory / TRAINER_STATE)}",
            )


def _at_its_end(plan: LaunchPlan, resume: DataPosition) -> Iterator[Finding]:
    """A Trainer looks whether it is at its end after each step, and so may take one beyond it."""
    program, args = plan.program, plan.args
    unit, name = "step", "max_steps"
    end: float | None = total_steps(program, args)
    reached: float | None = resume.resumption.saved.step
    if end is None and program.said(args, name, "") is not None:  # the epochs end it
        unit, name = "epoch", "num_train_epochs"
        end = number(program.said(args, name, "3"))
        reached = trainer_state(resume.resumption.directory).get("epoch")
    if end is not None and isinstance(reached, int | float) and reached >= end:
        yield _advice(
            "nothing-to-train",
            f"the checkpoint is at {unit} {reached:g}, and `--{name}` ends the training at {end:g}: with the "
            "same data, the Trainer takes at most one more step",
            f"raise `--{name}`",
        )


def _advice(code: str, message: str, hint: str) -> Finding:
    return Finding(code, message, hint, where="--resume", severity=Severity.ADVICE)
