"""`zlaunch estimate`: estimate the memory of a job before it is started."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from zlaunch.cli import job_options, options
from zlaunch.cli.passthrough import trainer_args
from zlaunch.cli.views.estimate_report import EstimateView, report
from zlaunch.estimate.changes import Options
from zlaunch.estimate.request import EstimateRequest, resolve_request
from zlaunch.job.args import ds_config_of
from zlaunch.job.spec import STAGES, JobSpec, parse_override


def estimate(
    trainer: typer.Context,
    model: options.Model,
    gpus: options.Gpus = None,
    nodes: options.Nodes = None,
    on: options.On = None,
    hostfile: options.Hostfile = None,
    stage: Annotated[
        Literal["0", "1", "2", "3"] | None, typer.Option(help="ZeRO stage (default: compare all).")
    ] = None,
    offload: job_options.Offload = None,
    nvme: options.Nvme = None,
    micro_batch: Annotated[
        int | None,
        typer.Option(
            min=1, max=options.MOST_SAMPLES, metavar="N", help="Sequences per rank in a micro-batch."
        ),
    ] = None,
    seq_len: options.SeqLen = None,
    grad_accum: Annotated[
        int | None, typer.Option(min=1, max=options.MOST_SAMPLES, metavar="N", help="Micro-batches per step.")
    ] = None,
    precision: options.Precision = None,
    optimizer: options.Optimizer = None,
    activation_checkpointing: Annotated[
        bool, typer.Option("--activation-checkpointing", help="Recompute activations in the backward pass.")
    ] = False,
    lora: job_options.LowRank = None,
    attention: options.Attention = None,
    ds_config: options.DsConfig = None,
    overrides: options.Overrides = None,
    trust_remote_code: options.TrustRemoteCode = False,
    python: options.Python = None,
    job: options.Job = None,
    as_json: options.AsJson = False,
    tries_levers: Annotated[
        bool | None,
        typer.Option(
            "--levers/--no-levers",
            help="Rehearse the effect of changes (default: yes; no with --json).",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the memory as PNG or SVG; needs matplotlib.")
    ] = None,
) -> None:
    """Estimate how much memory a job needs, and whether it fits.

    Without --stage, --offload and --ds-config, compares all stages and offloads and names the
    fastest that fits. With one of them, shows every phase, what uses the memory, and how much
    each change would save. Rehearsals are cached; ZLAUNCH_CACHE=off turns the cache off.
    """
    read_args, _ = trainer_args(trainer.args, python)
    typed, ds_config = ds_config_of(read_args, ds_config)
    spec = JobSpec(
        script=Path(),
        python=python,
        args=typed,
        stage=None if stage is None else STAGES[stage],
        offload=offload,
        nvme_dir=None if nvme is None else nvme.absolute(),
        precision=precision,
        ds_config=ds_config,
        overrides=tuple(parse_override(text) for text in overrides or ()),
        hostfile=hostfile,
    )
    words = EstimateRequest(
        model=model,
        job=spec,
        options=Options(
            activation_checkpointing=activation_checkpointing or None,
            attention=attention,
            micro_batch=micro_batch,
            grad_accum=grad_accum,
            seq_len=seq_len,
            lora=lora,
        ),
        gpus=gpus,
        nodes=nodes,
        on=on,
        optimizer=optimizer,
        trusts_code=trust_remote_code,
    )
    raise typer.Exit(
        report(
            resolve_request(words),
            EstimateView(as_json, not as_json if tries_levers is None else tries_levers, plot),
        )
    )
