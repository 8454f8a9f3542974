"""Rules about training precision."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import (
    FORMATS,
    Context,
    Subject,
    Violation,
    advice,
    error,
    fails_later,
    ignored,
    zero,
)
from zlaunch.job.trainer_releases import is_before

_ON = {"enabled": True}


@error({"fp16": _ON, "bf16": _ON}, {"fp16.enabled": False})
def both_formats(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed asserts that fp16 and bf16 are not both enabled."""
    if subject.has_both_formats:
        yield Violation(
            "fp16.enabled",
            "fp16 and bf16 are both enabled, which DeepSpeed refuses",
            "set `fp16.enabled` to false, or `bf16.enabled` if the GPUs are older than Ampere",
        )


@fails_later({"fp16": _ON}, {"fp16.enabled": False}, Context(device_fp16=False))
def fp16_unsupported(subject: Subject) -> Iterator[Violation]:
    """On a CPU without AVX512-FP16 or AVX-NE-CONVERT the engine raises a ValueError for fp16."""
    if subject.context.device_fp16 is False and subject.format == "fp16":
        yield Violation(
            "fp16.enabled",
            "this CPU does not support fp16 training",
            "use bf16, which works on every CPU: `--precision bf16`, or `--bf16` instead of `--fp16`",
        )


@fails_later({"bf16": _ON, "data_types": {"param_dtype": "fp16"}}, {"data_types.param_dtype": "bf16"})
def param_dtype_differs(subject: Subject) -> Iterator[Violation]:
    """The engine asserts that `param_dtype` matches the enabled precision; it cannot choose one."""
    wanted = subject.config.data_types.param_dtype
    if wanted and subject.format and _precision_of(wanted) != subject.format:
        hint = "delete it"
        if _precision_of(wanted) != "fp32":
            hint = f"enable `{_precision_of(wanted)}`, or delete it"
        yield Violation(
            "data_types.param_dtype",
            f"`param_dtype` is {wanted}, but the model trains in {subject.format}",
            hint,
        )


def _precision_of(name: str) -> str:
    return FORMATS.get(name.removeprefix("torch."), "fp32")


@fails_later(
    {"bf16": _ON, "zero_optimization": {"stage": 0}, "data_types": {"grad_accum_dtype": "fp32"}},
    {zero("stage"): 1},
)
def accumulation_needs_partitioning(subject: Subject) -> Iterator[Violation]:
    """At stage 0 DeepSpeed can only accumulate gradients in the model's precision.

    Before 0.18.5, it could accumulate those of a bf16 model in fp32, too.
    """
    wanted, release = subject.config.data_types.grad_accum_dtype, subject.context.release
    possible = {subject.format}
    if subject.format == "bf16" and release is not None and is_before(release.name, "0.19"):
        possible.add("fp32")  # 0.18.5 cannot, but a release here is a minor one
    if wanted and subject.stage == 0 and subject.format and _precision_of(wanted) not in possible:
        yield Violation(
            "data_types.grad_accum_dtype",
            f"at stage 0 a model in {subject.format} cannot accumulate gradients in {wanted}",
            "use stage 1 or higher, or delete it",
        )


@fails_later(
    {
        "zero_optimization": {"stage": 1, "compute_grad_norm": False},
        "gradient_clipping": 0,
        "bf16": _ON,
        "data_types": {"grad_accum_dtype": "fp32"},
    },
    {zero("stage"): 2},
)
def norm_needs_zeros_own_optimizer(subject: Subject) -> Iterator[Violation]:
    """Stage 1 in bf16 with fp32 accumulation uses an optimizer that always computes the gradient norm."""
    if _runs_bf16_optimizer(subject) and not subject.zero.compute_grad_norm:
        yield Violation(
            zero("compute_grad_norm"),
            "stage 1 in bf16 with fp32 accumulation always computes the gradient norm",
            "use stage 2, or delete it",
        )


def _runs_bf16_optimizer(subject: Subject) -> bool:
    wanted = subject.config.data_types.grad_accum_dtype
    alone = subject.stage == 1 and "offload_optimizer" not in subject.offloads
    return alone and subject.format == "bf16" and wanted is not None and _precision_of(wanted) == "fp32"


@ignored(
    {"bf16": {**_ON, "immediate_grad_update": True}, "zero_optimization": {"stage": 2}},
    {"bf16.immediate_grad_update": None},
)
def immediate_update_not_read(subject: Subject) -> Iterator[Violation]:
    """Only stage 1 with fp32 accumulation, and pipelines, read `immediate_grad_update`."""
    if not subject.value("bf16.immediate_grad_update") or subject.config.pipeline is not None:
        return
    if subject.stage is not None and subject.format is not None and not _runs_bf16_optimizer(subject):
        yield Violation(
            "bf16.immediate_grad_update",
            f"stage {subject.stage} does not read `immediate_grad_update` here",
            'delete it, or use stage 1 with `"grad_accum_dtype": "fp32"`',
        )


@ignored(
    {"bf16": {**_ON, "check_grad_overflow": True}, "zero_optimization": {"stage": 3}}, {zero("stage"): 2}
)
def overflow_unchecked_at_stage_3(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed does not pass `check_grad_overflow` to the stage 3 optimizer."""
    key = "bf16.check_grad_overflow"
    if subject.stage == 3 and subject.has(key) and subject.value(key):
        yield Violation(key, "stage 3 does not read `check_grad_overflow`", "delete it, or use stage 2")


@ignored({"bf16": _ON, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}, {"bf16.enabled": False})
def autocast_twice(subject: Subject) -> Iterator[Violation]:
    """With bf16 or fp16 enabled the whole model is converted, so `torch_autocast` has no effect."""
    if subject.value("torch_autocast.enabled") and subject.format in ("bf16", "fp16"):
        yield Violation(
            "torch_autocast.enabled",
            f"no effect: the whole model is in {subject.format}; `torch_autocast` is for models in fp32",
            f"turn `torch_autocast` off, or `{subject.format}`",
        )


@ignored({"torch_autocast": _ON}, {"torch_autocast.dtype": "bfloat16"})
def autocast_without_dtype(subject: Subject) -> Iterator[Violation]:
    """Without `dtype` PyTorch uses its default, fp16 on CUDA, without loss scaling."""
    if subject.value("torch_autocast.enabled") and subject.value("torch_autocast.dtype") is None:
        yield Violation(
            "torch_autocast",
            "without `dtype`, autocast uses fp16 on CUDA, without loss scaling",
            'add `"dtype": "bfloat16"`',
        )


_OF_DYNAMIC_SCALING = ("loss_scale_window", "min_loss_scale")


@error({"fp16": {**_ON, "min_loss_scale": 0}}, {"fp16.min_loss_scale": 1})
def dynamic_scale_is_not_positive(subject: Subject) -> Iterator[Violation]:
    """With dynamic loss scaling in fp16, DeepSpeed refuses a window or a least scale that is not positive."""
    if subject.is_on("fp16"):
        yield from _not_positive(subject, "with dynamic loss scaling")


@advice(
    {
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 2},
        "fp16": {"enabled": "auto", "min_loss_scale": 0},
    },
    {"fp16.min_loss_scale": 1},
)
def dynamic_scale_would_not_be_positive(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed only refuses a window or a least scale that is not positive if fp16 is on."""
    if subject.is_on("fp16") is None:
        yield from _not_positive(subject, "once fp16 is on")


def _not_positive(subject: Subject, when: str) -> Iterator[Violation]:
    for key in _OF_DYNAMIC_SCALING:
        value = getattr(subject.config.fp16, key)
        if subject.config.fp16.loss_scale == 0 and value <= 0:
            yield Violation(
                f"fp16.{key}",
                f"`{key}` is {value}; DeepSpeed refuses that {when}",
                "write a positive number, or delete it",
            )


@advice({"fp16": {**_ON, "loss_scale": 128, "initial_scale_power": 8}}, {"fp16.loss_scale": 0})
def loss_scale_is_fixed(subject: Subject) -> Iterator[Violation]:
    """With a fixed loss scale DeepSpeed ignores the settings for dynamic loss scaling."""
    dynamic = ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
    for key in dynamic:
        if subject.config.fp16.loss_scale and ("fp16", key) in subject.changed:
            yield Violation(
                f"fp16.{key}",
                f"ignored: the loss scale is fixed at {subject.config.fp16.loss_scale:g}",
                'write `"loss_scale": 0` for dynamic loss scaling, or delete this key',
            )
