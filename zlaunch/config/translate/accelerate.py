"""The settings of an accelerate config, as the flags of `accelerate launch` that they stand for."""

import json
from collections.abc import Iterator
from dataclasses import replace

from zlaunch.config.accelerate import AccelerateConfig
from zlaunch.config.translate.flags import Command, Flag, GivenFlag, NotNeeded, Role, Untranslatable
from zlaunch.config.translate.launchers import config_fields, uses_deepspeed


def with_settings(command: Command, config: AccelerateConfig) -> Command:
    """Add the settings of a config that the command line does not override, as `accelerate launch` does."""
    typed = {given.flag.key for given in command.given}
    settings = [given for given in _from_config(config) if given.flag.key not in typed]
    return replace(command, given=(*settings, *command.given))


def _from_config(config: AccelerateConfig) -> Iterator[GivenFlag]:
    """Read the fields as flags, except placeholders that `accelerate config` writes."""
    hints = {finding.place: f"; {finding.hint}" for finding in config.findings if finding.hint}
    for setting in config.settings():
        text = setting.value if isinstance(setting.value, str) else json.dumps(setting.value)
        unknown = NotNeeded(f"accelerate ignores it{hints.get(setting.place, '')}")
        field = config_fields().get(setting.name) or Flag((setting.name,), True, unknown)
        is_off = not field.takes_value and text.lower() in ("false", "no")
        if not is_off and text.lower() not in field.idle:
            yield GivenFlag(field, text, f"{setting.name}: {text}", place=setting.place)


def paradigm(command: Command) -> bool | Untranslatable:
    """Whether accelerate uses DeepSpeed; Untranslatable if it uses something else."""
    roles = command.roles()
    chosen = {given.flag.key for given in command.given if given.place is None} & {"multi_gpu", "cpu"}
    if Role.USE_DEEPSPEED in roles:
        return True
    if chosen or Role.DISTRIBUTED_TYPE not in roles:
        return False
    return uses_deepspeed(roles[Role.DISTRIBUTED_TYPE].value)
