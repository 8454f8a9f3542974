"""Find the ds_configs of a project: in its directory, and in the folders where people keep them."""

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from zlaunch.dsconfig.keys.intended import intended
from zlaunch.dsconfig.keys.lookup import known_keys
from zlaunch.dsconfig.read import read
from zlaunch.errors import InputMissing, Refused

FOLDERS = (
    "config*",
    "conf",
    "*deepspeed*",
    "ds_*",
    "*zero*",
    "scripts",
    "config*/*deepspeed*",
    "config*/ds_*",
    "examples/*deepspeed*",
    "scripts/*deepspeed*",
)
"""Folders where ds_configs are looked for. Run directories and checkpoints are not among them."""

MOST_BYTES = 1 << 20
"""Larger JSON files, such as those of tokenizers, are not read."""

_NAME = re.compile(r"(?<![a-z])ds(?![a-z])|ds_?config|deepspeed|zero|(?<![a-z])z[0-3](?!\d)", re.IGNORECASE)
_KNOWN = frozenset(known_keys({}, ()))


def find_configs(directory: Path) -> list[Path]:
    """List the ds_configs of a directory, relative to it, in the order of their names."""
    folders = {directory}
    for pattern in FOLDERS:
        folders.update(directory.glob(pattern))
    files = {file.relative_to(directory) for file in chain.from_iterable(map(_json_files, folders))}
    configs = [file for file in files if is_ds_config(directory / file)]
    return sorted(configs, key=lambda file: (len(file.parts), file))


def _json_files(folder: Path) -> Iterator[Path]:
    if folder.name.startswith("."):
        return
    try:
        files = [*folder.glob("*.json")]
    except OSError:  # a folder that may not be listed
        return
    for file in files:
        if file.is_file() and file.stat().st_size <= MOST_BYTES:
            yield file


def is_ds_config(file: Path) -> bool:
    """Whether a JSON file is meant as a ds_config.

    Under a usual name, one key of DeepSpeed's top level, or a misspelled one, is enough; a file that cannot
    be parsed must contain one in its text. Under any other name it must have a key that only ds_configs
    have.
    """
    is_named = _NAME.search(file.stem) is not None
    try:
        value = read(file).value
    except Refused:
        return is_named and _mentions_a_key(file)
    except InputMissing:
        return False
    if isinstance(value.get("zero_optimization"), dict) or "train_micro_batch_size_per_gpu" in value:
        return True
    return is_named and any(key in _KNOWN or intended(value, (key,)).is_key for key in value)


def _mentions_a_key(file: Path) -> bool:
    text = file.read_bytes().decode(errors="replace")
    return not text.lstrip().startswith("[") and any(json.dumps(key) in text for key in _KNOWN)
