"""Rules about the type of the model."""

import json
from collections.abc import Iterator

from zlaunch.config.rules.rule import Context, Keys, Subject, Violation, warning, zero
from zlaunch.dsconfig.releases import NEWEST, Release
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.job.model import ModelConfig
from zlaunch.job.model_types import ModelType, model_type

LEAF_CLASSES: Keys = (ZERO, "leaf_module", "classes")

DEFAULT_LEAVES = (
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
)
"""`DEFAULT_LEAF_MODULE_CLASSES` of `deepspeed/runtime/zero/leaf_module_config.py`, since 0.18."""

_GEMMA = ModelConfig({"model_type": "gemma3_text"}, "{}", "config.json")
_DEEPSEEK = ModelConfig({"model_type": "deepseek_v3"}, "{}", "config.json")
_SWITCH = ModelConfig({"model_type": "switch_transformers"}, "{}", "config.json")


def needed_leaves(known: ModelType, release: Release | None) -> tuple[str, ...]:
    """List the blocks of separate experts that DeepSpeed does not gather as a whole by default."""
    if not known.separate:
        return ()
    defaults: tuple[str, ...] = ()
    if (release or NEWEST).knows(LEAF_CLASSES):
        defaults = DEFAULT_LEAVES
    return tuple(block for block in known.separate if block not in defaults)


@warning(
    {"zero_optimization": {"stage": 3}},
    {"zero_optimization.leaf_module": {"classes": ["SwitchTransformersSparseMLP"]}},
    Context(model=_SWITCH),
)
def experts_gathered_apart(subject: Subject) -> Iterator[Violation]:
    """Stage 3 gathers each expert when it runs, and all ranks must gather the same ones in the same order.

    Ranks send their tokens to different experts, so one waits for a parameter that another does not gather,
    or gets the wrong one. A leaf module is gathered as a whole. Since transformers 5, most models keep all
    experts of a block in one parameter, and need none.
    """
    context = subject.context
    if subject.stage != 3:
        return
    needed = needed_leaves(_type_of(subject), context.release)
    written = subject.written.get(LEAF_CLASSES)
    if isinstance(written, list):
        needed = tuple(block for block in needed if not _is_named(written, block))
    if not needed:
        return
    hint = f'write `"leaf_module": {json.dumps({"classes": list(needed)})}` in `zero_optimization`'
    if not (context.release or NEWEST).knows(LEAF_CLASSES):
        hint = (
            "call `deepspeed.utils.set_z3_leaf_modules(model, [BLOCK])` in the script, or use DeepSpeed 0.18"
        )
    yield Violation(
        subject.nearest(zero("leaf_module")),
        f"each expert of {_short_names(needed)} is gathered by itself, and ranks that need different ones "
        "hang or compute with the wrong weights",
        hint,
    )


@warning({"fp16": {"enabled": True}}, {"fp16.enabled": False}, Context(model=_GEMMA))
def fp16_overflows(subject: Subject) -> Iterator[Violation]:
    """Pretrained weights of some types of models, such as T5, compute numbers that fp16 cannot hold.

    They were trained in bf16. In fp16 losses become NaN, and DeepSpeed skips these steps.
    """
    model, source = subject.context.model, _type_of(subject).no_fp16
    if model is not None and source and subject.format == "fp16":
        message = f"pretrained weights of type `{model.kind}` are known to overflow in fp16: losses of NaN"
        yield Violation("fp16", message, f"use `bf16` instead, or fp32; see {source}")


@warning({"bf16": {"enabled": True}}, {"bf16.enabled": False}, Context(model=_DEEPSEEK))
def fp32_parts_are_cast(subject: Subject) -> Iterator[Violation]:
    """Some models have parts that transformers keeps in fp32, such as the routers of experts.

    With `bf16` or `fp16`, DeepSpeed casts all parameters of the model, these too.
    """
    model, known, precision = subject.context.model, _type_of(subject), subject.format
    parts: tuple[str, ...] = ()
    if precision in ("bf16", "fp16"):
        parts = known.fp32
    if precision == "fp16":
        parts += known.fp32_beside_fp16
    if model is not None and parts:
        names = ", ".join(f"`{part}`" for part in parts)
        message = (
            f"transformers keeps {names} of `{model.kind}` in fp32, which DeepSpeed casts to {precision}"
        )
        hint = "`torch_autocast` instead keeps all parameters in fp32, with more memory"
        yield Violation(str(precision), message, hint)


def _type_of(subject: Subject) -> ModelType:
    return model_type(subject.context.model, subject.context.packages.get("transformers"))


def _is_named(written: list[object], block: str) -> bool:
    """Whether a block is among the classes, with or without its module."""
    return block in written or block.rpartition(".")[2] in written


def _short_names(blocks: tuple[str, ...]) -> str:
    return ", ".join(f"`{block.rpartition('.')[2]}`" for block in blocks)
