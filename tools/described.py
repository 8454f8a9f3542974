"""Describe the packages of an interpreter, as far as tables of zlaunch depend on them.

`PYTHON -m tools.described FILE` writes JSON: section → name → value. It needs none of zlaunch.
"""

import argparse
import contextlib
import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import requires, version
from pathlib import Path
from unittest import mock

PACKAGES = ("torch", "deepspeed", "transformers", "accelerate")

Section = dict[str, object]


def _versions() -> Section:
    return {package: version(package).partition("+")[0] for package in PACKAGES}


def _pins() -> Section:
    """What each package requires, without its extras."""
    return {package: sorted(_required(package)) for package in PACKAGES}


def _required(package: str) -> list[str]:
    return [line for line in requires(package) or () if "extra ==" not in line]


def _ds_config() -> Section:
    from tools.recorder import record

    recording = record()
    refused = {f"{key} (refused)": True for key in recording.refused}
    sections = {f"{name} (section)": kind.value for name, kind in recording.sections.items() if name}
    return {**recording.keys, **sections, **refused}


def _trainer() -> Section:
    from transformers import TrainingArguments

    described: Section = {}
    for field in dataclasses.fields(TrainingArguments):
        default: object = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        described[field.name] = str(default)
    return described


def _flags(parser: argparse.ArgumentParser) -> Section:
    actions = parser._option_string_actions  # noqa: SLF001 - it has no public name
    return {spelled(flag): str(action.default) for flag, action in actions.items()}


def spelled(flag: str) -> str:
    """Write a flag with underscores: launchers take both."""
    name = flag.lstrip("-")
    return "-" * (len(flag) - len(name)) + name.replace("-", "_")


def _caught(parse: Callable[[], object]) -> argparse.ArgumentParser:
    """Find the parser that a function makes and keeps to itself."""
    found: list[argparse.ArgumentParser] = []
    keep = mock.patch.object(argparse.ArgumentParser, "parse_args", lambda self, *_, **__: found.append(self))
    with keep, contextlib.suppress(AttributeError):  # it goes on without arguments
        parse()
    return found[0]


def _torchrun() -> Section:
    from torch.distributed.run import get_args_parser

    return _flags(get_args_parser())


def _deepspeed() -> Section:
    from deepspeed.launcher import runner

    return _flags(_caught(runner.parse_args))


def _accelerate() -> Section:
    from accelerate.commands.launch import launch_command_parser

    return _flags(launch_command_parser())


def _optimizers() -> Section:
    from deepspeed.runtime.config import DEEPSPEED_OPTIMIZERS

    return dict.fromkeys(DEEPSPEED_OPTIMIZERS, "")


def _schedules() -> Section:
    from deepspeed.runtime import lr_schedules
    from transformers import SchedulerType

    of_trainer = {f"--lr_scheduler_type {kind.value}": "" for kind in SchedulerType}
    return {**dict.fromkeys(lr_schedules.VALID_LR_SCHEDULES, ""), **of_trainer}


def _optims() -> Section:
    from transformers.training_args import OptimizerNames

    return {name.value: "" for name in OptimizerNames}


def _ops() -> Section:
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    return dict.fromkeys(ALL_OPS, "")


def _initialize() -> Section:
    import deepspeed

    parameters = inspect.signature(deepspeed.initialize).parameters
    return {name: str(parameter.default) for name, parameter in parameters.items()}


SECTIONS: Mapping[str, Callable[[], Section]] = {
    "versions": _versions,
    "pins": _pins,
    "keys of a ds_config": _ds_config,
    "arguments of the Trainer": _trainer,
    "values of --optim": _optims,
    "schedules": _schedules,
    "optimizers of DeepSpeed": _optimizers,
    "native ops": _ops,
    "arguments of deepspeed.initialize": _initialize,
    "flags of torchrun": _torchrun,
    "flags of deepspeed": _deepspeed,
    "flags of accelerate launch": _accelerate,
}


def described() -> dict[str, Section]:
    """Describe all sections; one that has moved says so, instead of hiding the others."""
    sections: dict[str, Section] = {}
    for name, describe in SECTIONS.items():
        try:
            sections[name] = describe()
        except Exception as error:  # noqa: BLE001 - whatever a new release has changed
            sections[name] = {"cannot be described": f"{type(error).__name__}: {error}"}
    return sections


def main(file: str) -> None:
    """Write the description to a file: packages print while they are imported."""
    text = json.dumps(described(), indent=2, default=str)
    Path(file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
