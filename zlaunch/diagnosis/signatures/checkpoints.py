"""Checkpoints and weights that could not be loaded."""

import re

from zlaunch.diagnosis.advice import named_in
from zlaunch.diagnosis.case import Case, Reading
from zlaunch.diagnosis.log_text import matching_line, tidy
from zlaunch.diagnosis.signature import quotes, signature
from zlaunch.dsconfig.schema.storage import SET_LOAD_UNIVERSAL
from zlaunch.rundir import phases

_FILE = r"['\"`]?((?:/|\./)?[\w./+-]*\.(?:pt|pth|bin|safetensors|json|ckpt))\b"


@signature("other-world-size", "`The checkpoint being loaded used a DP world size of X`")
def other_world_size(case: Case) -> Reading | None:
    """The checkpoint was saved with a different number of ranks; its optimizer states do not match."""
    match = re.search(r"used a DP\s+world size of (\d+) but the\s+current world size is (\d+)", case.words)
    if match is None:
        return None
    then, now = match.groups()
    advice = (
        f"use {then} ranks again",
        f"or `zlaunch checkpoint reshard DIR --ranks {now}`, then `{SET_LOAD_UNIVERSAL}`",
    )
    return Reading(
        f"the checkpoint was saved with {then} ranks, but the job has {now}",
        (tidy(match.group()),),
        advice,
    )


@signature("sharded-weights", "`size mismatch` with `torch.Size([0]) from checkpoint`")
@quotes(r"size mismatch[^\n]{0,300}torch\.Size\(\[0\]\) from checkpoint")
def sharded_weights(case: Case, line: str) -> Reading:
    """The weights were saved at stage 3 without being gathered: the file holds empty tensors."""
    advice = ("`python zero_to_fp32.py . OUT` in the checkpoint directory gathers them",)
    return Reading("the weights were saved at stage 3 without being gathered", (line,), advice)


@signature(
    "checkpoint-missing", "`Can't find a valid checkpoint`, `No valid checkpoint found`, `failed to resume`"
)
@quotes(
    r"Can't find a valid checkpoint|No valid checkpoint found|failed to resume from checkpoint"
    r"|Can't find a checkpoint index|Invalid for universal checkpoint"
    r"|No such file or directory: '[^'\n]*(?:/trainer_state\.json|/global_step\d+|/latest)"
)
def checkpoint_missing(case: Case, line: str) -> Reading:
    """The checkpoint to resume from does not exist."""
    place = named_in(
        line, r"(?:checkpoint at|from checkpoint|in output directory|directory:) [('](?!\[)([^\s()']{1,150})"
    ) or named_in(line, r"(?:checkpoint at|from checkpoint) ([^\s()]{1,150})")
    what = f"checkpoint at `{place}`" if place else "checkpoint"
    return Reading(f"there is no {what} to resume from", (line,))


@signature(
    "checkpoint-corrupt",
    "`PytorchStreamReader failed`, `Error while deserializing header`, `EOFError` while loading",
)
def checkpoint_corrupt(case: Case) -> Reading | None:
    """A file of the checkpoint or the model is truncated, empty, or in another format."""
    line = matching_line(
        r"PytorchStreamReader failed|Error while deserializing|invalid load key|MetadataIncompleteBuffer"
        r"|Unable to load weights from pytorch checkpoint|UnpicklingError|unexpected EOF",
        case.words,
    )
    ended = (
        case.error is not None
        and case.error.type == "EOFError"
        and re.search(r"unpickl|serialization", case.story)
    )
    if line is None and not ended:
        return None
    what = "checkpoint" if case.phase == phases.RESUMING else "model or checkpoint"
    facts = [line or "EOFError"]
    if (file := named_in(case.words, _FILE)) and file not in facts[0]:
        facts.append(file)
    return Reading(f"a file of the {what} is corrupt", facts)


@signature(
    "checkpoint-of-another-model", "`Error(s) in loading state_dict`, `parameter group that doesn't match`"
)
@quotes(
    r"Error\(s\) in loading state_dict|doesn't match the size of optimizer's group"
    r"|different number of parameter groups"
)
def checkpoint_of_another_model(case: Case, line: str) -> Reading:
    """The checkpoint is from a model with other parameters, or from another optimizer."""
    detail = matching_line(r"size mismatch for|Missing key\(s\)|Unexpected key\(s\)", case.words)
    return Reading("the checkpoint does not match the model or its optimizer", (line, detail))


_OF_OPTIMIZER = r"/(?:torch/optim|deepspeed/ops/\w+)/\w+\.py\", line \d+, in \w+\n(?![^\n]*\n\s*File )"


@signature("optimizer-of-another-kind", "`KeyError: 'momentum'` in the first step of an optimizer")
def optimizer_of_another_kind(case: Case) -> Reading | None:
    """The checkpoint was saved with another optimizer, whose settings replaced those that this one needs."""
    error = case.error
    if error is None or error.type != "KeyError" or not re.search(_OF_OPTIMIZER, error.traceback):
        return None
    advice = (
        "use the optimizer that saved the checkpoint",
        "or begin from its weights: `zlaunch checkpoint export DIR OUT`",
    )
    return Reading(
        "the checkpoint was saved with another optimizer",
        (f"it has no `{error.message.strip(chr(39))}`, which the optimizer of this job needs",),
        advice,
    )
