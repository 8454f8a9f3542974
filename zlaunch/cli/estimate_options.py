"""The options of `zlaunch estimate` and `zlaunch plan`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from zlaunch.cli import options
from zlaunch.cli.job_options import ConfigOptions, Offload
from zlaunch.cli.option_table import OptionPanel, members, read
from zlaunch.errors import WrongUsage
from zlaunch.estimate.changes import TRAINING, Options
from zlaunch.estimate.request import EstimateRequest, makes_its_model
from zlaunch.estimate.workload import Images, Lora, parse_images, parse_lora
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.gpu_catalog import parse_memory
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import JobSpec


def _memory(text: str) -> int:
    if num_bytes := parse_memory(text):
        return num_bytes
    raise WrongUsage(f"`--host-memory {text}` is no amount of memory", "write `--host-memory 512GiB`")


@dataclass(frozen=True)
class EstimateOptions:
    """What is estimated, where it runs, and what is shown."""

    module: Annotated[
        str | None,
        typer.Option("--module", "-m", metavar="NAME", help="A module that trains, in place of a script."),
    ] = None
    gpus: options.Gpus = None
    nodes: options.Nodes = None
    on: options.On = None
    hostfile: options.Hostfile = None
    host_memory: Annotated[
        int | None,
        typer.Option(
            "--host-memory", metavar="SIZE", parser=_memory, help="Memory of each host: 512GiB or 512GB."
        ),
    ] = None
    network: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="GBITS", help="Network of each host in Gb/s, for the step time."),
    ] = None
    stage: Annotated[
        Literal["0", "1", "2", "3"] | None, typer.Option(help="ZeRO stage (default: compare all).")
    ] = None
    offload: Offload = None
    nvme: options.Nvme = None
    micro_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=options.MOST_SAMPLES,
            metavar="N",
            help="Sequences per rank in a micro-batch (default: from the Trainer arguments, or 8).",
        ),
    ] = None
    global_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=options.MOST_BATCH,
            metavar="N",
            help="Sequences per step on all ranks (default: from the Trainer arguments).",
        ),
    ] = None
    seq_len: options.SeqLen = None
    grad_accum: Annotated[
        int | None, typer.Option(min=1, max=options.MOST_SAMPLES, metavar="N", help="Micro-batches per step.")
    ] = None
    precision: options.Precision = None
    optimizer: options.Optimizer = None
    activation_checkpointing: Annotated[
        bool, typer.Option("--activation-checkpointing", help="Recompute activations in the backward pass.")
    ] = False
    lora: Annotated[
        Lora | None,
        typer.Option(
            "--lora",
            metavar="RANK[:MODULES]",
            parser=parse_lora,
            help="Train LoRA adapters only: 16 or 16:q_proj,v_proj.",
        ),
    ] = None
    freeze: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX", help="Do not train the parameters whose names match: '^model[.]visual[.]'."
        ),
    ] = None
    images: Annotated[
        Images | None,
        typer.Option(
            metavar="N[xWIDTHxHEIGHT]",
            parser=parse_images,
            help="Images in each sequence of a vision-language model: 2 or 2x1024x768.",
        ),
    ] = None
    attention: options.Attention = None
    ds_config: options.DsConfig = None
    overrides: options.Overrides = None
    trust_remote_code: options.TrustRemoteCode = False
    python: options.Python = None
    job: options.Job = None
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the ds_config to this file.")
    ] = None
    as_json: options.AsJson = False
    tries_levers: Annotated[
        bool | None,
        typer.Option(
            "--levers/--no-levers",
            help="Show what each possible change would save (default: yes; no with --json).",
            show_default=False,
        ),
    ] = None
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the memory as SVG, or as PNG with matplotlib.")
    ] = None

    @classmethod
    def without(cls, *names: str) -> list[OptionPanel]:
        """Return the options of a command, which has all but these."""
        panel = OptionPanel.of("Options", cls)
        return [replace(panel, names=[name for name in panel.names if name not in names])]


def is_program(name: str) -> bool:
    """Whether what is to be estimated is a training script instead of a model; so is a recipe without one."""
    return name.endswith(".py") or makes_its_model(name)


def request_of(
    model: str, args: ScriptArgs, ds_config: Path | None, given: Mapping[str, Any]
) -> EstimateRequest:
    """Describe the job that these options name."""
    job = JobSpec(
        script=Path(),
        args=args,
        ds_config=ds_config,
        hostfile=given["hostfile"],
        python=given["python"],
        **read(ConfigOptions, given).job_members,
    )
    training = {name: given[name] for name in TRAINING if given.get(name)}
    read_otherwise: dict[str, Any] = {"model": model, "job": job, "options": Options(**training)}
    return EstimateRequest(**{**members(EstimateRequest, given), **read_otherwise})
