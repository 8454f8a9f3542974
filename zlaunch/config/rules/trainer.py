"""Rules about how the Trainer and accelerate read a ds_config."""

import math
from collections.abc import Iterator

from zlaunch.config.rules.rule import (
    CPU,
    Context,
    Subject,
    Violation,
    advice,
    error,
    fails_later,
    ignored,
    warning,
    zero,
)
from zlaunch.dsconfig.keys.read_at import stages_reading
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.schema.zero import Zero
from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.errors import Fix, FixKind
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface
from zlaunch.job.source import Source
from zlaunch.job.trainer_args import ONE_RATE, Argument, TrainerArgs, find_mismatches, rates_differ
from zlaunch.job.unused_arguments import unused_arguments
from zlaunch.units import plural, whole

_STAGE_2 = {"zero_optimization": {"stage": 2}}
_AUTO = {"train_micro_batch_size_per_gpu": "auto", **_STAGE_2}


def _told(**arguments: bool | float | str) -> Context:
    given = {name: Argument(value, Source.argument(name), given=True) for name, value in arguments.items()}
    return Context(args=TrainerArgs(given))


@fails_later({**_AUTO, "gradient_clipping": 0.5}, {"gradient_clipping": "auto"}, _told(max_grad_norm=1.0))
def differs_from_argument(subject: Subject) -> Iterator[Violation]:
    """The Trainer refuses a number that differs from its argument, even from the argument's default."""
    if not subject.for_trainer or subject.context.args is None:
        return
    for mismatch in find_mismatches(subject.written.get, subject.context.args):
        key = ".".join(mismatch.path)
        if subject.has_both_formats and mismatch.path[0] in ("bf16", "fp16"):  # reported by `both-formats`
            continue
        yield Violation(key, f"`{key}` is {mismatch.value}, but {mismatch.said}", mismatch.remedy)


@fails_later(
    {
        **_AUTO,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 6e-4}},
    },
    {"scheduler.params.warmup_max_lr": 1e-4},
)
def no_learning_rate_suits_both(subject: Subject) -> Iterator[Violation]:
    """The Trainer compares `lr` and `warmup_max_lr` with `--learning_rate`, and refuses whichever differs."""
    is_reported = subject.context.args is not None  # by `differs_from_argument`
    if subject.for_trainer and not is_reported and rates_differ(subject.written.get):
        rate = subject.param("lr")
        yield Violation(
            "scheduler.params.warmup_max_lr",
            f"no `--learning_rate` equals both this and the optimizer's `lr` of {rate}: the Trainer fails",
            ONE_RATE,
        )


@fails_later(
    {**_AUTO, "train_batch_size": 32, "gradient_accumulation_steps": "auto"},
    {"train_batch_size": "auto"},
    Context(world_size=2, args=TrainerArgs()),
)
def batch_differs_from_arguments(subject: Subject) -> Iterator[Violation]:
    """The Trainer computes the global batch from its arguments and refuses a different one."""
    total, world = subject.config.train_batch_size, subject.context.world_size
    micro, steps = (
        subject.argument("per_device_train_batch_size"),
        subject.argument("gradient_accumulation_steps"),
    )
    if not isinstance(total, int) or not world or micro is None or total == micro * steps * world:
        return
    yield Violation(
        "train_batch_size",
        f"`train_batch_size` is {total}, but `--per_device_train_batch_size` {micro} "
        f"x `--gradient_accumulation_steps` {steps} x {plural(world, 'rank')} is {world * micro * steps}",
        'write "auto"',
        Fix(FixKind.WRITE, "auto"),
    )


@ignored(_AUTO, {"gradient_accumulation_steps": "auto"}, _told(gradient_accumulation_steps=4))
def accumulation_does_not_arrive(subject: Subject) -> Iterator[Violation]:
    """If the key is missing, accelerate writes 1, so DeepSpeed does not accumulate."""
    steps = subject.argument("gradient_accumulation_steps")
    if steps is None or steps <= 1 or subject.has("gradient_accumulation_steps"):
        return
    if subject.config.train_batch_size is None or subject.config.train_micro_batch_size_per_gpu is None:
        yield Violation(
            "",
            f"`--gradient_accumulation_steps {steps}` has no effect: DeepSpeed does not accumulate",
            _ADD_ACCUMULATION,
        )


_ADD_ACCUMULATION = 'add `"gradient_accumulation_steps": "auto"`'
_TOTAL = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, **_STAGE_2}


@fails_later(_TOTAL, {"gradient_accumulation_steps": 4}, Context(world_size=2, is_named=True))
def accumulation_is_one(subject: Subject) -> Iterator[Violation]:
    """If the key is missing, accelerate writes 1, which DeepSpeed then compares with the global batch."""
    world, (total, micro) = subject.context.world_size, _sizes_without_accumulation(subject)
    steps, is_auto = subject.argument("gradient_accumulation_steps"), total == "auto"
    if micro is None or total is None:
        return
    if is_auto and steps is not None and steps > 1:
        message = f"the Trainer fills in a batch with {steps} accumulated, but accelerate writes 1"
        yield Violation("train_batch_size", message, _ADD_ACCUMULATION)
    is_reported = steps is not None and world is not None and total != micro * steps * world
    if world and not is_auto and total != micro * world and not is_reported:  # by `batch_differs_…`
        yield Violation(
            "train_batch_size",
            f"`train_batch_size` is {total}, but accelerate writes an accumulation of 1, "
            f"and {micro} per rank x {plural(world, 'rank')} is {micro * world}",
            f"{_ADD_ACCUMULATION}, or delete `train_batch_size`",
        )


@ignored(_TOTAL, {"train_batch_size": None}, Context(is_named=True))
def accumulation_would_be_one(subject: Subject) -> Iterator[Violation]:
    """If the key is missing, accelerate writes 1, so a global batch only fits one number of ranks."""
    total, micro = _sizes_without_accumulation(subject)
    if subject.context.world_size is not None or not isinstance(total, int) or micro is None:
        return
    if total % micro == 0:
        ranks = plural(total // micro, "rank")
        yield Violation(
            "train_batch_size",
            f"accelerate writes an accumulation of 1, so this batch only fits {ranks}",
            f"{_ADD_ACCUMULATION}, or delete `train_batch_size`",
        )


def _sizes_without_accumulation(subject: Subject) -> tuple[int | str | None, int | None]:
    """Return the global batch and the micro-batch, if accelerate chooses the accumulation."""
    config, interface = subject.config, subject.context.interface
    is_for_accelerate = subject.for_trainer or interface is ConfigInterface.ACCELERATE
    if not is_for_accelerate or subject.has("gradient_accumulation_steps") or config.sequence_parallel_size:
        return None, None
    micro, total = config.train_micro_batch_size_per_gpu, config.train_batch_size
    if micro == "auto":
        micro = subject.argument("per_device_train_batch_size")
    if total != "auto":
        total = whole(total)
    return total, whole(micro)


@error({"train_micro_batch_size_per_gpu": "auto"}, _STAGE_2)
def no_zero_section(subject: Subject) -> Iterator[Violation]:
    """Accelerate, and therefore TrainingArguments, refuses a ds_config without `zero_optimization`."""
    if subject.for_trainer and not subject.has(ZERO):
        yield Violation(
            "",
            "the Trainer requires `zero_optimization`, even for stage 0",
            'add `"zero_optimization": {"stage": 0}`',
        )


@fails_later(
    {**_AUTO, "zero_optimization": {"stage": 2, "offload_optimizer": None}},
    {zero("offload_optimizer"): {"device": "none"}},
)
def null_offload(subject: Subject) -> Iterator[Violation]:
    """If the Trainer creates the optimizer, accelerate reads the section's device and crashes on null."""
    key = zero("offload_optimizer")
    is_null = subject.has(key) and subject.zero.offload_optimizer is None
    if subject.for_trainer and subject.config.optimizer is None and is_null:
        yield Violation(
            key, "accelerate crashes if `offload_optimizer` is null", "delete it", Fix(FixKind.DELETE)
        )


@ignored(
    {**_AUTO, "activation_checkpointing": {"cpu_checkpointing": True}}, {"activation_checkpointing": None}
)
def activation_checkpointing_not_read(subject: Subject) -> Iterator[Violation]:
    """The Trainer never calls `deepspeed.checkpointing.configure`, the only reader of the section."""
    if subject.for_trainer and subject.has("activation_checkpointing"):
        yield Violation(
            "activation_checkpointing",
            "the Trainer ignores `activation_checkpointing`",
            "delete it, and give `--gradient_checkpointing` to the script",
        )


@ignored(
    {**_AUTO, "zero_optimization": {"stage": 2, "offload_optimizer": CPU}},
    {zero("offload_optimizer"): None},
    _told(optim="sgd"),
)
def optimizer_replaced(subject: Subject) -> Iterator[Violation]:
    """With optimizer offload, accelerate replaces the optimizer of `--optim` by DeepSpeedCPUAdam."""
    optim = _replaced_optimizer(subject)
    if optim and not optim.endswith(_ODD_EPSILON):
        yield Violation(
            zero("offload_optimizer"), f"`--optim {optim}` is replaced by DeepSpeedCPUAdam", _KEEP
        )


@fails_later(
    {**_AUTO, "zero_optimization": {"stage": 2, "offload_optimizer": CPU}},
    {zero("offload_optimizer"): None},
    _told(optim="adafactor"),
)
def replaced_optimizer_fails(subject: Subject) -> Iterator[Violation]:
    """Accelerate passes Adafactor's two numbers for `eps` on to DeepSpeedCPUAdam, which takes one."""
    optim = _replaced_optimizer(subject)
    if optim and optim.endswith(_ODD_EPSILON):
        message = f"`--optim {optim}` cannot be offloaded: it is replaced by DeepSpeedCPUAdam, "
        message += "which fails at the first step on its `eps`"
        yield Violation(zero("offload_optimizer"), message, _KEEP)


@fails_later(
    {**_AUTO, "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}},
    {zero("stage"): 2, zero("stage3_gather_16bit_weights_on_model_save"): None},
    _told(auto_find_batch_size=True),
)
def batch_size_search_at_stage_3(subject: Subject) -> Iterator[Violation]:
    """The Trainer refuses `--auto_find_batch_size` at stage 3, once the model is loaded."""
    if subject.stage == 3 and subject.argument("auto_find_batch_size"):
        yield Violation(
            subject.nearest(zero("stage")),
            "the Trainer refuses `--auto_find_batch_size` at stage 3",
            "leave it out, and let `zlaunch plan` find a batch size; or use stage 2",
        )


@warning({**_AUTO, "zero_optimization": {"stage": 2}}, {zero("stage"): 0}, _told(optim="adagrad"))
def adagrad_takes_one_group(subject: Subject) -> Iterator[Violation]:
    """ZeRO makes torch's Adagrad anew with one group of parameters, and the Trainer has two.

    The first backward pass fails with `IndexError: list index out of range`.
    """
    is_client = subject.config.optimizer is None and subject.argument("optim") == "adagrad"
    if is_client and subject.stage in (1, 2, 3) and "offload_optimizer" not in subject.offloads:
        yield Violation(
            subject.nearest(zero("stage")),
            "DeepSpeed takes one group of parameters for Adagrad, and the Trainer has two: the first "
            "backward pass fails with an IndexError",
            'add `"optimizer": {"type": "Adagrad", "params": {"lr": "auto"}}` to the ds_config, with which '
            "there is one group",
        )


_ODD_EPSILON = "adafactor"
_KEEP = 'use `--optim adamw_torch`, turn off offload, or write `"zero_force_ds_cpu_optimizer": false`'
BY_ARGUMENT = (
    optimizer_replaced,
    replaced_optimizer_fails,
    batch_size_search_at_stage_3,
    adagrad_takes_one_group,
)
"""Rules about an argument that no key of a ds_config shows."""


def _replaced_optimizer(subject: Subject) -> str | None:
    optim, config = subject.argument("optim"), subject.config
    if optim is None or config.optimizer is not None or "offload_optimizer" not in subject.offloads:
        return None
    if str(optim).startswith(("adamw", "adagrad")) or not config.zero_force_ds_cpu_optimizer:
        return None
    return str(optim)


@ignored(
    {**_AUTO, "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}},
    {"scheduler": None},
    _told(lr_scheduler_type="cosine"),
)
def argument_without_effect(subject: Subject) -> Iterator[Violation]:
    """With an `optimizer` or a `scheduler` section, the Trainer does not use its arguments for the same.

    Nor does it use an argument for a key that such a section lacks: DeepSpeed takes its own default.
    """
    if not subject.for_trainer or subject.context.args is None:
        return
    written: dict[KeyPath, object] = dict(subject.written.items())
    for finding in unused_arguments(written, subject.context.args):
        yield Violation(finding.where, finding.message, finding.hint or "")


@advice(
    {**_AUTO, "zero_optimization": {"stage": 3}}, {zero("stage3_gather_16bit_weights_on_model_save"): True}
)
def no_gathered_weights(subject: Subject) -> Iterator[Violation]:
    """At stage 3 the Trainer saves a partitioned DeepSpeed checkpoint instead of the model's weights."""
    key = zero("stage3_gather_16bit_weights_on_model_save")
    settings = subject.zero
    gathers = settings.stage3_gather_16bit_weights_on_model_save is True
    gathers = gathers or settings.stage3_gather_fp16_weights_on_model_save
    if subject.for_trainer and subject.stage == 3 and not gathers:
        yield Violation(
            subject.nearest(key),
            "`save_model` writes a partitioned checkpoint, not the model's weights",
            f'add `"{key.rpartition(".")[2]}": true`, or run `zero_to_fp32.py` afterwards',
        )


@fails_later(
    {
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    },
    {zero("reduce_bucket_size"): 500_000_000},
    Context(model=ModelConfig({"model_type": "t5gemma"}, "", "config.json")),
)
def no_hidden_size(subject: Subject) -> Iterator[Violation]:
    """The Trainer derives bucket sizes from `hidden_size`, and fails if the model's config has none."""
    model = subject.context.model
    if not subject.for_trainer or model is None or not model.lacks_width:
        return
    for *section, key in subject.autos:
        is_made = section == [ZERO] and key.endswith(("bucket_size", "threshold"))
        if is_made and subject.stage in stages_reading(key):
            yield Violation(
                zero(key),
                f'the Trainer cannot fill in "auto": {model.source} (`{model.kind}`) has neither '
                "`hidden_size` nor `hidden_sizes`",
                f"write a number: DeepSpeed's default is {Zero.model_fields[key].default}",
            )


@advice({**_AUTO, "steps_per_print": 100}, {"steps_per_print": None})
def steps_per_print_unread(subject: Subject) -> Iterator[Violation]:
    """Accelerate always turns off DeepSpeed's progress lines."""
    steps = subject.config.steps_per_print
    if subject.for_trainer and steps is not None and math.isfinite(steps):
        yield Violation(
            "steps_per_print", "the Trainer turns off these lines", "delete it; use `--logging_steps`"
        )
