"""What the script of a command line says about its precision and its ds_config, if it can be read here."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from zlaunch.config.translate.flags import Command, Role
from zlaunch.config.translate.shell import path_of, readable
from zlaunch.dsconfig.read import read
from zlaunch.errors import ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs, ds_config_of
from zlaunch.job.module_files import find_module
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.script_reader import read_script

FORMATS = ("bf16", "fp16")

_PRECISION = re.compile(
    r"(?<![a-z])(bf16|fp16|bfloat16|float16|fp32|float32|half|amp|dtype|precision)(?![a-z])", re.IGNORECASE
)
_SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
"""Endings of files that may hold arguments."""
_NO_SETTINGS = re.compile(r"data|corpus|train|valid|eval|test|tokenizer|vocab|prompt|model", re.IGNORECASE)
"""Flags whose files hold something else."""


@dataclass(frozen=True)
class TranslatedScript:
    """The script of a command, and its arguments without the ds_config."""

    command: Command
    script: Script | None
    """None if it cannot be read here."""
    args: ScriptArgs
    ds_config: str | None
    """The file that its arguments name."""

    @property
    def has_own_config(self) -> bool:
        """Whether it certainly takes no ds_config: it has one, or does not use DeepSpeed."""
        script = self.script
        if script is None:
            return False
        if script.own_config is not None or script.has_own_plugin:
            return True
        is_without = script.default_config is not None or script.interface is ConfigInterface.NONE
        return script.is_sure and is_without

    @property
    def leaves_precision_to_accelerate(self) -> bool:
        """Whether accelerate fills in the precision, with zlaunch as without it."""
        return self.script is not None and self.script.interface is ConfigInterface.ACCELERATE

    @property
    def clips_gradients(self) -> bool | None:
        """Whether it clips gradients as the command starts it; None if that is unknown.

        The Trainer and DeepSpeed do.
        """
        script = self.script
        if script is None:
            return None
        source = script.source
        is_trainer = script.interface is ConfigInterface.TRAINER and script.is_sure
        if is_trainer or "TrainingArguments" in source or script.interface is ConfigInterface.DEEPSPEED:
            return True
        may_clip = "clip" in source or "deepspeed" in source.lower()
        if script.has_other_modules or not script.is_sure or may_clip:
            return None
        return False

    @property
    def chosen_precision(self) -> str | None:
        """What of the command line or the script may choose a precision; None if nothing does."""
        for word in self.args.words:
            is_override = "=" in word and not word.startswith("-")  # of settings in a file, as with Hydra
            if is_override or _PRECISION.search(word):
                return f"`{word}`"
        for word in _files(self.args):
            if _may_choose(word):
                return f"`{word}`"
        script = self.script
        if script is None:
            return None
        if script.interface is ConfigInterface.TRAINER and script.is_sure:
            if any(name in script.defaults for name in FORMATS):
                return script.path.name
            return None
        if script.has_other_modules or _PRECISION.search(script.source):
            return script.path.name
        return None


def read_script_of(command: Command) -> TranslatedScript:
    """Read the script of a command, if it is here."""
    script: Script | None = None
    if command.script is not None:
        name = os.path.expandvars(readable(command.script))
        try:
            if Role.MODULE in command.roles():
                script = read_script(find_module(name, os.environ))
            elif Path(name).is_file():
                script = read_script(Path(name))
        except ZlaunchError:  # `train` reports it
            script = None
    switches = script.switches if script is not None else frozenset[str]()
    args, ds_config = ds_config_of(command.args, None, switches)
    return TranslatedScript(command, script, args, None if ds_config is None else str(ds_config))


def leaves_precision_open(file: str) -> bool | None:
    """Whether a ds_config has "auto" for its precision; None if it cannot be read here."""
    try:
        config = read(path_of(file)).value
    except ZlaunchError:
        return None
    sections = [config.get(name) for name in (*FORMATS, "bfloat16")]
    values = [section.get("enabled") for section in sections if isinstance(section, dict)]
    return "auto" in values and True not in values


def _files(args: ScriptArgs) -> Iterable[str]:
    """Find words that name files with further arguments."""
    before = ""
    for word in args.words:
        name, _, value = word.partition("=")
        flag, file = before, word
        if word.startswith("-"):
            flag, file = name, value
        if file.endswith(_SETTINGS) and not _NO_SETTINGS.search(flag):
            yield file
        before = word if word.startswith("-") else ""


def _may_choose(file: str) -> bool:
    """Whether a file may say something about a precision."""
    path = path_of(file)
    try:
        return not path.is_file() or _PRECISION.search(path.read_text("utf-8", "replace")) is not None
    except OSError:
        return True
