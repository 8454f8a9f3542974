"""`optimizer`: DeepSpeed's own optimizers, and torch's by name.

DeepSpeed passes `params` to the constructor, so an unknown name is a `TypeError` in every rank after the
model is loaded. Each known optimizer has a model of its parameters.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from zlaunch.dsconfig.schema.section import OUTDATED, MaybeAuto, OnDemand, Rates, Section

Betas = Annotated[list[float], Field(min_length=2, max_length=2)]

OPTIMIZERS = {
    "Adam": "<adam>", "AdamW": "<adam>", "Adagrad": "<adagrad>", "Lamb": "<lamb>", "Lion": "<lion>",
    "Muon": "<muon>", "MuAdam": "<mup>", "MuAdamW": "<mup>", "MuSGD": "<mup>",
}  # fmt: skip
"""Names that DeepSpeed recognizes in any case (`deepspeed/runtime/config.py`) → tag of their model."""

ONE_BIT = ("OneBitAdam", "ZeroOneAdam", "OneBitLamb")
"""Optimizers, named in any case, that DeepSpeed had until `LAST_ONE_BIT`."""

LAST_ONE_BIT = "0.18"

KIND_OF = {name.lower(): kind for name, kind in OPTIMIZERS.items()}

TorchOptimizerName = Literal[
    "ASGD", "Adadelta", "Adafactor", "Adamax", "LBFGS", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
    "SparseAdam",
]  # fmt: skip
"""The other classes of `torch.optim`, which need their exact spelling."""


def is_one_bit(name: object) -> bool:
    """Whether it is the name of an optimizer that only older releases have."""
    return str(name).lower() in {known.lower() for known in ONE_BIT}


class _Params(Section):
    lr: MaybeAuto[Rates] = 1e-3
    """Learning rate."""

    weight_decay: MaybeAuto[float] = 0.0
    """Weight decay."""


class _OffloadableParams(_Params):
    fp32_optimizer_states: bool = True
    """Keep the optimizer states in fp32 (offload only)."""


class _MomentParams(_Params):
    betas: MaybeAuto[Betas] = [0.9, 0.999]
    """Decay rates of the two running averages."""


class _AdaptiveParams(_MomentParams):
    eps: MaybeAuto[float] = 1e-8
    """Added to the denominator."""

    bias_correction: bool = True
    """Correct the bias of the moments."""

    amsgrad: Annotated[bool, OUTDATED] = False
    """Not supported by DeepSpeed's implementations."""


class _TorchParams(_OffloadableParams):
    foreach: bool | None = None
    """Only for torch's own optimizer."""

    fused: bool | None = None
    """Only for torch's own optimizer."""

    maximize: bool = False
    """Only for torch's own optimizer."""

    differentiable: bool = False
    """Only for torch's own optimizer."""


class AdamParams(_TorchParams, _AdaptiveParams):
    """Adam and AdamW, on the GPU (FusedAdam) or the host (DeepSpeedCPUAdam)."""

    adam_w_mode: bool = True
    """Decoupled weight decay; on even for type `Adam` unless it is set to false."""

    torch_adam: bool = False
    """Use `torch.optim` instead of DeepSpeed's kernels, without compiling them."""

    set_grad_none: bool = True
    """Set gradients to None after the step (FusedAdam)."""

    capturable: bool = False
    """Only for torch's own optimizer."""


class LionParams(_OffloadableParams, _MomentParams):
    """Lion."""

    set_grad_none: bool = True
    """Set gradients to None after the step (GPU)."""


class AdagradParams(_TorchParams):
    """Adagrad, on the GPU (torch's) or the host (DeepSpeedCPUAdagrad)."""

    lr: MaybeAuto[Rates] = 1e-2
    """Learning rate."""

    eps: MaybeAuto[float] = 1e-10
    """Added to the denominator."""

    amsgrad: Annotated[bool, OUTDATED] = False
    """Not supported by DeepSpeed's implementation."""

    lr_decay: float = 0.0
    """Learning rate decay (torch's Adagrad, without offload)."""

    initial_accumulator_value: float = 0.0
    """Start value of the accumulator (torch's Adagrad, without offload)."""


class LambParams(_AdaptiveParams):
    """LAMB; needs dynamic loss scaling and, with ZeRO, `zero_allow_untested_optimizer`."""

    eps_inside_sqrt: bool = False
    """Add `eps` inside the square root."""

    max_coeff: float = 10.0
    """Largest trust ratio."""

    min_coeff: float = 0.01
    """Smallest trust ratio."""


class MuonParams(_OffloadableParams):
    """Muon for matrices, Adam for the rest."""

    muon_lr: float | None = None
    """Learning rate of the Muon part; `lr` if absent."""

    adam_lr: float | None = None
    """Learning rate of the Adam part; `lr` if absent."""

    momentum: float = 0.95
    """Momentum of the Muon part."""

    betas: MaybeAuto[Betas] = [0.9, 0.95]
    """Decay of the Adam part's moments."""

    eps: MaybeAuto[float] = 1e-10
    """Added to the Adam part's denominator."""

    ns_method: Literal["standard", "gram"] | None = None
    """Newton-Schulz variant."""

    foreach: bool | None = None
    """Only for torch's own optimizer."""

    per_head_muon: bool | None = None
    """Orthogonalize attention matrices per head."""

    adam_w_mode: bool = True
    """Decoupled weight decay in the Adam part."""

    torch_adam: bool = False
    """Use `torch.optim` for the Adam part."""


class _Optimizer(Section):
    type: str
    """Name of the optimizer."""

    legacy_fusion: bool = False
    """Use the older fusion of fp16 states."""

    params: object
    """Arguments of the constructor."""


class AdamOptimizer(_Optimizer):
    """`Adam` or `AdamW`."""

    params: AdamParams = AdamParams.model_construct()


class LionOptimizer(_Optimizer):
    """`Lion`."""

    params: LionParams = LionParams.model_construct()


class AdagradOptimizer(_Optimizer):
    """`Adagrad`."""

    params: AdagradParams = AdagradParams.model_construct()


class LambOptimizer(_Optimizer):
    """`Lamb`."""

    params: LambParams = LambParams.model_construct()


class MuonOptimizer(_Optimizer):
    """`Muon`."""

    params: MuonParams = MuonParams.model_construct()
    """Settings of both parts."""


class MupOptimizer(_Optimizer):
    """`MuAdam`, `MuAdamW` or `MuSGD` from the package `mup`."""

    params: dict[str, object] = {}
    """Arguments of the constructor in `mup`."""


class TorchOptimizer(_Optimizer):
    """Any class of `torch.optim`."""

    type: TorchOptimizerName
    """Exact name of the class."""

    params: dict[str, object] = {}


def _kind(value: object) -> str:
    name = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return KIND_OF.get(str(name).lower(), "<torch>")


Optimizer = Annotated[
    Annotated[OnDemand[AdamOptimizer], Tag("<adam>")]
    | Annotated[OnDemand[LionOptimizer], Tag("<lion>")]
    | Annotated[OnDemand[AdagradOptimizer], Tag("<adagrad>")]
    | Annotated[OnDemand[LambOptimizer], Tag("<lamb>")]
    | Annotated[OnDemand[MuonOptimizer], Tag("<muon>")]
    | Annotated[OnDemand[MupOptimizer], Tag("<mup>")]
    | Annotated[OnDemand[TorchOptimizer], Tag("<torch>")],
    Discriminator(_kind),
]
