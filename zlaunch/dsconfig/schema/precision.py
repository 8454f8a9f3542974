"""Precision: `fp16`, `bf16`, `data_types`, `torch_autocast`."""

from typing import Annotated, Literal

from pydantic import Field

from zlaunch.dsconfig.schema.section import Absent, DtypeName, MaybeAuto, Section, Switched


class Fp16(Section):
    """fp16 precision with loss scaling."""

    enabled: MaybeAuto[bool] = False
    """Train in fp16."""

    auto_cast: bool = False
    """Cast the inputs of the model to fp16."""

    loss_scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Fixed loss scale; 0 for dynamic loss scaling."""

    initial_scale_power: int = 16
    """Initial dynamic loss scale, as a power of 2."""

    loss_scale_window: int = 1000
    """Steps without overflow after which the loss scale is doubled; more than 0 for dynamic loss scaling."""

    hysteresis: int = 2
    """Overflows to tolerate before the loss scale is halved."""

    consecutive_hysteresis: bool = False
    """Reset the hysteresis after each step without overflow."""

    min_loss_scale: int = 1
    """Smallest dynamic loss scale; more than 0 for dynamic loss scaling."""

    fp16_master_weights_and_grads: bool = False
    """Keep master weights and gradients in fp16 as well (offload with DeepSpeedCPUAdam)."""


class Bf16(Section):
    """bf16 precision: the range of fp32 in 16 bits, no loss scaling."""

    enabled: MaybeAuto[bool] = False
    """Train in bf16."""

    immediate_grad_update: bool = False
    """Add gradients to the fp32 buffer as they are produced (stage 1 with fp32 accumulation)."""

    check_grad_overflow: bool = True
    """Skip steps whose gradients are not finite (stages 1 and 2)."""

    bf16_master_weights_and_grads: bool = False
    """Keep master weights and gradients in bf16 as well."""

    bf16_optimizer_states: bool = False
    """Keep optimizer states in bf16; needs `bf16_master_weights_and_grads`."""


class OldBf16(Bf16):
    """Old name of `bf16`, not read when `bf16` is there; it takes no "auto"."""

    enabled: bool = False
    """Train in bf16."""


class DataTypes(Section):
    """Data types that differ from the model's."""

    grad_accum_dtype: DtypeName | None = None
    """Data type of accumulated gradients; by default the model's."""

    param_dtype: DtypeName | None = None
    """Data type of the parameters; must match `fp16` or `bf16`."""

    buffer_dtype: DtypeName | None = None
    """Data type of the module buffers."""

    keep_in_fp32_modules: Literal["auto"] | list[str] = "auto"
    """Modules that stay in fp32; `auto` asks the model."""


class TorchAutocast(Switched):
    """Let PyTorch choose the data type of each operation."""

    dtype: Absent[DtypeName] = None
    """The lower-precision data type; set it, because PyTorch's default depends on the device."""

    lower_precision_safe_modules: Absent[list[str]] = None
    """Module classes whose gradients may be reduced in lower precision."""
