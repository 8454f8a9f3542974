"""Number formats: `fp16`, `bf16`, `data_types`, `torch_autocast`."""

from typing import Annotated, Literal

from pydantic import Field

from zlaunch.dsconfig.schema.section import Absent, DtypeName, MaybeAuto, Positive, Section


class Fp16(Section):
    """`fp16`: half precision with loss scaling."""

    enabled: MaybeAuto[bool] = False
    """Train in fp16."""

    auto_cast: bool = False
    """Cast the inputs of the model to fp16."""

    loss_scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """A fixed loss scale; 0 means that it is adapted as training goes on."""

    initial_scale_power: int = 16
    """The first loss scale is 2 to this power."""

    loss_scale_window: Positive = 1000
    """Steps without overflow after which the loss scale is doubled."""

    hysteresis: int = 2
    """Overflows to tolerate before the loss scale is halved."""

    consecutive_hysteresis: bool = False
    """Count anew after each step without overflow."""

    min_loss_scale: Positive = 1
    """The loss scale never falls below this."""

    fp16_master_weights_and_grads: bool = False
    """Keep master weights and gradients in fp16 as well (offload with DeepSpeedCPUAdam)."""


class Bf16(Section):
    """`bf16`: the range of fp32 in 16 bits, no loss scaling."""

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
    """`bfloat16`, the old name of `bf16`, which nobody fills in."""

    enabled: bool = False
    """Train in bf16."""


class DataTypes(Section):
    """`data_types`: formats that differ from the model's."""

    grad_accum_dtype: DtypeName | None = None
    """Format in which gradients are accumulated; the model's own if absent."""

    param_dtype: DtypeName | None = None
    """Format of the parameters; must agree with `fp16` or `bf16`."""

    buffer_dtype: DtypeName | None = None
    """Format of the module buffers."""

    keep_in_fp32_modules: Literal["auto"] | list[str] = "auto"
    """Modules that stay in fp32; `auto` asks the model."""


class TorchAutocast(Section):
    """`torch_autocast`: let PyTorch choose the format of each operation."""

    enabled: bool = False
    """Run forward under `torch.autocast`."""

    dtype: Absent[DtypeName] = None
    """The lower format; always name it, PyTorch's own default differs by device."""

    lower_precision_safe_modules: Absent[list[str]] = None
    """Module classes whose gradients may be reduced in the lower format."""
