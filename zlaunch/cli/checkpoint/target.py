"""Options of commands that ask whether a checkpoint fits a job."""

import os
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from zlaunch.checkpoint.summary import Summary
from zlaunch.config.report import load_config
from zlaunch.config.rules.rule import UNKNOWN, Context
from zlaunch.config.validate import validate_mapping
from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.errors import FATAL, Finding, Refused, Severity
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.probe import probe_machine
from zlaunch.resume.fit import ResumeTarget, target_of_config

Ranks = Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks of the job.")]
Stage = Annotated[int | None, typer.Option(min=0, max=3, metavar="N", help="ZeRO stage of the job, 0 to 3.")]
Precision = Annotated[
    Literal["bf16", "fp16", "fp32"] | None, typer.Option(help="Precision in which the job trains.")
]
Place = Annotated[
    Literal["none", "cpu", "nvme"] | None,
    typer.Option("--offload", help="Where the job keeps its optimizer."),
]
DsConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Take stage, precision and offload from this ds_config.")
]


def target_of(given: ResumeTarget, ds_config: Path | None, saved: Summary) -> ResumeTarget:
    """Describe the job; options win over the ds_config.

    Raise Refused if that cannot be read, or `train` would refuse the offload at this stage.
    """
    target = given if ds_config is None else _with_config(given, ds_config)
    stage = saved.stage if target.stage is None else target.stage
    if stage is None or target.offload is None:
        return target
    # As `train` does, refuse what DeepSpeed ignores only if an option asks for it.
    severities = FATAL | {Severity.IGNORED} if given.offload else FATAL
    if wrong := [
        finding for finding in _about_offload(stage, target.offload) if finding.severity in severities
    ]:
        raise Refused(wrong)
    return target


def _about_offload(stage: int, device: str) -> list[Finding]:
    section, context = {"device": device}, UNKNOWN
    if device == "nvme":
        section["nvme_path"] = "DIR"
    if stage == 0:  # where it works without a GPU
        context = Context(accelerator=probe_machine(os.environ, inspect_python(None)).accelerator)
    zero = {"stage": stage, "offload_optimizer": section}
    findings = validate_mapping({"zero_optimization": zero}, context)
    return [finding for finding in findings if "offload_optimizer" in finding.where]


def _with_config(given: ResumeTarget, ds_config: Path) -> ResumeTarget:
    config: Any = load_config(str(ds_config)).needed(str(ds_config)).value
    zero = {"stage": 0, **_section(config, "zero_optimization")}
    config = {**config, "zero_optimization": zero}
    device = _section(zero, "offload_optimizer").get("device", "none")

    def value(path: KeyPath) -> object:
        *sections, key = path
        return reduce(_section, map(str, sections), config).get(key)

    target = target_of_config(
        value, given.ranks, given.precision or _precision(config), given.offload or _known(device)
    )
    return target if given.stage is None else replace(target, stage=given.stage)


def _precision(config: dict[str, Any]) -> str | None:
    enabled = {name: _section(config, name).get("enabled", False) for name in ("bf16", "fp16")}
    if "auto" in enabled.values():
        return None
    return next((name for name, is_on in enabled.items() if is_on is True), "fp32")


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _known(device: object) -> str | None:
    """Whatever is left to be filled in, as "auto", is unknown."""
    return device if isinstance(device, str) and device != "auto" else None
