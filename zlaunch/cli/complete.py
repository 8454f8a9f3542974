"""What a shell completes. It is imported only when a shell asks."""

import re
from pathlib import Path

from zlaunch.dsconfig.json_schema import catalog
from zlaunch.dsconfig.releases import ALL
from zlaunch.hosts.machine.gpu_catalog import known_gpus
from zlaunch.job.public_models import public_names
from zlaunch.job.recipes import recipe_names
from zlaunch.runs.store import LATEST_RUN, all_runs


def models(incomplete: str, _: Path | None) -> list[str]:
    """Complete a model that is bundled, or a directory."""
    return _beginning(incomplete, [*public_names(), *_directories(incomplete)])


def recipes(incomplete: str, _: Path | None) -> list[str]:
    """Complete the name of a recipe."""
    return _beginning(incomplete, recipe_names())


def scripts(incomplete: str, _: Path | None) -> list[str]:
    """Complete a recipe, a script, or a directory."""
    folder = incomplete[: incomplete.rfind("/") + 1]
    files = sorted(f"{folder}{file.name}" for file in Path(folder).glob("*.py"))
    return _beginning(incomplete, [*recipe_names(), *files, *_directories(incomplete)])


def runs(incomplete: str, directory: Path | None) -> list[str]:
    """Complete a run, the newest first, or the directory of one."""
    if directory is not None and not directory.is_dir():
        directory = None
    words = [root.name for root in all_runs(directory)]
    if words:
        words.insert(0, LATEST_RUN)
    if "/" in incomplete:
        words += _directories(incomplete)
    return _beginning(incomplete, words)


def resumed(incomplete: str, directory: Path | None) -> list[str]:
    """Complete what a training resumes from: a run, or a directory."""
    return _beginning(incomplete, [LATEST_RUN, *runs("", directory)[1:], *_directories(incomplete)])


def keys(incomplete: str, _: Path | None) -> list[str]:
    """Complete a ds_config key level by level, or its last name alone."""
    paths = [*catalog().keys]
    below = _beginning(incomplete, [path for path in paths if "." not in path[len(incomplete) :]])
    if below or "." in incomplete:
        return below
    return _beginning(incomplete, sorted({path.rpartition(".")[2] for path in paths}))


def overrides(incomplete: str, _: Path | None) -> list[str]:
    """Complete the key of `--set KEY=VALUE`; a section ends with a dot."""
    sections = {path.rpartition(".")[0] for path in catalog().keys}
    names = keys(incomplete, None)
    endings = ["." if name in sections else "=" for name in names]
    return list(map("".join, zip(names, endings, strict=True)))


def gpus(incomplete: str, _: Path | None) -> list[str]:
    """Complete the name of a GPU, with the count before it."""
    count = re.match(r"\d+[xX*]", incomplete)
    return _beginning(incomplete, [f"{count[0] if count else ''}{name}" for name in known_gpus()])


def releases(incomplete: str, _: Path | None) -> list[str]:
    """Complete a DeepSpeed release."""
    return _beginning(incomplete, [release.name for release in ALL])


def _directories(incomplete: str) -> list[str]:
    folder = incomplete[: incomplete.rfind("/") + 1]
    names = sorted(path.name for path in Path(folder).glob("*") if path.is_dir())
    return [f"{folder}{name}/" for name in names if not name.startswith(".")]


def _beginning(incomplete: str, words: list[str]) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(incomplete)]
