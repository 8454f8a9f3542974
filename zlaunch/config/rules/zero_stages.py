"""Rules about `zero_optimization` keys that the chosen stage does not read."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import Subject, Violation, advice, fails_later, ignored, zero
from zlaunch.dsconfig.keys.read_at import stages_reading
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import Fix, FixKind

_DELETE = Fix(FixKind.DELETE)
ELSEWHERE = (
    "stage",
    "compute_grad_norm",
    "cpu_offload",
    "cpu_offload_param",
    "cpu_offload_use_pin_memory",
    "elastic_checkpoint",
    "offload_optimizer.nvme_path",
    "offload_optimizer.ratio",
    "offload_param",
)
"""Keys for which another rule checks the stage."""

HAD_ANYWAY = ("stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")
"""Keys of stage 3 whose effect other stages have anyway."""


def _changed(subject: Subject) -> Iterator[str]:
    for section, *keys in subject.changed:
        key = ".".join(keys)
        is_another = any(key == other or key.startswith(f"{other}.") for other in ELSEWHERE)
        if section == ZERO and not is_another and key not in HAD_ANYWAY:
            yield key


@ignored({"zero_optimization": {"stage": 2, "stage3_max_live_parameters": 1_000_000}}, {zero("stage"): 3})
def key_needs_stage_3(subject: Subject) -> Iterator[Violation]:
    """Below stage 3 DeepSpeed ignores the keys that only stage 3 reads."""
    if subject.stage is None or subject.stage == 3:
        return
    for key in _changed(subject):
        if stages_reading(key) == {3}:
            yield Violation(
                zero(key),
                f"`{key}` is only read at stage 3, not at stage {subject.stage}",
                "use stage 3, or delete it",
            )


@ignored({"zero_optimization": {"stage": 3, "round_robin_gradients": True}}, {zero("stage"): 2})
def key_not_at_stage_3(subject: Subject) -> Iterator[Violation]:
    """At stage 3 DeepSpeed ignores the keys that only stages 1 and 2 read."""
    for key in _changed(subject):
        if subject.stage == 3 and stages_reading(key) == {1, 2}:
            yield Violation(
                zero(key),
                f"`{key}` is only read at stages 1 and 2, not at stage 3",
                "delete it, or use a lower stage",
            )


@advice({"zero_optimization": {"stage": 0, "reduce_bucket_size": 1_000_000}}, {zero("stage"): 1})
def zero_is_off(subject: Subject) -> Iterator[Violation]:
    """At stage 0 nothing is partitioned, and DeepSpeed ignores the other keys of the section."""
    if subject.stage != 0:
        return
    ignored = [
        key for key in _changed(subject) if 1 in stages_reading(key) and not key.startswith("offload_")
    ]
    if ignored:
        listed = ", ".join(f"`{key}`" for key in ignored)
        yield Violation(
            zero(ignored[0]), f"stage 0 does not read {listed}", "use stage 1 or higher, or delete them"
        )


@ignored(
    {"zero_optimization": {"stage": 2, "allgather_partitions": False}}, {zero("allgather_partitions"): None}
)
def dead_zero_key(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed accepts some keys that no stage reads any more."""
    for key in _changed(subject):
        if not stages_reading(key):
            yield Violation(zero(key), f"ignored: no stage reads `{key}` any more", "delete it", _DELETE)


@ignored({"zero_optimization": {"stage": "auto"}}, {zero("stage"): 2})
def stage_left_open(subject: Subject) -> Iterator[Violation]:
    """Accelerate and the Trainer read "auto" as stage 2, DeepSpeed itself as stage 0."""
    if subject.zero.stage == "auto":
        yield Violation(
            zero("stage"),
            '"auto" means stage 2 for accelerate and the Trainer, but stage 0 for DeepSpeed itself',
            "write the stage",
        )


@ignored({"zero_optimization": {"stage": 3, "elastic_checkpoint": True}}, {zero("elastic_checkpoint"): None})
def elastic_checkpoint_at_stage_3(subject: Subject) -> Iterator[Violation]:
    """Stage 3 ignores `elastic_checkpoint` with a warning; its checkpoints need the same number of ranks."""
    if subject.stage == 3 and subject.zero.elastic_checkpoint:
        yield Violation(
            zero("elastic_checkpoint"),
            "stage 3 ignores `elastic_checkpoint`: resuming needs the same number of ranks",
            "delete it; use `checkpoint.load_universal` to resume on another number of ranks",
        )


@fails_later({"zero_optimization": {"stage": 1, "legacy_stage1": True}}, {zero("legacy_stage1"): None})
def legacy_stage_1(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed removed the old stage 1; the engine raises an error when it creates the optimizer."""
    if subject.stage != 0 and subject.zero.legacy_stage1:
        yield Violation(
            zero("legacy_stage1"),
            "the old stage 1 was removed; DeepSpeed raises an error for `legacy_stage1`",
            "delete it",
            _DELETE,
        )
