"""Model states per GPU, as in the ZeRO paper.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020),
sections 3.1 and 5: with mixed-precision Adam, a parameter takes 2 bytes, its gradient 2, and the
optimizer K = 12 (an fp32 copy and two moments). Stage 1 partitions the optimizer states, stage 2 also the
gradients, stage 3 also the parameters. This is a lower bound for any implementation, without buffers and
activations; `closed_form` estimates the memory that DeepSpeed uses.
"""

from typing import Final

from zlaunch.frozen import dataclass

_OPTIMIZER_BYTES: Final = {
    "adam": 8,
    "adamw": 8,
    "fusedadam": 8,
    "onebitadam": 8,
    "zerooneadam": 8,
    "lamb": 8,
    "onebitlamb": 8,
    "adagrad": 4,
    "rmsprop": 4,
    "lion": 4,
    "momentum": 4,
    "sgd": 0,
}
"""Bytes of fp32 state per parameter by optimizer, without the fp32 copy of the parameter."""
_8BIT_BYTES: Final = 2
"""The same of an 8-bit Adam, two states of a byte; any 8-bit optimizer counts as one."""
MASTER_BYTES: Final = 4
"""Bytes of the fp32 copy of a parameter that is trained in half precision."""


@dataclass(frozen=True, slots=True)
class ModelStates:
    """Bytes: of one parameter before partitioning, or of a model on one GPU."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.parameters + self.gradients + self.optimizer


MIXED_ADAM: Final = ModelStates(2, 2, 12)
"""Mixed-precision Adam: the 16 bytes per parameter of the paper."""


def optimizer_bytes(name: str) -> int:
    """Return the bytes of state per parameter; an optimizer that is not known counts as Adam.

    `name` is in lower case: DeepSpeed's, or the Trainer's, such as `adamw_torch_fused`.
    """
    if "8bit" in name:
        return _8BIT_BYTES
    return _OPTIMIZER_BYTES.get(name.split("_", maxsplit=1)[0], _OPTIMIZER_BYTES["adam"])


def model_states(
    num_params: float, stage: int, world_size: int, per_param: ModelStates = MIXED_ADAM
) -> ModelStates:
    """Return the model states on each of `world_size` GPUs at a stage from 0 to 3.

    Table 1 of the paper: P_os = (4 + K/N)ψ, P_os+g = (2 + (2+K)/N)ψ, P_os+g+p = (4+K)ψ/N bytes.
    """
    parameters = gradients = optimizer = num_params
    if stage >= 1:
        optimizer /= world_size
    if stage >= 2:
        gradients /= world_size
    if stage >= 3:
        parameters /= world_size
    return ModelStates(
        parameters=per_param.parameters * parameters,
        gradients=per_param.gradients * gradients,
        optimizer=per_param.optimizer * optimizer,
    )
