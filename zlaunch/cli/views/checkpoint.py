"""Formatting shared by the commands of `zlaunch checkpoint`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from zlaunch import files
from zlaunch.checkpoint.summary import Summary
from zlaunch.checkpoint.verify import Problem
from zlaunch.console import paragraph, visible
from zlaunch.units import plural, size

HEADER = ("checkpoint", "step", "written by", "ZeRO", "ranks", "type", "size", "state")


def table(summaries: Sequence[Summary]) -> Iterator[tuple[str, ...]]:
    """Write a row for each checkpoint."""
    yield HEADER
    for one in summaries:
        yield (
            shown(one.checkpoint.folder),
            _or_dash(one.step),
            one.checkpoint.saved_by.value,
            _or_dash(one.stage),
            _or_dash(one.ranks),
            _short(one.dtype),
            size(one.nbytes),
            state(one),
        )


def taken(given: Path, one: Summary) -> Iterator[str]:
    """Say which checkpoint was taken from a directory of several; nothing if it is the one that was named."""
    folder = one.checkpoint.folder
    if folder != given:
        which = "newest" if one.problems else "newest complete"
        yield from paragraph(f"using {shown(folder)}, the {which} checkpoint in {shown(given)}")


def facts(one: Summary) -> Iterator[tuple[str, str]]:
    """Describe a checkpoint, a row for each fact."""
    yield "checkpoint", shown(one.checkpoint.folder)
    yield "written by", one.checkpoint.saved_by.value
    if one.release:
        yield "DeepSpeed", visible(one.release)
    numbers = {"step": one.step, "ZeRO stage": one.stage, "ranks": ranks(one), "type": one.dtype}
    for name, value in numbers.items():
        yield name, "unknown" if value is None else str(value)
    if one.num_parameters:
        yield "parameters", f"{one.num_parameters:,}"
    yield "optimizer", "yes" if one.has_optimizer else "no"
    yield "size", size(one.nbytes)
    yield "state", state(one)


def ranks(one: Summary) -> str | None:
    """Say on how many ranks it was saved."""
    if one.ranks is None:
        return None
    if (one.model_ranks or 1) > 1:
        return f"{one.ranks}, {one.model_ranks} of model parallelism each"
    return str(one.ranks)


def state(one: Summary) -> str:
    """Say whether it is complete."""
    if one.problems:
        return plural(len(one.problems), "problem")
    return "unknown layout" if one.unknown else "complete"


def problem_lines(problems: Sequence[Problem], base: Path) -> list[str]:
    """Write each problem with its file, as seen from the checkpoint."""
    return [f"{_inside(one.file, base)}: {one.message}" for one in problems]


def members(one: Summary) -> dict[str, object]:
    """List the JSON members of a checkpoint."""
    return {
        "directory": str(one.checkpoint.folder.absolute()),
        "saved_by": one.checkpoint.saved_by.value,
        "tag": one.checkpoint.tag,
        "step": one.step,
        "stage": one.stage,
        "ranks": one.ranks,
        "model_ranks": one.model_ranks,
        "dtype": one.dtype,
        "parameters": one.num_parameters,
        "optimizer": one.has_optimizer,
        "deepspeed": one.release,
        "bytes": one.nbytes,
        "complete": not one.problems and not one.unknown,
        "problems": list(map(problem_members, one.problems)),
        "unknown_layout": list(map(problem_members, one.unknown)),
    }


def problem_members(one: Problem) -> dict[str, str]:
    """List the JSON members of a problem."""
    return {"file": str(one.file), "message": one.message}


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
