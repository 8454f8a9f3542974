"""Checkpoints made without torch: files as `torch.save` and safetensors write them, and engines of them."""

import io
import json
import math
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zlaunch.checkpoint.safetensors import NAMES, WIDTHS, write_header
from zlaunch.checkpoint.torch_file import ITEM_BYTES

Shape = tuple[int, ...]

_STORAGES = {"float32": "FloatStorage", "bfloat16": "BFloat16Storage", "int64": "LongStorage"}


@dataclass(eq=False)
class T:
    """A tensor; its numbers are `data`, or zeros."""

    shape: Shape
    dtype: str = "float32"
    data: bytes = b""

    @property
    def content(self) -> bytes:
        """Its numbers."""
        return self.data or bytes(math.prod(self.shape) * ITEM_BYTES[self.dtype])


_Plain: Any = getattr(pickle, "_Pickler")  # noqa: B009 - which the stubs do not know


class _Pickler(_Plain):  # type: ignore[misc]
    """Writes what torch's pickler writes for a tensor, without importing it."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=2)
        self.stored: list[bytes] = []

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        """Write a value; a tensor as the call that builds it."""
        if not isinstance(obj, T):
            super().save(obj, save_persistent_id)
            return
        strides = [math.prod(obj.shape[at + 1 :]) for at in range(len(obj.shape))]
        self.write(b"ctorch._utils\n_rebuild_tensor_v2\n(")
        self.write(b"(" + b"X\x07\x00\x00\x00storage" + f"ctorch\n{_STORAGES[obj.dtype]}\n".encode())
        place: tuple[object, ...] = (str(len(self.stored)), "cpu", math.prod(obj.shape))
        view: tuple[object, ...] = (0, obj.shape, tuple(strides), False)
        for part in place:
            super().save(part)
        self.write(b"tQ")
        for part in view:
            super().save(part)
        self.write(b"ccollections\nOrderedDict\n)RtR")
        self.stored.append(obj.content)


def torch_save(value: object, file: Path) -> None:
    """Write a file as `torch.save` does."""
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(value)
    file.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", stream.getvalue())
        for number, data in enumerate(pickler.stored):
            archive.writestr(f"archive/data/{number}", data)


def safetensors(tensors: Mapping[str, T], file: Path) -> None:
    """Write a file of weights."""
    described, data = {}, b""
    for name, tensor in tensors.items():
        begin, data = len(data), data + tensor.content
        assert len(data) - begin == math.prod(tensor.shape) * WIDTHS[NAMES[tensor.dtype]]
        described[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, len(data)],
        }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(write_header(described) + data)


def engine(
    folder: Path,
    shapes: Mapping[str, Shape],
    stage: int,
    dtype: str = "bfloat16",
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write what two ranks save; the type is that of the tensors in the model's files."""
    numels = {name: math.prod(shape) for name, shape in shapes.items()}
    model = {
        "module": {name: T((0,) if stage == 3 else shape, dtype) for name, shape in shapes.items()},
        "param_shapes": [dict(shapes)],
        "buffer_names": [],
        "frozen_param_shapes": None,
        "frozen_param_fragments": None,
        "shared_params": {},
        "dp_world_size": 2,
        "mp_world_size": 1,
        "global_steps": 3,
        "ds_version": "0.19.8",
        "num_experts": [],
        "ds_config": {"zero_optimization": {"stage": stage}, **(config or {})},
    }
    ranks = ("zero_pp_rank_0_", "zero_pp_rank_1_") if stage == 3 else ("",)
    for rank in ranks:
        torch_save(model, folder / f"{rank}mp_rank_00_model_states.pt")
    share = sum(math.ceil(numel / 2) for numel in numels.values())
    if stage < 3:
        share = math.ceil(sum(numels.values()) / 4) * 2
    groups = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    state: dict[str, object] = {groups: [T((share,))], "zero_stage": stage, "partition_count": 2}
    moments = {"exp_avg": T((share,)), "exp_avg_sq": T((share,)), "step": T(())}
    inner = {"state": {0: moments}, "param_groups": [{"betas": (0.9, 0.999), "eps": 1e-8}]}
    state["optimizer_state_dict" if stage == 3 else "base_optimizer_state"] = inner
    prefix = "bf16_" if "bf16" in (config or {}) else ""
    for number in (0, 1):
        file = folder / f"{prefix}zero_pp_rank_{number}_mp_rank_00_optim_states.pt"
        torch_save({"optimizer_state_dict": state}, file)
    return folder


def trainers(
    folder: Path,
    shapes: Mapping[str, Shape],
    stage: int,
    dtype: str = "bfloat16",
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write what two ranks of a Trainer save; the engine is as for `engine`."""
    engine(folder / "global_step3", shapes, stage, dtype, config)
    (folder / "latest").write_text("global_step3")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 3}))
    torch_save({"last_epoch": 3}, folder / "scheduler.pt")
    return folder
