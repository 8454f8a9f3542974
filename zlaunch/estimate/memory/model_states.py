"""What the states of a model take on each GPU, as the ZeRO paper counts them.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020),
sections 3.1 and 5: with mixed-precision Adam a parameter takes 2 bytes, its gradient 2, and the
optimizer K = 12 (an fp32 copy and two moments). Stage 1 divides the optimizer's bytes by the number of
ranks, stage 2 the gradients' too, stage 3 all. It is what any implementation keeps at least: no
buffers, no activations, nothing temporary; what DeepSpeed really takes is in `closed_form`.
"""

from dataclasses import dataclass
from typing import Final

OPTIMIZER_BYTES: Final = {
    "adam": 8,
    "adamw": 8,
    "lamb": 8,
    "adagrad": 4,
    "lion": 4,
    "momentum": 4,
    "sgd": 0,
}
"""Bytes of fp32 state per parameter by optimizer, without the fp32 copy of the parameter: two moments,
one moment or a sum of squares, or nothing."""
MASTER_BYTES: Final = 4
"""The fp32 copy of a parameter that is trained in half precision."""


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes per parameter: of itself, of its gradient, and K, what the optimizer keeps for it."""

    parameter: int = 2
    gradient: int = 2
    optimizer: int = 12

    @property
    def total(self) -> int:
        """Say what one parameter takes where nothing is divided."""
        return self.parameter + self.gradient + self.optimizer


MIXED_ADAM: Final = StateBytes()
"""Mixed-precision Adam, the paper's 16 bytes."""


@dataclass(frozen=True, slots=True)
class ModelStates:
    """What one GPU keeps, in bytes."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Add them up; bytes."""
        return self.parameters + self.gradients + self.optimizer


def state_bytes(optimizer: str = "adamw", *, half: bool = True) -> StateBytes:
    """Say what a parameter takes with an optimizer, in half precision or in fp32.

    Raise KeyError for an optimizer that `OPTIMIZER_BYTES` does not name.
    """
    states = OPTIMIZER_BYTES[optimizer.lower()]
    return StateBytes(2, 2, MASTER_BYTES + states) if half else StateBytes(4, 4, states)


def model_states(
    num_params: float, stage: int, world_size: int, per_param: StateBytes = MIXED_ADAM
) -> ModelStates:
    """Say what the states of a model take on each of `world_size` GPUs at a stage from 0 to 3.

    Table 1 of the paper: P_os = (4 + K/N)ψ, P_os+g = (2 + (2+K)/N)ψ, P_os+g+p = (4+K)ψ/N bytes.
    """
    share = num_params / world_size
    return ModelStates(
        parameters=per_param.parameter * (share if stage >= 3 else num_params),
        gradients=per_param.gradient * (share if stage >= 2 else num_params),
        optimizer=per_param.optimizer * (share if stage >= 1 else num_params),
    )
