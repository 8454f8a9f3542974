"""DeepSpeed or the Trainer refused the ds_config or the arguments."""

import re
from dataclasses import replace

from zlaunch.config.client_optimizer import ALLOW_UNTESTED, NOT_ON_CPU, instead_on_cpu
from zlaunch.diagnosis.advice import named_in, setting
from zlaunch.diagnosis.case import Case, Reading
from zlaunch.diagnosis.log_text import matching_line, tidy
from zlaunch.diagnosis.signature import broken_rule, quotes, rule_text, signature, signature_of
from zlaunch.diagnosis.signatures.script import asserted_line, where
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_releases import in_code
from zlaunch.units import whole

ZERO = "zero_optimization"


@signature(
    "config-disagrees", "`config values that mismatch TrainingArguments`", rule="differs-from-argument"
)
def config_disagrees(case: Case) -> Reading | None:
    if "DeepSpeed config values that mismatch TrainingArguments" not in case.words:
        return None
    pairs = re.findall(r"(?m)^- (ds [^\n]{1,200})$", case.words)
    keys = [key for pair in pairs if (key := named_in(pair, r"^ds ([\w.]+)="))]
    advice = []
    if len(keys) == 1:
        advice.append(f"`--set {keys[0]}=auto`: the Trainer's argument decides")
    return Reading("the ds_config and the Trainer's arguments disagree", tuple(pairs[:3]), advice)


@signature("trainer-argument-missing", "`TrainingArguments.__init__() got an unexpected keyword argument`")
@quotes(r"\w*(?:Arguments|Config|Trainer)\.__init__\(\) got an unexpected keyword argument '\w+'")
def trainer_argument_missing(case: Case, line: str) -> Reading | None:
    """The script gives the Trainer an argument of an older or newer transformers."""
    name = named_in(line, r"argument '(\w+)'") or ""
    instead = in_code(name)
    if "Trainer.__init__" in line:
        instead = {"tokenizer": "use `processing_class`"}.get(name)
    if instead is None:
        return None
    cause = f"the installed transformers has no argument `{name}`"
    return Reading(cause, (line, where(case.error)), (instead,))


@signature("batch-mismatch", "`Check batch related parameters`", rule="batch-equation")
def batch_mismatch(case: Case) -> Reading | None:
    match = re.search(r"Check batch related parameters[^\n]*?(\d+) != (\d+) \* (\d+) \* (\d+)", case.words)
    if match is None:
        return None
    total, micro, pieces, ranks = map(int, match.groups())
    sizes = {
        "train_batch_size": total,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": pieces,
    }
    cause = broken_rule(
        "batch-equation",
        replace(case.job, config=sizes, world_size=ranks, interface=ConfigInterface.DEEPSPEED),
    )
    if ranks == 1 < case.job.world_size:
        return Reading(cause, (f"DeepSpeed counted one rank of {case.job.world_size}",))
    return Reading(cause, advice=(f"`--set train_batch_size={micro * pieces * ranks}`",))


@signature("removed-setting", "`DeepSpeedConfigError: … has been removed`")
def removed_setting(case: Case) -> Reading | None:
    """The ds_config has a section that this DeepSpeed refuses, even if it is switched off."""
    error = case.error
    if error is None or error.type != "DeepSpeedConfigError" or "has been removed" not in error.message:
        return None
    named = re.findall(r"'([a-z_.]{1,60})'", error.message)
    present = [key for key in named if setting(case.job.config, *key.split(".")) is not None]
    advice = [f"delete `{key}` from the ds_config" for key in present[:1]]
    cause = "the ds_config has a section that this DeepSpeed refuses"
    return Reading(cause, (tidy(error.message),), advice)


@signature_of("no-hidden-size", "`config file has neither`, then `hidden_size`")
def no_hidden_size(case: Case) -> Reading | None:
    if not re.search(r"neither `?hidden_size`? nor `?hidden_sizes`? entry", case.words):
        return None
    listed = named_in(case.words, r"\[([^\]\n]{1,400})\]")
    keys = re.findall(r"[\w.]+", listed or "")[:3]
    advice = [f"use numbers instead: `--set {key}=NUMBER`" for key in keys[:1]]
    cause = 'the Trainer cannot fill in "auto": the model\'s config has no `hidden_size`'
    return Reading(cause, keys or (matching_line("neither `?hidden_size", case.words),), advice)


@signature("bad-warmup", "`warmup_num_steps must be a positive integer`")
@quotes(r"warmup_num_steps must be a positive integer")
def bad_warmup(case: Case, line: str) -> Reading:
    """`warmup_num_steps` of the scheduler must be an integer of at least 1."""
    advice = []
    if line.endswith("got 0"):
        advice.append("`--set scheduler.params.warmup_num_steps=1`: practically no warmup")
    cause = "`warmup_num_steps` of the scheduler is not an integer of at least 1"
    return Reading(cause, (line,), advice)


@signature("client-optimizer", "`You are using ZeRO-Offload with a client provided optimizer`")
def client_optimizer(case: Case) -> Reading | None:
    """The optimizer is offloaded, but the script creates one that runs on the GPU."""
    if "ZeRO-Offload with a client provided optimizer" not in case.words:
        return None
    brought = named_in(case.words, r"client provided optimizer \((.{1,100}?)\) which")
    facts = []
    if brought:
        facts.append(f"the script's optimizer is {brought}")
    return Reading(NOT_ON_CPU, facts, instead_on_cpu(brought or ""))


@signature("untested-optimizer", "`You are using an untested ZeRO Optimizer`", rule="untested-optimizer")
@quotes(r"You are using an untested ZeRO Optimizer")
def untested_optimizer(case: Case, line: str) -> Reading | None:
    return Reading(rule_text("untested-optimizer"), (line, where(case.error)), (ALLOW_UNTESTED,))


@signature(
    "no-optimizer",
    "`zero stage 2 requires an optimizer`, `must provide optimizer during init`, "
    "`'DeepSpeedZeRoOffload' object has no attribute`",
)
@quotes(
    r"zero stage \d requires an optimizer|must provide optimizer during init"
    r"|'DeepSpeedZeRoOffload' object has no attribute 'set_gradient_accumulation_boundary'"
    r"|assert len\(self\.bf16_groups\) == len\(self\.optimizer\.param_groups\)",
    "story",
)
def no_optimizer(case: Case, line: str) -> Reading | None:
    """Neither the script nor the ds_config defines an optimizer; the error depends on the stage."""
    if setting(case.job.config, "optimizer") is not None:
        return None
    advice = (
        "`--set optimizer.type=AdamW --set optimizer.params.lr=1e-4`: DeepSpeed creates one",
        "or pass `optimizer=` to `deepspeed.initialize`",
    )
    return Reading("neither the script nor the ds_config defines an optimizer", (line,), advice)


@signature(
    "nothing-trainable",
    "`optimizer got an empty parameter list`; in DeepSpeed's optimizer, `list index out of range` or a bare"
    " AssertionError about a group",
)
def nothing_trainable(case: Case) -> Reading | None:
    """All parameters of the optimizer, or of a group of it, are frozen, or there are none."""
    error = case.error
    if error is None:
        return None
    line = asserted_line(error) or ""
    if error.message.startswith("optimizer got an empty parameter list"):
        line = str(error)
    elif not _EMPTY_GROUP.search(line) or "Stage" not in error.traceback:
        return None
    cause = "the optimizer, or one of its groups, has no parameter with `requires_grad=True`"
    advice = (
        "unfreeze parameters, or add the LoRA adapter, before `deepspeed.initialize`",
        "and leave out groups that have only frozen parameters",
    )
    return Reading(cause, (tidy(line), where(error)), advice)


_EMPTY_GROUP = re.compile(
    r"self\.bit16_groups\[i\]\[0\]\.dtype|assert len\(set\(t\.dtype for t in tensors\)\) == 1"
)
"""What DeepSpeed asks of the trainable parameters of a group, which fails if there are none."""


@signature(
    "scalar-parameter",
    "`self.dim() cannot be 0 to view …` in `_broadcast_model`, `_zero_init_param`",
)
def scalar_parameter(case: Case) -> Reading | None:
    """The model has a parameter without dimensions, which DeepSpeed cannot broadcast."""
    error = case.error
    if error is None or not re.search("_broadcast_model|_zero_init_param", error.traceback):
        return None
    line = matching_line(r"self\.dim\(\) cannot be 0 to view", error.message)
    if line is None:
        return None
    cause = "the model has a parameter without dimensions, which DeepSpeed cannot broadcast"
    advice = (
        "create it with shape [1]: `torch.tensor([1.0])`",
        "or install DeepSpeed 0.19.7, which broadcasts it: `pip install deepspeed==0.19.7`",
    )
    return Reading(cause, (line, where(error)), advice)


@signature(
    "backward-without-engine",
    "`Direct calls to tensor.backward() are not supported`, `backward() was called directly without scaling`",
)
@quotes(
    r"Direct calls to tensor\.backward\(\) are not supported"
    r"|backward\(\) was called directly without scaling"
)
def backward_without_engine(case: Case, line: str) -> Reading:
    """The script calls `loss.backward()`, which the engine does not allow at stage 0 or in fp16."""
    facts = (line.partition(". ")[0], where(case.error))
    advice = ("`engine.backward(loss)` instead of `loss.backward()`",)
    cause = "the script calls `loss.backward()`, which this engine does not support"
    return Reading(cause, facts, advice)


@signature("inference-needs-stage-3", "`ZeRO inference only makes sense with ZeRO Stage 3`")
@quotes(r"ZeRO inference only makes sense with ZeRO Stage 3")
def inference_needs_stage_3(case: Case, line: str) -> Reading:
    """The Trainer evaluates or predicts before any training, which it does with DeepSpeed at stage 3 only."""
    advice = (
        "`--stage 3`",
        "or run a script that only evaluates without DeepSpeed, or call `trainer.train()` before",
    )
    cause = f"without a training, the Trainer evaluates at stage 3 only, not at stage {case.job.stage}"
    return Reading(cause, (line, where(case.error)), advice)


@signature("optimizer-on-gpu", "`CPUAdam param is on cuda:0 and must be 'cpu'`")
@quotes(r"CPU\w+ param is on \S+ and must be 'cpu'")
def optimizer_on_gpu(case: Case, line: str) -> Reading:
    """DeepSpeed's CPU optimizer received parameters on a GPU."""
    advice = []
    if case.job.stage == 0:
        advice.append("`--stage 2 --offload optimizer:cpu`")
    return Reading("DeepSpeed's CPU optimizer received parameters on a GPU", (line,), advice)


@signature(
    "no-nvme-path",
    "`nvme_path`, or `join() … not 'NoneType'` in DeepSpeed's swapping",
    rule="nvme-needs-a-path",
)
def no_nvme_path(case: Case) -> Reading | None:
    parts = [part for part in ("offload_optimizer", "offload_param") if _is_without_a_path(case, part)]
    about = re.search(
        r"nvme_path|(?:join\(\) argument|path should be|expected str, bytes).{0,60}NoneType", case.words
    )
    if not parts or about is None:
        return None
    line = matching_line(r"nvme_path|NoneType", case.words)
    return Reading(broken_rule("nvme-needs-a-path", case.job), (line,), ("`--nvme DIR`",))


def _is_without_a_path(case: Case, part: str) -> bool:
    section = setting(case.job.config, ZERO, part)
    return isinstance(section, dict) and section.get("device") == "nvme" and not section.get("nvme_path")


_TOO_FEW = "there are too few buffers to swap what is offloaded to NVMe"


@signature_of("too-few-buffers", "a bare AssertionError in `swap_tensor`, `ran out of swap buffers`")
def too_few_buffers(case: Case) -> Reading | None:
    swapping = case.error is not None and case.error.type == "AssertionError" and "swap_tensor" in case.story
    ran_out = "ran out of swap buffers" in case.words
    if not ran_out and not (swapping and "_buffers is not None" in case.story):
        return None
    facts = [matching_line(r"ran out of swap buffers|assert \w+_buffers is not None", case.story)]
    count = whole(setting(case.job.config, ZERO, "offload_optimizer", "buffer_count"))
    if count is not None:
        facts.append(f"buffer_count: {count}")
    advice = []
    if count is not None and count < 4:
        advice.append(f"`--set {ZERO}.offload_optimizer.buffer_count=4`")
    return Reading(broken_rule("too-few-buffers", case.job, _TOO_FEW), facts, advice)


@signature_of(
    "null-offload", "`'NoneType' object has no attribute 'get'` in accelerate, with a section that is null"
)
def null_offload(case: Case) -> Reading | None:
    parts = [part for part in ("offload_optimizer", "offload_param") if _is_null(case, part)]
    crashed = "'NoneType' object has no attribute 'get'" in case.words and "accelerat" in case.story
    if not crashed or not parts:
        return None
    advice = (f"delete `{ZERO}.{parts[0]}` from the ds_config",)
    return Reading(f"accelerate crashed because `{parts[0]}` is null", (f"{parts[0]}: null",), advice)


def _is_null(case: Case, part: str) -> bool:
    section = setting(case.job.config, ZERO)
    return isinstance(section, dict) and part in section and section[part] is None


@signature(
    "precision-unsupported", "`Type bf16 is not supported on your device`, `setup doesn't support bf16`"
)
@quotes(r"Type \w+ is not supported on your device|[Yy]our setup doesn't support bf16")
def precision_unsupported(case: Case, line: str) -> Reading:
    """The device does not support the training precision."""
    needs_cpu = case.job.accelerator == "cpu" and "use_cpu" in case.words
    advice = []
    if needs_cpu:
        advice.append("`use_cpu=True` in `TrainingArguments`: bf16 works on a CPU with it")
    return Reading(f"the device of {case.who} does not support this precision", (line,), advice)


@signature("no-sync", "`no_sync context manager is incompatible with gradient partitioning`")
@quotes("no_sync context manager is incompatible")
def no_sync(case: Case, line: str) -> Reading:
    """The script uses `no_sync`, which delays gradient reduction; stages 2 and 3 do not support it."""
    advice = []
    if case.job.stage >= 2:
        advice.append("`--stage 1` supports it")
    return Reading(f"stage {case.job.stage} does not support `no_sync`", (line,), advice)


@signature("reduced-twice", "`The parameter N has already been reduced`")
@quotes(r"The parameter .{0,200}? has already been reduced")
def reduced_twice(case: Case, line: str) -> Reading:
    """A parameter received two gradients in one backward pass, which ZeRO does not support."""
    advice = []
    if case.job.gradient_checkpointing is True and case.job.uses_trainer:
        advice.append(
            "with gradient checkpointing: `-- --gradient_checkpointing_kwargs '{\"use_reentrant\": false}'`"
        )
    return Reading("a parameter received two gradients in one backward pass", (line,), advice)


@signature(
    "config-refused", "DeepSpeedConfigError; a ValidationError or an assertion in DeepSpeed's config reader"
)
def config_refused(case: Case) -> Reading | None:
    """DeepSpeed refused the ds_config."""
    error = case.error
    if error is None:
        return None
    ours = error.type == "DeepSpeedConfigError"
    model = named_in(error.message, r"validation errors? for ((?:DeepSpeed|Deep)\w+)")
    reader = error.type in {"AssertionError", "ValueError", "TypeError", "KeyError"} and _was_raised_in(
        error.traceback,
        r"deepspeed/runtime/(?:config|config_utils|zero/config|zero/offload_config|precision_config)\.py",
    )
    if not (ours or (error.type == "ValidationError" and model) or reader):
        return None
    lines = list(filter(None, map(tidy, error.message.splitlines())))
    facts: list[str | None] = [*lines[:1]]
    if model and len(lines) > 2:
        facts = [*lines[1:3]]
    if not lines:
        facts = [matching_line(r"(?m)^ +assert ", error.traceback)]
    return Reading("DeepSpeed refused the ds_config", facts)


def _was_raised_in(traceback: str, pattern: str) -> bool:
    places = re.findall(r'File "([^"\n]+)"', traceback)
    return bool(places) and re.search(pattern, places[-1]) is not None


@signature(
    "autotuning-left-on",
    "every rank returned 0 after a few steps, with `autotuning.enabled`",
    rule="autotuning-ends-the-job",
)
def autotuning_left_on(case: Case) -> Reading | None:
    ranks = case.evidence.ranks
    if setting(case.job.config, "autotuning", "enabled") is not True or not ranks:
        return None
    if any(rank.returncode != 0 for rank in ranks):
        return None
    steps, total = max(rank.step for rank in ranks), ranks[0].heartbeat.get("steps")
    if not isinstance(total, int) or steps >= total:
        return None
    advice = ("`--set autotuning.enabled=false`",)
    facts = (f"the job ended after {steps} of {total} steps",)
    return Reading(broken_rule("autotuning-ends-the-job", case.job), facts, advice, is_local=False)
