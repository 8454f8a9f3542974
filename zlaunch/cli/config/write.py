"""`zlaunch config write`: a ds_config for a stage and an offload."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from zlaunch import console
from zlaunch.cli.config.options import Output
from zlaunch.config.resolve.compose import preset, to_json
from zlaunch.config.rules.validate import validate_mapping
from zlaunch.errors import Refused
from zlaunch.files import write_new
from zlaunch.job.spec import STAGES, Offload, parse_offload


def write(
    stage: Annotated[Literal["0", "1", "2", "3"], typer.Option(help="ZeRO stage.")] = "2",
    offload: Annotated[
        str | None, typer.Option(help="none, cpu, nvme, or each part: optimizer:cpu,param:nvme.")
    ] = None,
    nvme: Annotated[Path | None, typer.Option(metavar="DIR", help="Directory on the NVMe drive.")] = None,
    output: Output = None,
) -> None:
    """Write a ds_config for a stage and an offload.

    "auto" stands where the Trainer arguments, the model or the number of ranks decide.
    """
    chosen = Offload() if offload is None else parse_offload(offload)
    written = preset(STAGES[stage], chosen, None if nvme is None else str(nvme))
    if findings := validate_mapping(written):
        raise Refused(findings)
    if output is None:
        console.data(to_json(written).rstrip("\n"))
    else:
        write_new(output, to_json(written))
        console.say(f"wrote {output}")
