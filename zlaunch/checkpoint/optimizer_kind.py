"""Which optimizers can load the settings that another one has saved.

`load_state_dict` of an optimizer takes the settings of its groups from the checkpoint. The first step fails
with a `KeyError` if one that it needs is not among them. Source: `step` and `__setstate__` in torch.optim and
deepspeed.ops.adam; tests load them all.
"""

from collections.abc import Collection
from enum import Enum


class OptimizerKind(Enum):
    """Optimizers with the same settings."""

    DEEPSPEED_ADAM = "DeepSpeed's Adam"
    TORCH_ADAM = "torch's Adam"
    SGD = "SGD"
    RMSPROP = "RMSprop"
    ADAGRAD = "Adagrad"
    ADADELTA = "Adadelta"
    NADAM = "NAdam"


_NEEDS: dict[OptimizerKind, tuple[str, ...]] = {
    OptimizerKind.DEEPSPEED_ADAM: ("betas", "eps", "bias_correction"),
    OptimizerKind.NADAM: ("betas", "eps", "momentum_decay"),
    OptimizerKind.TORCH_ADAM: ("betas", "eps"),
    OptimizerKind.SGD: ("momentum", "dampening"),
    OptimizerKind.RMSPROP: ("alpha", "eps"),
    OptimizerKind.ADAGRAD: ("lr_decay", "eps"),
    OptimizerKind.ADADELTA: ("rho", "eps"),
}
"""Settings without which a step fails; torch adds those that newer releases have."""

_BY_NAME = {
    **dict.fromkeys(("adam", "adamw", "adamw_torch", "adamw_torch_fused"), OptimizerKind.TORCH_ADAM),
    **{kind.value.lower(): kind for kind in _NEEDS},
}


def kind_of(name: str, is_deepspeeds: bool = False) -> OptimizerKind | None:
    """Recognize the `type` of a ds_config, or a value of `--optim`; None for one that is not known here.

    `is_deepspeeds`: whether DeepSpeed takes its own Adam for it.
    """
    kind = _BY_NAME.get(name.lower())
    return OptimizerKind.DEEPSPEED_ADAM if is_deepspeeds and kind is OptimizerKind.TORCH_ADAM else kind


def lacks(kind: OptimizerKind, settings: Collection[str]) -> list[str]:
    """Name the settings that an optimizer needs, and a checkpoint does not have."""
    return [name for name in _NEEDS[kind] if name not in settings] if settings else []


def saved_by(settings: Collection[str]) -> str:
    """Name the optimizer that has saved these settings."""
    fits = (kind.value for kind in _NEEDS if not lacks(kind, settings))
    return next(fits, "another optimizer")
