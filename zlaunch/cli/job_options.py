"""Options that several commands about a job share, with parsers that other commands need not import."""

from typing import Annotated

import typer

from zlaunch.estimate.workload import Lora, parse_lora
from zlaunch.job import spec

Offload = Annotated[
    spec.Offload | None,
    typer.Option(
        metavar="WHERE",
        parser=spec.parse_offload,
        help="Where to offload: none, cpu, nvme, or per part: optimizer:cpu,param:nvme.",
    ),
]

LowRank = Annotated[
    Lora | None,
    typer.Option(
        "--lora",
        metavar="RANK[:MODULES]",
        parser=parse_lora,
        help="Train LoRA adapters only: 16 or 16:q_proj,v_proj.",
    ),
]
