"""Options of commands that ask whether a checkpoint fits a job."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from zlaunch.checkpoint.resume import ResumeTarget
from zlaunch.config.report import load_config

Ranks = Annotated[int | None, typer.Option(min=1, metavar="N", help="Ranks of the job.")]
Stage = Annotated[int | None, typer.Option(min=0, max=3, help="ZeRO stage of the job.")]
Place = Annotated[
    Literal["none", "cpu", "nvme"] | None,
    typer.Option("--offload", help="Where the job keeps its optimizer."),
]
DsConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Take stage, precision and offload from this ds_config.")
]


def target_of(
    ranks: int | None, stage: int | None, offload: str | None, ds_config: Path | None
) -> ResumeTarget:
    """Describe the job; options win over the ds_config. Raise Refused if that cannot be read."""
    if ds_config is None:
        return ResumeTarget(ranks, stage, None, offload)
    config: Any = load_config(str(ds_config)).needed(str(ds_config)).value
    zero = _section(config, "zero_optimization")
    enabled = _section(config, "bf16").get("enabled", False)
    device = _section(zero, "offload_optimizer").get("device", "none")
    return ResumeTarget(
        ranks,
        _known(zero.get("stage", 0), int) if stage is None else stage,
        _known(enabled, bool),
        _known(device, str) if offload is None else offload,
    )


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _known(value: Any, kind: type) -> Any:
    """Whatever is left to be filled in, as "auto", says nothing."""
    return value if isinstance(value, kind) and value != "auto" else None
