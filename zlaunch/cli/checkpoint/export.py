"""`zlaunch checkpoint export`: write a model that `from_pretrained` loads."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from zlaunch import console
from zlaunch.checkpoint.export import (
    BLOCK_BYTES,
    ModelExport,
    plan_export,
    write_export,
)
from zlaunch.checkpoint.find import CheckpointFolder, SavedBy, recognize
from zlaunch.checkpoint.new_directory import refuse_existing
from zlaunch.checkpoint.verify import require_engine
from zlaunch.cli.options import AsJson, CheckpointDir
from zlaunch.cli.views.checkpoint import shown, taken
from zlaunch.cli.views.dump import to_json
from zlaunch.console import visible
from zlaunch.files import nearest
from zlaunch.resume.newest import checkpoint_of
from zlaunch.units import plural, size

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def export(
    folder: CheckpointDir,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Directory to write; it must not exist.")],
    dtype: Annotated[
        Literal["bf16", "fp16", "fp32"] | None,
        typer.Option(help="Type of the weights (default: that of the model while it trained)."),
    ] = None,
    shard_size: Annotated[
        float, typer.Option(min=0.001, max=1e6, metavar="GB", help="Maximum size of a file.")
    ] = 5,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            help="Take config, tokenizer and weights that the checkpoint lacks from this directory.",
        ),
    ] = None,
    merge_lora: Annotated[
        bool, typer.Option("--merge-lora", help="Add a LoRA adapter to the weights of its model.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a model for `from_pretrained` from a checkpoint.

    The fp32 weights of the optimizer are read block by block, so any model fits in memory.
    """
    refuse_existing(out)
    saved = checkpoint_of(folder)
    checkpoint = saved.checkpoint
    console.say(*taken(folder, saved), *_model_beside(folder, checkpoint))
    require_engine(checkpoint)
    planned = plan_export(checkpoint, DTYPES.get(dtype or ""), int(shard_size * 1e9), model, merge_lora)
    console.say(*_before(planned, out))
    line = console.ProgressLine()
    total = planned.nbytes
    write_export(planned, out, lambda done: line.show("writing", f"{size(done)} of {size(total)}"))
    line.clear()
    if as_json:
        console.data(to_json(_export_members(planned, out)))
    else:
        console.say(*_after(planned, out, model))


def _model_beside(folder: Path, checkpoint: CheckpointFolder) -> Iterator[str]:
    """Say that a training has saved its model beside the checkpoints, at its end."""
    model = recognize(folder)
    if model is not None and model.saved_by is SavedBy.WEIGHTS and model != checkpoint:
        text = f"{shown(folder)} has a model, too, maybe of a later step; `from_pretrained` loads it as it is"
        yield from console.paragraph(text)


def _export_members(planned: ModelExport, out: Path) -> dict[str, object]:
    return {
        "directory": str(out.absolute()),
        "checkpoint": str(planned.checkpoint.folder),
        "class": planned.class_name,
        "is_adapter": planned.is_adapter,
        "dtype": planned.dtype,
        "tensors": len(planned.weights),
        "bytes": planned.nbytes,
        "files": [name for name, _ in planned.files()],
    }


def _before(planned: ModelExport, out: Path) -> list[str]:
    free = shutil.disk_usage(nearest(out)).free
    return console.table(
        [
            ("checkpoint", shown(planned.checkpoint.folder)),
            ("weights", f"{plural(len(planned.weights), 'tensor')} in {planned.dtype}"),
            ("disk", f"{size(planned.nbytes)} of {size(free)} free"),
            ("memory", f"about {size(BLOCK_BYTES)}"),
        ],
        indent="",
    )


def _after(planned: ModelExport, out: Path, model: Path | None) -> list[str]:
    lines = [f"wrote {shown(out)}: {plural(len(planned.shards), 'file')} of weights"]
    if planned.is_adapter:
        return [*lines, f'load it with PeftModel.from_pretrained(model, "{shown(out)}")']
    if (message := planned.unlike_model) is not None:
        text = f"`from_pretrained` would not load the model that config.json describes: {message}"
        return [*lines, *console.paragraph(text)]
    if planned.class_name is None:
        return [
            *lines,
            *console.paragraph(
                "the checkpoint has no config.json, which `from_pretrained` needs; `--model DIR` copies "
                "that of a model"
            ),
        ]
    if not any(name.startswith("tokenizer") for name in planned.companions):
        lack = "the checkpoint has no tokenizer; `--model DIR` copies that of a model"
        if model is not None:
            lack = f"{shown(model)} has no tokenizer"
        lines.append(lack)
    return [*lines, f'load it with {visible(planned.class_name)}.from_pretrained("{shown(out)}")']
