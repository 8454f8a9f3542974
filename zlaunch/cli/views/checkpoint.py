"""Formatting shared by the commands of `zlaunch checkpoint`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from zlaunch import files
from zlaunch.checkpoint.problem import Problem
from zlaunch.checkpoint.summary import Summary
from zlaunch.console import paragraph, visible
from zlaunch.units import plural, size

HEADER = ("checkpoint", "step", "written by", "ZeRO", "ranks", "type", "size", "state")


def table(summaries: Sequence[Summary]) -> Iterator[tuple[str, ...]]:
    """Write a row for each checkpoint."""
    yield HEADER
    for saved in summaries:
        yield (
            shown(saved.checkpoint.folder),
            _or_dash(saved.step),
            saved.checkpoint.saved_by.value,
            _or_dash(saved.stage),
            _or_dash(saved.ranks),
            _short(saved.dtype),
            size(saved.nbytes),
            state(saved),
        )


def taken(given: Path, saved: Summary) -> Iterator[str]:
    """Say which checkpoint was taken from a directory of several; nothing if it is the one that was named."""
    folder = saved.checkpoint.folder
    if folder != given:
        which = "newest" if saved.obstructions else "newest complete"
        yield from paragraph(f"using {shown(folder)}, the {which} checkpoint in {shown(given)}")


def facts(saved: Summary) -> Iterator[tuple[str, str]]:
    """Describe a checkpoint, a row for each fact."""
    yield "checkpoint", shown(saved.checkpoint.folder)
    yield "written by", saved.checkpoint.saved_by.value
    if saved.release:
        yield "DeepSpeed", visible(saved.release)
    numbers = {"step": saved.step, "ZeRO stage": saved.stage, "ranks": ranks(saved), "type": saved.dtype}
    for name, value in numbers.items():
        yield name, "unknown" if value is None else str(value)
    if saved.num_parameters:
        yield "parameters", f"{saved.num_parameters:,}"
    yield "optimizer", "yes" if saved.has_optimizer else "no"
    yield "size", size(saved.nbytes)
    yield "state", state(saved)


def ranks(saved: Summary) -> str | None:
    """Say on how many ranks it was saved."""
    if saved.ranks is None:
        return None
    if (saved.model_ranks or 1) > 1:
        return f"{saved.ranks}, {saved.model_ranks} of model parallelism each"
    return str(saved.ranks)


def state(saved: Summary) -> str:
    """Say whether it is complete."""
    if saved.problems:
        return plural(len(saved.problems), "problem")
    return "unknown layout" if saved.unknown else "complete"


def problem_lines(problems: Sequence[Problem], base: Path) -> list[str]:
    """Write each problem with its file, as seen from the checkpoint."""
    return [f"{_inside(problem.file, base)}: {problem.message}" for problem in problems]


def members(saved: Summary) -> dict[str, object]:
    """List the JSON members of a checkpoint."""
    return {
        "directory": str(saved.checkpoint.folder.absolute()),
        "saved_by": saved.checkpoint.saved_by.value,
        "tag": saved.checkpoint.tag,
        "step": saved.step,
        "stage": saved.stage,
        "ranks": saved.ranks,
        "model_ranks": saved.model_ranks,
        "dtype": saved.dtype,
        "parameters": saved.num_parameters,
        "optimizer": saved.has_optimizer,
        "deepspeed": saved.release,
        "bytes": saved.nbytes,
        "complete": not saved.problems and not saved.unknown,
        "problems": list(map(problem_members, saved.problems)),
        "unknown_layout": list(map(problem_members, saved.unknown)),
    }


def problem_members(problem: Problem) -> dict[str, str]:
    """List the JSON members of a problem."""
    return {"file": str(problem.file), "message": problem.message}


def shown(path: Path) -> str:
    """Write a path as a user would type it: relative if that is shorter."""
    return visible(files.shown(path))


def typed(path: Path) -> str:
    """Write a path as a word of a command that a user can copy."""
    return visible(files.typed(path))


def _inside(file: Path, base: Path) -> str:
    if file == base or not file.is_relative_to(base):
        return shown(file)
    return visible(str(file.relative_to(base)))


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _short(dtype: str | None) -> str:
    return "-" if dtype is None else dtype.replace("bfloat", "bf").replace("float", "fp")
