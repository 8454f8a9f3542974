"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from zlaunch.errors import WrongUsage

MOST_GPUS, MOST_NODES, MOST_SAMPLES, MOST_TOKENS, MOST_BATCH = 1 << 10, 1 << 17, 1 << 20, 1 << 27, 1 << 30
"""Larger values are refused as typing mistakes."""


def completed(what: str) -> Callable[[typer.Context, str], list[str]]:
    """Complete with a function of `cli.complete`, which is imported when a shell asks."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        from zlaunch.cli import complete as completion  # only a shell asks for it

        runs_dir = ctx.params.get("runs_dir")
        if runs_dir is not None:
            runs_dir = Path(runs_dir)
        words: list[str] = getattr(completion, what)(incomplete, runs_dir)
        return words

    return complete


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL [-- ARGS]",
        help="Model directory, config.json, or a model on the Hub.",
        autocompletion=completed("models"),
    ),
]

ModelOrScript = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL|SCRIPT [-- ARGS]",
        help="Model directory, config.json, a model on the Hub, or a training script (.py).",
        autocompletion=completed("models"),
    ),
]

Gpus = Annotated[int | None, typer.Option(min=1, max=MOST_GPUS, metavar="N", help="GPUs per host.")]

Nodes = Annotated[
    int | None, typer.Option(min=1, max=MOST_NODES, metavar="N", help="Number of hosts (default: 1).")
]

On = Annotated[
    str | None,
    typer.Option(
        metavar="GPUS",
        help="GPUs to train on, here or not: 8xH100-80GB or 4x48GiB (default: the local GPUs).",
        autocompletion=completed("gpus"),
    ),
]


def _find_python(text: str) -> Path:
    from zlaunch.hosts.machine.interpreter import find_python  # which starts it; most commands name none

    return find_python(text)


Python = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        envvar="ZLAUNCH_PYTHON",
        parser=_find_python,
        help="Python of the job, or the directory of its environment (default: the one that runs zlaunch).",
    ),
]

Hostfile = Annotated[Path | None, typer.Option(metavar="FILE", help="Hosts, one `HOST slots=N` per line.")]

Hosts = Annotated[
    str | None,
    typer.Option(metavar="HOST:N,…", help="Hosts and their slots, instead of a hostfile: w0:8,w1:4."),
]

DsConfig = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Start from this ds_config; other options override it.")
]

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a ds_config key, such as zero_optimization.sub_group_size=1e8; may be repeated.",
        autocompletion=completed("overrides"),
    ),
]

Nvme = Annotated[Path | None, typer.Option(metavar="DIR", help="Directory on an NVMe drive, for offload.")]

SeqLen = Annotated[int | None, typer.Option(min=1, max=MOST_TOKENS, metavar="N", help="Tokens per sequence.")]

Precision = Annotated[
    Literal["bf16", "fp16", "fp32"] | None,
    typer.Option(help="Training precision (default: best supported by the accelerator)."),
]

Optimizer = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Optimizer of DeepSpeed or the Trainer, such as lion or adafactor."),
]

Attention = Annotated[
    Literal["sdpa", "eager", "flash_attention_2"] | None,
    typer.Option(help="Attention implementation (default: sdpa)."),
]

TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the custom code of the model.")
]

Job = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|none", help="Read options from this file, or from none (default: zlaunch.yaml)."
    ),
]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the complete plan; start no job.")]

Full = Annotated[bool, typer.Option("--full", help="With --dry-run: all of the plan, however long it is.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def json_format(asked: str) -> Literal["json"]:
    """Choose the format for `--json`; raise WrongUsage if `--format` asks for another one."""
    if asked not in ("text", "json"):
        raise WrongUsage(f"`--json` and `--format {asked}` contradict each other", "keep one of them")
    return "json"


A_CONFIG = "ds_config file, accelerate YAML, - for stdin, or base64."

WorldSize = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Number of ranks; of a pipeline, those of one stage.")
]

ModelDir = Annotated[
    Path | None,
    typer.Option("--model", metavar="DIR", help="Model directory or config.json, for buffer sizes."),
]

Runner = Annotated[
    Literal["trainer", "accelerate", "deepspeed"] | None,
    typer.Option("--for", help='Program that reads the file and fills in "auto" (default: trainer).'),
]

Release = Annotated[
    str | None,
    typer.Option(
        "--deepspeed",
        metavar="RELEASE",
        help="DeepSpeed release, such as 0.16 (default: the installed one).",
        autocompletion=completed("releases"),
    ),
]


def _unless_stdout(file: Path | None) -> Path | None:
    return None if file == Path("-") else file


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        callback=_unless_stdout,
        help="Output file, - for stdout (default: stdout).",
    ),
]

LatestRun = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Run ID or prefix, or a run directory.",
        show_default=True,
        autocompletion=completed("runs"),
    ),
]

RUN_HELP: Final = "Run ID or prefix, a run directory, or `latest`."

RunName = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help=RUN_HELP,
        autocompletion=completed("runs"),
    ),
]

RunsDir = Annotated[Path | None, typer.Option(metavar="DIR", help="Directory of the runs (default: runs).")]

CheckpointDir = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="A checkpoint, or a directory with several: its newest complete one is taken."
    ),
]
