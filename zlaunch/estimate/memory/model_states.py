"""Model states per GPU, as in the ZeRO paper.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020),
sections 3.1 and 5: with mixed-precision Adam, a parameter takes 2 bytes, its gradient 2, and the
optimizer K = 12 (an fp32 copy and two moments). Stage 1 partitions the optimizer states, stage 2 also the
gradients, stage 3 also the parameters. This is a lower bound for any implementation, without buffers and
activations; `closed_form` estimates the memory that DeepSpeed uses.
"""

from typing import Final

from zlaunch.frozen import dataclass

OPTIMIZER_BYTES: Final = {"adam": 8, "adamw": 8, "lamb": 8, "adagrad": 4, "lion": 4, "momentum": 4, "sgd": 0}
"""Bytes of fp32 state per parameter by optimizer, without the fp32 copy of the parameter."""
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
