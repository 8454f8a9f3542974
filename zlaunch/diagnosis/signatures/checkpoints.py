"""Checkpoints and weights that could not be loaded."""

import pickle
import re
from collections.abc import Iterator

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
    advice = ("`zlaunch checkpoint export CHECKPOINT OUT` writes them from DeepSpeed's files",)
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


_FIRST_BYTE = r"Unsupported operand (\d+)|invalid load key, '(.)'"
"""How torch and pickle name the first byte of a file that is no pickle."""

_OPCODES = {code[0] for code in vars(pickle).values() if isinstance(code, bytes) and len(code) == 1}


def _first_byte(words: str) -> str:
    """Return the byte at which reading a file ended, if no pickle has it; empty if there is none."""
    match = re.search(_FIRST_BYTE, words)
    if match is None:
        return ""
    number = int(match[1]) if match[1] else ord(match[2])
    return "" if number in _OPCODES else chr(number)


@signature(
    "not-downloaded",
    "`invalid load key, 'v'`, `Unsupported operand 118`; a Git LFS pointer among the files of the model",
)
@quotes(
    rf"{_FIRST_BYTE}|Error while deserializing header|not a valid JSON|Expecting value: line 1 column 1"
    r"|expected value at line 1 column 1|could not parse ModelProto"
)
def not_downloaded(case: Case, line: str) -> Reading | None:
    """A file of the model or checkpoint is a Git LFS pointer, or a web page, in place of its content."""
    for file, text in case.job.pointers.items():
        what, _, command = text.partition("; ")
        return Reading(f"`{file}`: {what}", (line,), (command,))
    match _first_byte(case.words):
        case "v":
            cause = "a file is text that begins with `v`, as a Git LFS pointer does, not a file of weights"
            return Reading(cause, (line,), ("`head FILE` shows it; `git lfs pull` downloads the file",))
        case "<":
            cause = "a file is text that begins with `<`, as a web page does, not a file of weights"
            return Reading(cause, (line,), ("`head FILE` shows it; download the file again",))
    return None


@signature("weights-only-refused", "`Weights only load failed` with `Unsupported global`")
def weights_only_refused(case: Case) -> Reading | None:
    """`torch.load` refused a class that torch 2.6 and newer does not allow by default; no file is damaged."""
    line = matching_line(
        r"Unsupported global: |Unsupported class |Unsupported operand \d|Trying to (?:call|instantiate)"
        r"|WeightsUnpickler error: .|Cannot use ``weights_only=True``",
        case.words,
    )
    if line is None or _first_byte(case.words) or "weights_only" not in case.words:
        return None
    named = named_in(line, r"Unsupported (?:global: GLOBAL|class) ([\w.]{1,100})") or "what is in the file"
    return Reading(
        f"torch refuses to load {named}, by default since 2.6; the file is not damaged",
        (re.sub(r"(WeightsUnpickler error: )|(\. Please use .*)", "", line),),
        tuple(_ways_to_load(case.story)),
    )


@signature("torch-too-old-to-load", "`Due to a serious vulnerability issue in torch.load`")
@quotes(r"Due to a serious vulnerability issue in `?torch\.load")
def torch_too_old_to_load(case: Case, line: str) -> Reading:
    """Files of `torch.save` are loaded by transformers only with torch 2.6 or newer, which is safe."""
    advice = ("install torch 2.6 or newer", "or an older transformers; a model may come as safetensors, too")
    return Reading("transformers refuses to load a file of `torch.save` with this torch", (line,), advice)


_FORCED = "if you trust the file, `--env TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1` loads it"


def _ways_to_load(story: str) -> Iterator[str]:
    """Advise what has an effect: torch heeds the variable only where the caller does not decide."""
    if "_load_rng_state" in story:
        yield "a newer transformers loads it"
        yield "or move `rng_state*.pth` out of the checkpoint: the random numbers then start again"
        return
    decides = re.search(r"load\([^\n]*weights_only\s*=\s*True|/accelerate/utils/other\.py", story)
    if re.search(r"/(?:fast|decoupled)_checkpoint_engine\.py", story):
        yield "leave `checkpoint.writer` out of the ds_config: DeepSpeed then loads the same checkpoint"
    elif "/deepspeed/" in story:
        yield "a newer DeepSpeed loads it"
    else:
        yield "load it with `weights_only=False` if you trust the file"
    if not decides:
        yield _FORCED


@signature(
    "checkpoint-corrupt",
    "`PytorchStreamReader failed`, `Error while deserializing header`, `EOFError` while loading",
)
def checkpoint_corrupt(case: Case) -> Reading | None:
    """A file of the checkpoint or the model is truncated, empty, or in another format."""
    line = matching_line(
        r"PytorchStreamReader failed|Error while deserializing|invalid load key|MetadataIncompleteBuffer"
        r"|Unable to load weights from pytorch checkpoint|pickle data was truncated|unexpected EOF"
        r"|Unsupported operand",
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
