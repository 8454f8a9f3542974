"""A `zlaunch.yaml` with comments, as `zlaunch init` writes it."""

import json
import re
from collections.abc import Iterator

from zlaunch import console
from zlaunch.frozen import dataclass


@dataclass(frozen=True)
class Answers:
    """What goes into the file; empty for what is left open."""

    script: str
    takes_model: bool = False
    """Whether the script has an argument for its model."""
    model: str = ""
    gpus: str = ""
    planned: str = ""
    """GPUs of another machine, as `--on` names them."""
    memory: str = "2"
    """A stage, a stage and an offload with a space between, or the file of a ds_config; empty where the
    script passes its own ds_config."""
    has_gpus: bool = True
    """Whether this machine has any, or planned ones are named."""
    save: str = ""
    lora: str = ""
    """The rank of adapters."""
    overrides: tuple[tuple[str, object], ...] = ()
    """Keys of the ds_config."""
    args: tuple[tuple[str, object], ...] = ()
    """Arguments of the script."""
    remarks: tuple[str, ...] = ()
    """Lines about the job, as comments at the top."""


def job_file_text(answers: Answers) -> str:
    """Write the file: what was chosen, and below it, as comments, what else there is."""
    return "\n".join(_job_file_lines(answers)) + "\n"


def next_lines(answers: Answers) -> Iterator[str]:
    """Say what to type next."""
    rows = [
        ("`zlaunch train --dry-run`", "shows the plan"),
        ("`zlaunch train`", "starts the job"),
    ]
    if answers.model:
        rows.insert(0, ("`zlaunch estimate`", "estimates its memory"))
    yield "next:"
    yield from console.table(rows)


def _job_file_lines(answers: Answers) -> Iterator[str]:
    yield "# Options of `zlaunch train`, `estimate` and `plan`. The command line wins over them."
    if answers.remarks:
        yield "#"
    for line in answers.remarks:
        yield f"# {line}".rstrip()
    yield "\n# The training script, or a recipe: `zlaunch recipes list`."
    yield _pair("script", answers.script)
    if answers.takes_model:
        yield "\n# The model: a directory, or a name on the Hub."
        yield _option("model", answers.model, "Qwen/Qwen2.5-7B")
    yield from _memory_lines(answers.memory, has_gpus=answers.has_gpus)
    yield "\n# One rank for each GPU: a number, or a list such as [0, 2]; by default all of the machine."
    yield _option("gpus", answers.gpus, "2")
    yield "\n# The GPUs that `estimate` and `plan` count with, instead of those of this machine."
    yield _option("on", answers.planned, "8xH100-80GB")
    if answers.lora:
        yield "\n# The rank of the adapters, which `estimate` and `plan` count with."
        yield _pair("lora", answers.lora)
    yield "\n# The directory for the model and its checkpoints. `resume: latest` resumes from the newest."
    yield _option("save", answers.save, "out")
    yield "# resume: latest"
    yield "\n# Keys of the ds_config: `zlaunch config explain` lists them."
    yield from _mapping("set", answers.overrides, "gradient_clipping: 1.0")
    yield "\n# Arguments of the script."
    yield from _mapping("args", answers.args, "learning_rate: 2e-5")


def _mapping(key: str, values: tuple[tuple[str, object], ...], example: str) -> Iterator[str]:
    if not values:
        yield f"# {key}:\n#   {example}"
        return
    yield f"{key}:"
    for name, value in values:
        if value is True:
            yield f"  {name}: true"
        else:
            yield f"  {_pair(name, str(value))}"


def _memory_lines(memory: str, *, has_gpus: bool) -> Iterator[str]:
    if not memory:
        yield "\n# The script passes its own ds_config: `ds_config`, `stage` and `offload` have no effect."
        return
    stage, _, offload = memory.partition(" ")
    if stage not in ("0", "1", "2", "3", "auto"):
        yield "\n# Start from this ds_config. `stage`, `offload`, `precision` and `set` change it."
        yield _pair("ds_config", memory)
        return
    yield "\n# ZeRO stage: 0 to 3, or auto for the first that fits."
    if not has_gpus and stage != "auto":
        yield "# Chosen on a machine without a GPU; auto chooses for the GPUs of the one that trains."
    yield f"stage: {stage}"
    yield "# What does not fit on the GPUs: none, cpu, nvme, or per part: optimizer:cpu,param:none."
    yield _option("offload", offload.strip(), "cpu")


def _option(key: str, text: str, example: str) -> str:
    """Write an option; one that was left open as a comment with an example."""
    if not text:
        return f"# {key}: {example}"
    return _pair(key, text)


def _pair(key: str, text: str) -> str:
    is_plain = re.fullmatch(r"[A-Za-z0-9./][\w./,+-]*(:[\w./]+)*", text) and not _IS_OTHER.fullmatch(text)
    if not is_plain:
        text = json.dumps(text)
    return f"{key}: {text}"


_IS_OTHER = re.compile(r"y|n|yes|no|on|off|true|false|null|.*:", re.IGNORECASE)
"""What YAML 1.1 reads as something other than a text or a number."""
