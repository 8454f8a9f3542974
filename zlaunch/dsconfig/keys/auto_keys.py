"""Keys whose "auto" has a meaning, for DeepSpeed itself or for the Trainer and accelerate."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Tag

from zlaunch.dsconfig.keys.lookup import field_at, parts
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import KeyPath


def is_own_word(path: KeyPath) -> bool:
    """Whether DeepSpeed accepts "auto" for a key; accelerate, and therefore the Trainer, refuses it."""
    field = field_at({}, path)
    choices = [] if field is None else list(parts(field.annotation))
    return "auto" in choices and Tag("<auto>") not in choices


Fate = Literal["refused", "crash", "default", "bucket"]

FILLED: Mapping[KeyPath, Fate] = {
    ("train_batch_size",): "refused",
    ("train_micro_batch_size_per_gpu",): "refused",
    ("gradient_accumulation_steps",): "refused",
    ("gradient_clipping",): "crash",
    **{("optimizer", "params", key): "crash" for key in ("lr", "betas", "eps", "weight_decay")},
    **{
        ("scheduler", "params", key): "crash"
        for key in ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
    },
    ("bf16", "enabled"): "default",
    ("fp16", "enabled"): "default",
    (ZERO, "stage"): "default",
    (ZERO, "reduce_bucket_size"): "bucket",
    (ZERO, "stage3_prefetch_bucket_size"): "bucket",
    (ZERO, "stage3_param_persistence_threshold"): "bucket",
    (ZERO, "stage3_gather_16bit_weights_on_model_save"): "default",
    (ZERO, "offload_optimizer", "device"): "default",
    (ZERO, "offload_param", "device"): "default",
}
"""Keys that the Trainer or accelerate fills in → what DeepSpeed alone does with their "auto".

`refused`: fails when it reads the config. `crash`: the constructor or the first step fails. `default` and
`bucket`: uses its own default, which for a bucket only affects sizes.
"""

DUMMIES: Mapping[str, str] = {"optimizer": "DummyOptim", "scheduler": "DummyScheduler"}
"""Section → the class of accelerate that a script must prepare, for its "auto" to be filled in."""

READ_BY_TRAINER: frozenset[KeyPath] = frozenset(
    {
        (ZERO,),
        (ZERO, "stage"),
        *(path for path in FILLED if path[0] != ZERO and path[-1] != "warmup_min_lr"),
    }
)
"""Keys whose values the Trainer reads itself, as they are written; all others only reach DeepSpeed."""
