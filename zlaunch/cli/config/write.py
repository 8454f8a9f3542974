"""`zlaunch config write`: write a ds_config for a ZeRO stage and offload."""

from typing import Annotated, Literal

import typer

from zlaunch import console
from zlaunch.cli import job_options, options
from zlaunch.config.resolve.compose import preset, to_json
from zlaunch.config.validate import validate_mapping
from zlaunch.errors import Refused, Severity
from zlaunch.files import write_new
from zlaunch.job.spec import STAGES, Offload


def write(
    stage: Annotated[Literal["0", "1", "2", "3"], typer.Option(help="ZeRO stage.")] = "2",
    offload: job_options.Offload = None,
    nvme: options.Nvme = None,
    output: options.Output = None,
) -> None:
    """Write a ds_config for a ZeRO stage and offload.

    Values that depend on the Trainer arguments, the model or the number of ranks are "auto".
    """
    written = preset(STAGES[stage], offload or Offload(), nvme)
    findings = validate_mapping(written)
    # Options without effect contradict each other; what only fails on some devices may be wanted for others.
    if refused := [finding for finding in findings if finding.severity is not Severity.WARNING]:
        raise Refused(refused)
    console.say_findings(findings)
    if output is None:
        console.data(to_json(written).rstrip("\n"))
    else:
        write_new(output, to_json(written))
        console.say(f"wrote {output}")
