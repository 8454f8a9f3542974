"""Options that `estimate`, `plan` and `train` share: a model, where it trains, and how."""

from pathlib import Path
from typing import Annotated, Literal

import typer

MOST_GPUS, MOST_NODES, MOST_SAMPLES, MOST_TOKENS, MOST_BATCH = 1 << 10, 1 << 17, 1 << 20, 1 << 27, 1 << 30
"""Beyond these a number is a slip of the finger."""

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL [-- TRAINER ARGS]", help="Directory, config.json, or a model on the hub."),
]

Gpus = Annotated[int | None, typer.Option(min=1, max=MOST_GPUS, metavar="N", help="GPUs of each host.")]

Nodes = Annotated[
    int | None, typer.Option(min=1, max=MOST_NODES, metavar="N", help="Hosts; one if left out.")
]

On = Annotated[
    str | None,
    typer.Option(metavar="GPUS", help="Which GPUs: 8xH100-80GB, or 4x48GiB; those here if left out."),
]

Hostfile = Annotated[Path | None, typer.Option(metavar="FILE", help="Hosts: `HOST slots=N` on each line.")]

Offload = Annotated[
    str | None,
    typer.Option(metavar="WHERE", help="none, cpu, nvme, or by part: optimizer:cpu,param:nvme."),
]

DsConfig = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Start from this ds_config; other options override it."),
]

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set one key: --set zero_optimization.sub_group_size=1e8."
    ),
]

Nvme = Annotated[Path | None, typer.Option(metavar="DIR", help="Directory on the NVMe drive.")]

SeqLen = Annotated[
    int | None, typer.Option(min=1, max=MOST_TOKENS, metavar="N", help="Tokens of a sequence.")
]

Precision = Annotated[
    Literal["bf16", "fp16", "fp32"] | None, typer.Option(help="Number format; the best the GPU has.")
]

Optimizer = Annotated[
    str | None, typer.Option(metavar="NAME", help="DeepSpeed's or the Trainer's: lion, adafactor.")
]

LowRank = Annotated[
    str | None,
    typer.Option("--lora", metavar="RANK[:MODULES]", help="Train adapters only: 16 or 16:q_proj,v_proj."),
]

Attention = Annotated[
    Literal["sdpa", "eager", "flash_attention_2"] | None,
    typer.Option(help="How attention is computed; sdpa if left out."),
]

TrustRemoteCode = Annotated[bool, typer.Option("--trust-remote-code", help="Let the model's own code run.")]

AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object.")]
