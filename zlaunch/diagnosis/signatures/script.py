"""Errors of the script."""

import re
from collections.abc import Iterator

from zlaunch.diagnosis.advice import BEFORE_TRAINING, named_in
from zlaunch.diagnosis.case import Case, Reading, error_of
from zlaunch.diagnosis.evidence import ErrorEvidence
from zlaunch.diagnosis.log_text import matching_line, tidy
from zlaunch.diagnosis.signature import quotes, signature
from zlaunch.diagnosis.stacks import LIBRARY
from zlaunch.job.moved_imports import lacking_import, moved_import
from zlaunch.units import plural, whole


@signature("local-rank-refused", "`unrecognized arguments: --local_rank=0`")
@quotes(r"unrecognized arguments:[^\n]*--local[-_]rank")
def local_rank_refused(case: Case, line: str) -> Reading:
    """The script does not define `--local_rank`, which DeepSpeed's launcher adds."""
    other = []
    if case.job.launcher == "deepspeed":
        other.append("`--launcher torchrun`: it adds no arguments")
    instead = 'or read `os.environ["LOCAL_RANK"]` in the script, without an argument'
    cause = "the script does not define `--local_rank`, which DeepSpeed's launcher adds"
    return Reading(cause, (line,), (*other, instead))


@signature("local-rank-differs", "`Mismatch in local rank setting`")
@quotes(r"Mismatch in local rank setting")
def local_rank_differs(case: Case, line: str) -> Reading:
    """The script passes DeepSpeed a `local_rank` that differs from the launcher's LOCAL_RANK."""
    advice = ('define `--local_rank` with `default=int(os.environ["LOCAL_RANK"])`, or `default=-1`',)
    cause = f"the `local_rank` of the script differs from the launcher's LOCAL_RANK on {case.who}"
    return Reading(cause, (line, where(case.error)), advice)


@signature("wrong-arguments", "`usage:` and status 2; `are not used by the HfArgumentParser`")
def wrong_arguments(case: Case) -> Reading | None:
    """The script rejected its arguments."""
    status = None if case.rank is None else case.rank.returncode
    message = matching_line(r"(?m)^\S[^\n]{0,200}: error: [^\n]+$", case.log)
    if error := matching_line(r"not used by the HfArgumentParser", case.words):
        cause = "the script does not define an argument"
        rejected = named_in(error, r"HfArgumentParser: \[([^\]]{1,200})\]")
        if rejected:
            return Reading(cause, (f"unrecognized: {rejected}", *_appended(case, error)))
        return Reading(cause, (error, *_appended(case, error)))
    is_usage = case.error is None or case.error.type == "SystemExit"
    if status != 2 or message is None or not is_usage:
        return None
    why = message.partition(": error: ")[2] or message
    return Reading("the script rejected its arguments", (why, *_appended(case, why)))


def _appended(case: Case, error: str) -> Iterator[str]:
    named = re.findall(r"--[\w-]+", error)
    rejected = [word for word in case.job.appended if word in named]
    if rejected:
        yield f"zlaunch added `{' '.join(rejected)}`; the other arguments are yours"


@signature("script-missing", "`can't open file`, and status 2")
@quotes(r"can't open file '[^'\n]*'")
def script_missing(case: Case, line: str) -> Reading:
    """Python did not find the script, on the host of that rank."""
    return Reading(f"{case.who} did not find the script", (line,))


@signature("not-launched", "`No module named 'mpi4py'` in `init_distributed`")
def not_launched(case: Case) -> Reading | None:
    """DeepSpeed found no variables of a launcher in the environment, so it tried MPI."""
    if "No module named 'mpi4py'" not in case.words or "deepspeed" not in case.story:
        return None
    facts = (case.words.splitlines()[0],)
    cause = f"DeepSpeed found no RANK and WORLD_SIZE in the environment of {case.who}, so it tried MPI"
    return Reading(cause, facts)


@signature("import-moved", "`No module named 'transformers.deepspeed'`, `cannot import name 'AdamW'`")
def import_moved(case: Case) -> Reading | None:
    """The script imports a name from where an older release of a package had it."""
    error = case.error
    words = raised_from(error) or case.words
    moved = moved_import(words)
    if moved is None or (error is not None and error.type not in {"ModuleNotFoundError", "ImportError"}):
        return None
    old, advice = moved
    cause = f"`{old}` is no longer in the installed {old.partition('.')[0]}"
    return Reading(cause, (where(error), words.strip()[:200]), (advice,))


@signature("module-missing", "ModuleNotFoundError, `No module named`")
def module_missing(case: Case) -> Reading | None:
    """A module that the script imports is not installed in this Python."""
    error, missing = case.error, r"No module named '?([\w.]+)'?"
    words = raised_from(error)
    name = named_in(words, rf"ModuleNotFoundError: {missing}")
    if name is None:
        words, name = case.words, named_in(case.words, missing)
        if name is None or (error is not None and error.type not in {"ModuleNotFoundError", "ImportError"}):
            return None
    facts = (where(error), words.strip()[:200])
    if (lacking := lacking_import(words)) is not None:
        cause, remedy = lacking
        return Reading(cause, facts, (remedy,))
    advice = []
    if name in _PACKAGES:
        advice.append(f"`pip install {_PACKAGES[name]}`")
    cause = f"`{name}` is not installed in the Python of {case.who}"
    return Reading(cause, facts, advice)


_SAME_NAME = (
    *("datasets", "evaluate", "peft", "trl", "wandb", "tensorboard", "tiktoken", "einops", "deepspeed"),
    *("accelerate", "transformers", "torch", "torchvision", "safetensors", "numpy", "scipy", "pandas"),
    *("sentencepiece", "bitsandbytes", "tabulate", "mpi4py", "nltk", "tqdm", "huggingface_hub", "httpx"),
    *("requests", "jinja2", "fsspec", "psutil", "pydantic", "regex", "tokenizers", "packaging", "filelock"),
)
_PACKAGES = {
    **{name: name for name in _SAME_NAME},
    "flash_attn": "flash-attn",
    "yaml": "PyYAML",
    "PIL": "Pillow",
    "sklearn": "scikit-learn",
    "cv2": "opencv-python",
    "comet_ml": "comet-ml",
}
"""Modules whose package is known for sure."""


@signature("no-such-device", "`invalid device ordinal`")
@quotes(r"invalid device ordinal")
def no_such_device(case: Case, line: str) -> Reading:
    """A rank selected a GPU number that does not exist on its host, or is not visible."""
    return Reading(f"{case.who} selected a GPU that does not exist or is not visible", (line,))


@signature("no-gpu", "`No CUDA GPUs are available`, `Torch not compiled with CUDA enabled`, a driver too old")
@quotes(
    r"No CUDA GPUs are available|Torch not compiled with \w+ enabled|Found no NVIDIA driver"
    r"|Cannot access accelerator device when none is available"
    r"|torch\._C' has no attribute '_cuda_|Cannot get CUDA generator|requires CUDA support"
    r"|driver on your system is too old"
    r"|no CUDA-capable device is detected|CUDA driver version is insufficient"
)
def no_gpu(case: Case, line: str) -> Reading:
    """The script needs a GPU, but torch cannot use any."""
    advice = []
    if case.evidence.job.accelerator == "cpu":
        advice.append("move tensors `.to(engine.device)`, not to a number or to `cuda`: it is the CPU here")
    return Reading(f"{case.who} needs a GPU, but torch cannot use any", (line, where(case.error)), advice)


@signature("device-side-assert", "`device-side assert triggered`")
@quotes(r"device-side assert triggered")
def device_side_assert(case: Case, line: str) -> Reading:
    """An assertion failed in a GPU kernel, usually because a token or label is out of range."""
    assertion = matching_line(r"Assertion `[^`\n]+` failed", case.log)
    advice = ("`CUDA_LAUNCH_BLOCKING=1` shows the line that launched it",)
    cause = f"an assertion failed in a GPU kernel of {case.who}, usually about an index"
    return Reading(cause, (assertion, line, where(case.error)), advice)


@signature("gpu-fault", "`illegal memory access`, `uncorrectable ECC error`, `unspecified launch failure`")
@quotes(
    r"illegal memory access|uncorrectable ECC|unspecified launch failure|misaligned address"
    r"|GPU has fallen off the bus"
    r"|CUDA error: (?:an illegal instruction|the launch timed out|hardware stack error)"
)
def gpu_fault(case: Case, line: str) -> Reading:
    """A kernel or the GPU itself failed."""
    facts = (line, _memory_errors(case), where(case.error))
    return Reading(f"a kernel or the GPU of {case.who} failed", facts)


def _memory_errors(case: Case) -> str | None:
    if case.rank is None:
        return None
    gpu = case.rank.sample.get("gpu") or {}
    if counted := whole(gpu.get("uncorrected_errors")):
        return f"uncorrected errors of its memory since the driver was loaded: {counted}"
    return None


@signature("hub-refused", "`gated repo`, `401 Client Error`, `403 Client Error`")
@quotes(r"gated repo|40[13] Client Error[^\n]*huggingface|GatedRepoError|is restricted")
def hub_refused(case: Case, line: str) -> Reading:
    """The Hugging Face Hub denied this user access to a model or dataset."""
    repo = named_in(case.words, r"huggingface\.co/([\w.-]+/[\w.-]*\w)")
    facts, advice = [line], []
    if repo and repo not in line:
        facts.append(repo)
    if repo:
        advice.append(f"ask for access at `https://huggingface.co/{repo}`, then `hf auth login`")
    return Reading("the Hugging Face Hub denied access to what the script loads", facts, advice)


@signature("hub-unreachable", "`couldn't connect to 'https://huggingface.co'`, `OfflineModeIsEnabled`")
@quotes(
    r"couldn't connect to '?https?://|Couldn't reach '|OfflineModeIsEnabled|offline mode is enabled"
    r"|Cannot find the requested files in the (?:disk|local) cache"
    r"|(?:NameResolution|MaxRetry)Error[^\n]*huggingface"
)
def hub_unreachable(case: Case, line: str) -> Reading:
    """A model or dataset is not on this disk, and the Hugging Face Hub is not reachable."""
    wanted = named_in(case.story, r"[Cc]ouldn't reach '([^'\n]{1,80})'") or named_in(
        case.story, r"huggingface\.co/(?!docs)([\w.-]+/[\w.-]+?)/"
    )
    asked = f"`{wanted}` is" if wanted else "what the script loads is"
    return Reading(f"{asked} not on this disk, and the Hub is not reachable", (line, where(case.error)))


@signature(
    "model-not-found", "`is not a local folder and is not a valid model identifier`, `Repo id must be`"
)
@quotes(
    r"is not a local folder|Repo id must|404 Client Error[^\n]*huggingface"
    r"|does not appear to have a file named"
    r"|doesn't exist on the Hub|RepositoryNotFoundError"
    r"|doesn't contain any data files|No \(supported\) data files found in"
)
def model_not_found(case: Case, line: str) -> Reading:
    """A model or dataset of this name exists neither on this disk nor on the Hub."""
    cause = "the script names a model or dataset that does not exist"
    if lacks := re.search(r"(\S+) does not appear to have a file named (\S+?)[.,]?(?:\s|$)", line):
        cause = f"`{lacks[1]}` exists, but has no file `{lacks[2]}`"
    elif empty := re.search(r"directory at (\S+) doesn't contain|data files found in (\S+)", line):
        cause = f"the folder `{empty[1] or empty[2]}` exists, but has no data files that `datasets` reads"
    return Reading(cause, (line, where(case.error)))


_EMPTY = (
    r"\bsize:? 0\b|\(0\)|\[0\]|\b0x\d|\dx0\b|\b0 elements|\bnot 0\b|numel\(\) == 0|'weight' must be 2-D"
    r"|fewer than 2 dimensions|with 2 (?:or more )?dimensions|must be a matrix|at least three dimensions"
    r"|too many indices for tensor of dimension 1|range of \[-1, 0\], but got -?\d|Padding_idx must be within"
    r"|tuple index out of range|not enough values to unpack|non-zero size|at least 2 dimensions"
    r"|= 0 and channel|expected 0 got|dimensions \(1\) for operand"
)
"""What torch says of a tensor that has no elements, and one dimension."""

_OF_PARAMETERS = re.compile(
    r"/torch/nn/(?:functional|init|parameter|modules/\w+)\.py$|/deepspeed/runtime/zero/linear\.py$|/transformers/(?:modeling_utils|initialization)\.py$"
    r"|/transformers/models/"
)
"""Modules whose functions get parameters."""

_PARAMETER = re.compile(r"\b(?:weight|bias|param(?:eter)?s?|p|emb\w*|lm_head)\b|_parameters\(")


@signature(
    "partitioned-parameter",
    "at stage 3 or in a model of `zero.Init`, torch's words about a tensor of size 0, in a function that gets"
    " parameters",
)
def partitioned_parameter(case: Case) -> Reading | None:
    """A parameter was used while it was empty: stage 3 partitions it, and only the engine gathers it."""
    error = case.error
    if error is None or error.type not in _OF_EMPTY:
        return None
    opens_init = _OF_ZERO_INIT.search(error.traceback) is not None
    if not (case.job.stage == 3 or opens_init) or _from_empty_checkpoint(error):
        return None
    line = matching_line(_EMPTY, error.message)
    if line is None or not _uses_parameter(error):
        return None
    facts = (f"{error.type}: {line}", where(error))
    if case.job.stage == 3:
        cause = f"{case.who} used a parameter that is empty, because stage 3 has partitioned it"
        return Reading(cause, facts, _how_to_gather(case, error))
    cause = f"`zero.Init` has partitioned a parameter, which is not gathered at stage {case.job.stage}"
    return Reading(cause, facts, ("`--stage 3`", "or create the model without `deepspeed.zero.Init`"))


_OF_ZERO_INIT = re.compile(
    r"zero\.Init|partition_parameters\.py|zero3_linear_wrap|LinearFunctionForZeroStage3"
)
"""Code that runs only where `zero.Init` has been entered, if the stage is not 3."""

_OF_EMPTY = frozenset({"RuntimeError", "IndexError", "ValueError", "AssertionError"})


def _from_empty_checkpoint(error: ErrorEvidence) -> bool:
    return re.search(r"param with shape torch\.Size\(\[0\]\) from checkpoint", error.message) is not None


def _uses_parameter(error: ErrorEvidence) -> bool:
    """Whether the exception was raised in a function of parameters, or in a line about one."""
    places = re.findall(r'File "([^"\n]+)", line \d+[^\n]*\n([^\n]*)', error.traceback)
    if not places:
        return False
    if _OF_PARAMETERS.search(places[-1][0]):
        return True
    outside = [code for file, code in places if "/torch/" not in file]
    return bool(outside) and _PARAMETER.search(outside[-1]) is not None


_WRITES = re.compile(
    r"load_state_dict|/torch/nn/init\.py|/transformers/initialization\.py|\binit\.\w+_\(|_init_weights"
    r"|\.(?:copy|fill|zero|normal|uniform|set)_\("
)
"""Code that sets parameters."""


def _how_to_gather(case: Case, error: ErrorEvidence) -> tuple[str, ...]:
    if "from_pretrained" in error.traceback:
        instead = "keep an `HfDeepSpeedConfig(ds_config)` alive instead of `with deepspeed.zero.Init()`"
        return (f"{instead}: `from_pretrained` then partitions the model itself",)
    gathering = "deepspeed.zero.GatheredParameters(list(model.parameters())"
    if _WRITES.search(error.traceback):
        # `deepspeed.initialize` makes the optimizer's fp32 copy, which each step writes to the parameters.
        return (
            "set weights before `deepspeed.initialize`: what is set later is overwritten by the next step",
            f"in a model of `zero.Init`, set them within `{gathering}, modifier_rank=0)`",
        )
    gathers = f"`with {gathering}):` gathers them"
    if case.phase in BEFORE_TRAINING:
        return ("use the model after `deepspeed.initialize` or the Trainer has wrapped it", f"or {gathers}")
    return ("call the engine, or the model that the Trainer has wrapped", f"or {gathers}")


@signature("eight-bit-optimizer", "an exception in bitsandbytes' optimizers")
def eight_bit_optimizer(case: Case) -> Reading | None:
    """An 8-bit optimizer of bitsandbytes failed: it updates tensors on a GPU only, in its own layout."""
    error = case.error
    if error is None or "/bitsandbytes/optim/" not in error.traceback:
        return None
    advice = []
    if case.job.uses_trainer:
        advice.append("`-- --optim adamw_torch`: ZeRO partitions its states over the ranks")
    facts = [tidy(str(error)), where(error)]
    if case.job.offload.get("optimizer"):
        facts.insert(0, f"the optimizer is offloaded to {case.job.offload['optimizer']}")
    return Reading(f"the 8-bit optimizer of bitsandbytes failed on {case.who}", facts, advice)


OTHER_EXCEPTION = "script-exception"


@signature(OTHER_EXCEPTION, "any other exception")
def script_exception(case: Case) -> Reading | None:
    """The script raised an exception."""
    error = case.error
    if error is None or error.type in {"SystemExit", "KeyboardInterrupt"}:  # a status and a signal say more
        return None
    facts = [tidy(str(error))]
    if not error.message and (line := asserted_line(error)):
        facts = [f"{error.type}: `{line}`"]
    if root := raised_from(error):
        facts.append(f"caused by {tidy(root)}")
    if place := where(error):
        facts.append(place)
    errors = [str(other) for rank in case.evidence.ranks if (other := error_of(rank))]
    if (others := errors.count(str(error)) - 1) > 0:
        facts.append(f"the same on {plural(others, 'other rank')}")
    article = "an" if error.type[:1] in "AEIOU" else "a"
    return Reading(f"the script raised {article} {error.type} on {case.who}", facts)


_LINK = "\nThe above exception was the direct cause of the following exception:\n"


def raised_from(error: ErrorEvidence | None) -> str:
    """Return the exception that this one was raised from, as Python prints it; empty if there is none."""
    if error is None or _LINK not in error.traceback:
        return ""
    first, _, _ = error.traceback.partition(_LINK)
    raised: list[str] = re.findall(r"^[\w.]+(?:: .*)?$", first, re.MULTILINE)
    return "".join(raised[-1:])


def asserted_line(error: ErrorEvidence) -> str | None:
    """Return the last line of code in a traceback: all that a bare assertion says."""
    lines: list[str] = re.findall(r'File "[^"\n]+", line \d+[^\n]*\n +([^\s^~][^\n]*)', error.traceback)
    return tidy(lines[-1]) if lines else None


def where(error: ErrorEvidence | None) -> str | None:
    """Say where in the user's own code an exception was raised."""
    if error is None:
        return None
    if error.frame is not None and (file := error.frame.get("file")):
        return _source_place(file, error.frame.get("line"), error.frame.get("function"))
    places = re.findall(r'File "([^"\n]+)", line (\d+)(?:, in ([^\n]+))?', error.traceback)
    for file, line, function in reversed(places):
        if not LIBRARY.search(file):
            return _source_place(file, line, function)
    return None


def _source_place(file: str, line: int | str | None, function: str | None) -> str:
    place = f"{file}:{line}"
    if function:
        place += f" in {function}"
    return tidy(place)
