"""Options that several commands about a job share, with parsers that other commands need not import."""

from typing import Annotated, Any, Literal

import typer

from zlaunch.cli import options
from zlaunch.frozen import dataclass
from zlaunch.job import spec

Offload = Annotated[
    spec.Offload | None,
    typer.Option(
        metavar="WHERE",
        parser=spec.parse_offload,
        help="Where to offload: none, cpu, nvme, or per part: optimizer:cpu,param:nvme.",
    ),
]


@dataclass(frozen=True)
class ConfigOptions:
    """The ds_config."""

    stage: Annotated[
        Literal["0", "1", "2", "3", "auto"] | None,
        typer.Option(help="ZeRO stage (default: from --ds-config, else 2); auto: the first that fits."),
    ] = None
    offload: Offload = None
    nvme: options.Nvme = None
    precision: options.Precision = None
    ds_config: options.DsConfig = None
    overrides: options.Overrides = None

    @property
    def job_members(self) -> dict[str, Any]:
        """The members of a JobSpec that these options set, beside the ds_config itself."""
        members: dict[str, Any] = {
            "stage": spec.STAGES.get(self.stage or ""),
            "offload": self.offload,
            "precision": self.precision,
            "overrides": tuple(map(spec.parse_override, self.overrides or ())),
        }
        if self.nvme is not None:
            members["nvme_dir"] = self.nvme.absolute()
        return members
