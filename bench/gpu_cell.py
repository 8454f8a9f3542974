"""Train, resume or time one cell as a real rank: `python -m bench.gpu_cell DEVICE < TASK`.

Prints the memory figures of each phase as JSON, and the times if asked for them. The job is built with the
code of the rehearsal, and its memory is counted by the device. The process group has the right size but no
other ranks, so values are wrong and sizes are right. Before it reads its task, the process imports packages
and does not use the device: the next process can start while one is being measured.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.gpu_device import DEVICES, Device
from zlaunch.estimate.workload import Workload

STEPS = 2
TAG = "saved"
WARM_UP = 3
TIMED = 5
"""Steps that are timed as a whole, and as many by phase."""

_SLOW_IMPORTS = (
    "accelerate",
    "peft",
    "torch._dynamo",
    "torch._inductor",
    "transformers.models.auto.modeling_auto",
    "transformers.trainer_pt_utils",
)
"""Without DeepSpeed, which may initialize CUDA."""


def main() -> None:
    """Print the result of the task, or the exception that it raised."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of the packages go to stderr
    for name in _SLOW_IMPORTS:
        importlib.import_module(name)
    task = json.load(sys.stdin)
    try:
        result = measure(task, DEVICES[sys.argv[1]]())
    except BaseException as error:  # noqa: BLE001 - the exception is the result
        traceback.print_exc()
        result = {"error": _describe(error)}
    print(json.dumps(result), file=out, flush=True)
    os._exit(0)  # skip the teardown of the engine


def _describe(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines() or [frame.line or ""]
    return f"{type(error).__name__}: {lines[0]} ({Path(frame.filename).name}:{frame.lineno})"


def measure(task: dict[str, Any], device: Device) -> dict[str, Any]:
    """Run a task; return the peaks of each phase and the optimizer's class."""
    from pydantic import TypeAdapter

    from zlaunch.estimate.rehearsal.training import base_optimizer

    rank = Rank(TypeAdapter(Workload).validate_python(task["workload"]), device)
    device.begin()
    gc.disable()  # garbage is collected at the end of each phase
    fill = random_blocks if task["run"] == "time" else zeros
    rank.initialize(fill)
    found = TASKS[task["run"]](rank, Path(task["checkpoint"]))
    return {"phases": device.end(), "optimizer": type(base_optimizer(rank.engine)).__name__, **(found or {})}


@dataclass
class Rank:
    """A rank that trains on a device. DeepSpeed is imported only in its methods, after `device.begin`."""

    workload: Workload
    device: Device
    config: Any = None
    inputs: Any = None
    engine: Any = None

    @contextlib.contextmanager
    def phase(self, name: str, _part: str = "") -> Iterator[None]:
        """Count the memory of everything inside as one phase."""
        with self.device.phase(name):
            yield
            gc.collect()

    def initialize(self, fill: Callable[[Any], None]) -> None:
        """Build the model with weights from `fill`, and initialize the engine."""
        from transformers.integrations import HfDeepSpeedConfig

        from zlaunch.estimate.rehearsal import model, training
        from zlaunch.estimate.rehearsal.inputs import inputs_of

        training.join_process_group(self.workload)
        self.config = model.read_config(self.workload)
        chosen = model.choose_class(self.config, self.workload.remote_code)
        with self.phase("load"):
            stage3 = HfDeepSpeedConfig(dict(self.workload.ds_config)) if self.workload.zero_init else None
            net = with_weights(fill, lambda: model.build(self.workload, self.config, chosen))
            del stage3
            self.inputs = inputs_of(self.workload, net, self.config)
        with self.phase("initialize"):
            self.engine = training.initialize(self.workload, net)

    def batch(self) -> Any:
        """Create a micro-batch, with image tokens if the model gets images: it checks their number."""
        from zlaunch.estimate.rehearsal.model import trained_dtype

        batch = self.inputs.make(self.device.place(), trained_dtype(self.workload.ds_config))
        for name, data in self.inputs.data.items():
            batch[name] = data.to(batch[name].device, batch[name].dtype)
        if self.inputs.has_images and "input_ids" not in self.inputs.data:
            batch["input_ids"][:, : self.config.image_seq_length] = self.config.image_token_id
        return batch


def train(rank: Rank, checkpoint: Path) -> None:
    """Take two steps, and save if the workload says so."""
    from zlaunch.estimate.rehearsal.checkpoints import link_files_of_other_ranks
    from zlaunch.estimate.rehearsal.training import take_step

    engine, accumulation = rank.engine, rank.workload.ds_config["gradient_accumulation_steps"]
    for step in range(STEPS):
        phase = partial(rank.phase, "second step") if step else rank.phase
        take_step(engine, rank.batch, phase, accumulation)
    if engine.global_steps != STEPS or engine.skipped_steps:
        raise RuntimeError(f"{engine.skipped_steps} of {engine.global_steps} steps were skipped")
    if rank.workload.save:
        with rank.phase("save"):
            save(engine, checkpoint)
        link_files_of_other_ranks(engine, checkpoint, TAG)


def resume(rank: Rank, checkpoint: Path) -> None:
    """Load the checkpoint that `train` saved in another process."""
    strict = not hasattr(rank.engine.module, "peft_config")
    with rank.phase("resume"):
        path, _ = rank.engine.load_checkpoint(str(checkpoint), tag=TAG, load_module_strict=strict)
    if path is None:
        raise RuntimeError("the checkpoint was not loaded")


def time_steps(rank: Rank, _checkpoint: Path) -> dict[str, Any]:
    """Take steps; return the seconds of each whole step, and of each phase in further steps.

    Whole steps come first: with a wait after each phase, no Python runs beside the kernels.
    """
    from zlaunch.estimate.rehearsal.training import take_step

    engine, accumulation = rank.engine, rank.workload.ds_config["gradient_accumulation_steps"]
    clock = Clock(rank.device)
    for name in (*["warm-up"] * WARM_UP, *["whole"] * TIMED):
        with clock.phase(name):
            take_step(engine, rank.batch, lambda _: contextlib.nullcontext(), accumulation)
    for _ in range(TIMED):
        take_step(engine, rank.batch, clock.phase, accumulation)
    return {"seconds": clock.seconds}


class Clock:
    """Seconds of phases, each begun and ended with an idle device."""

    def __init__(self, device: Device) -> None:
        """Start without measurements."""
        self._device = device
        self.seconds: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time everything inside."""
        self._device.wait()
        began = time.perf_counter()
        yield
        self._device.wait()
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)


TASKS: dict[str, Callable[[Rank, Path], dict[str, Any] | None]] = {
    "train": train,
    "resume": resume,
    "time": time_steps,
}


def zeros(weights: Any) -> None:
    """Fill weights with zeros, which is fast and avoids overflows."""
    weights.zero_()


def random_blocks(weights: Any) -> None:
    """Fill weights with one block of random numbers over and over; with zeros, a GPU computes faster."""
    import torch

    block = torch.empty(1 << 20).normal_(std=0.02, generator=torch.Generator().manual_seed(1))
    for part in weights.view(-1).split(len(block)):
        part.copy_(block[: len(part)])


def with_weights(fill: Callable[[Any], None], build: Callable[[], Any]) -> Any:
    """Build a model, fill all weights, and tie those that are tied."""
    from transformers import PreTrainedModel
    from transformers.initialization import no_init_weights

    with no_init_weights():  # skips tying too, and restores everything on exit
        PreTrainedModel.init_weights = lambda self: self.tie_weights(recompute_mapping=False)
        net = build()
    for parameter in net.parameters():
        fill(getattr(parameter, "ds_tensor", parameter).data)
    return net


def save(engine: Any, folder: Path) -> None:
    """Save like transformers' Trainer: the weights, then a checkpoint."""
    from accelerate import Accelerator, DistributedType

    accelerator = SimpleNamespace(
        distributed_type=DistributedType.DEEPSPEED,
        deepspeed_config={"zero_optimization": {"stage": engine.zero_optimization_stage()}},
        unwrap_model=lambda engine: engine.module,
    )
    has_adapters = hasattr(engine.module, "peft_config")
    weights = Accelerator.get_state_dict(accelerator, engine)
    engine.module.save_pretrained(folder / "weights", state_dict=weights)
    del weights
    engine.save_checkpoint(str(folder), tag=TAG, exclude_frozen_parameters=has_adapters)


if __name__ == "__main__":
    main()
