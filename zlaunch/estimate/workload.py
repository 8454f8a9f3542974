"""The workload of a rehearsal: one rank of one job, with everything that decides its memory."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, Final, Literal

from zlaunch.dsconfig.batch import RankGroups, rank_groups
from zlaunch.errors import WrongUsage
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.gpu_catalog import MOST_CUBLAS_BYTES

MOST_ACCUMULATED: Final = 2
"""Micro-batches of a step that are rehearsed: others add at most batches that a Trainer holds."""

LINEAR_LAYERS = "linear_layers"
"""`model_type` of the model of `zlaunch tour`, which transformers does not have: `num_layers` and `width`."""

_IMAGES = r"(?P<count>\d{1,4})(?:x(?P<width>[1-9]\d{0,4})x(?P<height>[1-9]\d{0,4}))?"
_LORA = r"(?P<rank>[1-9]\d{0,4})(?::(?P<modules>[\w.]+(?:,[\w.]+)*))?"

Accelerator = Literal["cuda", "cpu"]
FourBits = Literal["nf4", "nf4 nested"]
"""Weights of four bits, whose scales may be quantized too."""

Attention = Literal["sdpa", "eager", "flash_attention_2"]


DEFAULT_MODULES = ("default",)
"""Stands for the modules that `peft` chooses for a type of model where none are named."""


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters: their rank, and the modules that get one (none named: every linear layer)."""

    rank: int
    modules: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ":".join([str(self.rank), *filter(None, [",".join(self.modules)])])


def parse_lora(text: str) -> Lora:
    """Read `16`, or `16:q_proj,v_proj`; raise WrongUsage for anything else."""
    match = re.fullmatch(_LORA, text)
    if match is None:
        raise WrongUsage(
            f"`--lora {text}` is not RANK[:MODULES]", "write `--lora 16` or `--lora 16:q_proj,v_proj`"
        )
    return Lora(int(match["rank"]), tuple(filter(None, (match["modules"] or "").split(","))))


@dataclass(frozen=True, slots=True)
class Images:
    """Images in each sequence of a model that takes images beside text, and their size in pixels."""

    count: int = 1
    width: int | None = None
    """None for images of the size that the model has, if it has one."""
    height: int | None = None

    def __str__(self) -> str:
        if self.width is None:
            return str(self.count)
        return f"{self.count}x{self.width}x{self.height}"


ONE_IMAGE = Images()


def parse_images(text: str) -> Images:
    """Read `2`, or `2x1024x768`; raise WrongUsage for anything else."""
    match = re.fullmatch(_IMAGES, text)
    if match is None:
        raise WrongUsage(
            f"`--images {text}` is not N[xWIDTHxHEIGHT]", "write `--images 2` or `--images 2x1024x768`"
        )
    if match["width"] is None:
        return Images(int(match["count"]))
    return Images(int(match["count"]), int(match["width"]), int(match["height"]))


@dataclass(frozen=True, slots=True)
class Workload:
    """A model, a ds_config without "auto", and how they are trained."""

    model: Mapping[str, Any]
    """The model's config.json."""
    ds_config: Mapping[str, Any]
    world_size: int
    ranks_per_host: int
    seq_len: int
    """Tokens in each sequence; the micro-batch stands in the ds_config."""
    rank: int = 0
    optimizer: str | None = None
    """The Trainer's `--optim`, for a ds_config without an optimizer."""
    load_dtype: Literal["fp32", "bf16", "fp16"] = "bf16"
    """The format the weights are loaded in; DeepSpeed casts them afterwards."""
    zero_init: bool = False
    """Whether the model is made inside `deepspeed.zero.Init`, as transformers does for stage 3."""
    activation_checkpointing: bool = False
    lora: Lora | None = None
    frozen: str | None = None
    """Pattern of the names of parameters that are not trained."""
    liger: bool = False
    """Whether the Trainer replaces parts of the model by kernels of Liger."""
    four_bits: FourBits | None = None
    """Whether the weights below the adapters are quantized, and their scales too."""
    attention: Attention = "sdpa"
    """Anything but "eager" is the best that the model has; flash attention is torch's own."""
    accelerator: Accelerator = "cuda"
    cublas_bytes: int = MOST_CUBLAS_BYTES
    """What torch allocates on the GPU for each handle of cuBLAS."""
    steps: int = 2
    save: bool = True
    """Whether saving a checkpoint is looked at too."""
    resume: bool = True
    """Whether loading it in a new process is, if it is saved."""
    images: Images = ONE_IMAGE
    processor: Mapping[str, Any] = field(default_factory=dict)
    """The preprocessor_config.json beside the model's config.json, if there is one here."""
    remote_code: str | None = None
    """A local directory whose own code may be run to make the model."""

    @property
    def groups(self) -> RankGroups:
        """The ranks by what they share."""
        return rank_groups(self.ds_config, self.world_size)

    @property
    def has_other_traffic(self) -> bool:
        """Whether ranks exchange something other than whole parameters and gradients."""
        zero = self.ds_config.get("zero_optimization", {})
        quantized = zero.get("zero_quantized_weights"), zero.get("zero_quantized_gradients")
        return self.groups.are_split or (zero.get("stage") == 3 and True in quantized)


def to_json(workload: Workload) -> str:
    """Write a workload in one line; a model's config may have Infinity, which pydantic would make null."""
    return json.dumps(asdict(workload), sort_keys=True)
