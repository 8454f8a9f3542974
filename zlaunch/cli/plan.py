"""`zlaunch plan`: find the fastest configuration that fits, without a trial run."""

from pathlib import Path
from typing import Annotated

import typer

from zlaunch.cli import job_options, options
from zlaunch.cli.views.plan_report import report
from zlaunch.errors import WrongUsage
from zlaunch.estimate.changes import Options
from zlaunch.estimate.request import EstimateRequest, resolve_request
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import JobSpec


def plan(
    trainer: typer.Context,
    model: options.Model,
    gpus: options.Gpus = None,
    nodes: options.Nodes = None,
    on: options.On = None,
    hostfile: options.Hostfile = None,
    nvme: options.Nvme = None,
    global_batch: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=options.MOST_BATCH,
            metavar="N",
            help="Sequences per step on all ranks (default: from the Trainer arguments).",
        ),
    ] = None,
    seq_len: options.SeqLen = None,
    precision: options.Precision = None,
    optimizer: options.Optimizer = None,
    lora: job_options.LowRank = None,
    attention: options.Attention = None,
    trust_remote_code: options.TrustRemoteCode = False,
    python: options.Python = None,
    job: options.Job = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the ds_config to this file.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the fastest configuration that fits.

    Searches stages, offload, micro-batch, activation checkpointing and bucket sizes. Of equally
    fast configurations, chooses the one with the lower stage and less offload. Prints the choice
    and the reasons; -o FILE writes the ds_config.
    """
    typed, named = ScriptArgs.of(trainer.args).take_ds_config()
    if named is not None:
        raise WrongUsage("`zlaunch plan` writes a ds_config and does not read one", "leave out `--deepspeed`")
    spec = JobSpec(
        script=Path(),
        python=python,
        args=typed,
        nvme_dir=None if nvme is None else nvme.absolute(),
        precision=precision,
        hostfile=hostfile,
    )
    words = EstimateRequest(
        model=model,
        job=spec,
        options=Options(attention=attention, seq_len=seq_len, lora=lora),
        gpus=gpus,
        nodes=nodes,
        on=on,
        optimizer=optimizer,
        trusts_code=trust_remote_code,
    )
    raise typer.Exit(report(resolve_request(words), global_batch, output, as_json=as_json))
