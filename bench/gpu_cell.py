"""Do one task of a cell as a real rank: `python -m bench.gpu_cell DEVICE < TASK`, figures to stdout as JSON.

A task is to train a workload and save it in a folder, or to resume what another process saved there. The job
is made as a rehearsal makes it; what it takes is counted by the device. The process group has the right size,
and nobody else is in it: numbers are wrong, memory is real. Until its task comes, a process imports what it
will need and leaves the device alone, so the next one can wait beside one that is measured.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.gpu_device import DEVICES, Device

STEPS = 2
TAG = "saved"

_IMPORTED_LATE = (
    "accelerate",
    "peft",
    "torch._dynamo",
    "torch._inductor",
    "transformers.models.auto.modeling_auto",
    "transformers.trainer_pt_utils",
)


def main() -> None:
    """Answer with the figures of each phase, or with what was raised."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages print is no answer
    _warm_up()
    task = json.load(sys.stdin)
    try:
        answer = measure(task, DEVICES[sys.argv[1]]())
    except BaseException as error:  # noqa: BLE001 - what it raised is the result
        traceback.print_exc()
        answer = {"error": _told(error)}
    print(json.dumps(answer), file=out, flush=True)
    os._exit(0)  # an engine on the way out has nothing more to say


def _warm_up() -> None:
    """Import what takes long; importing DeepSpeed may set CUDA up."""
    for name in _IMPORTED_LATE:
        importlib.import_module(name)


def _told(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines() or [frame.line or ""]
    return f"{type(error).__name__}: {lines[0]} ({Path(frame.filename).name}:{frame.lineno})"


def measure(task: dict[str, Any], device: Device) -> dict[str, Any]:
    """Train or resume; return the peaks of each phase."""
    from pydantic import TypeAdapter

    from zlaunch.estimate.rehearsal import optimizer
    from zlaunch.estimate.workload import Workload

    workload = TypeAdapter(Workload).validate_python(task["workload"])
    device.begin()
    optimizer.join(workload)
    gc.disable()  # what is garbage at the end of a phase is collected in it
    rank = Rank(workload, device)
    rank.initialize()
    RUNS[task["run"]](rank, Path(task["checkpoint"]))
    return {"phases": device.end(), "optimizer": type(rank.engine.optimizer).__name__}


@dataclass
class Rank:
    """What a rank trains, and what counts its memory."""

    workload: Any
    device: Device
    config: Any = None
    inputs: Any = None
    engine: Any = None

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens meanwhile."""
        with self.device.phase(name):
            yield
            gc.collect()

    def initialize(self) -> None:
        """Make the model, and give it to DeepSpeed."""
        from transformers.integrations import HfDeepSpeedConfig

        from zlaunch.estimate.rehearsal import model, optimizer
        from zlaunch.estimate.rehearsal.inputs import inputs_of

        self.config = model.read_config(self.workload)
        chosen = model.choose_class(self.config, self.workload.remote_code)
        with self.phase("load"):
            stage3 = HfDeepSpeedConfig(dict(self.workload.ds_config)) if self.workload.zero_init else None
            net = without_contents(lambda: model.build(self.workload, self.config, chosen))
            del stage3
            self.inputs = inputs_of(self.workload, net, self.config)
        with self.phase("initialize"):
            self.engine = optimizer.initialize(self.workload, net)

    def batch(self) -> Any:
        """Make a micro-batch; a model that is given images counts their tokens."""
        from zlaunch.estimate.rehearsal.model import trained_dtype

        made = self.inputs.make(self.device.place(), trained_dtype(self.workload.ds_config))
        if self.inputs.has_images:
            made["input_ids"][:, : self.config.image_seq_length] = self.config.image_token_id
        return made


def train(rank: Rank, checkpoint: Path) -> None:
    """Take two steps, and save if the workload asks for that."""
    from zlaunch.estimate.rehearsal.checkpoints import save_for_others

    engine = rank.engine
    for step in range(STEPS):
        names = ("second step",) * 3 if step else ("forward", "backward", "step")
        for _ in range(rank.workload.ds_config["gradient_accumulation_steps"]):
            with rank.phase(names[0]):
                loss = engine(**rank.batch()).loss
            with rank.phase(names[1]):
                engine.backward(loss)
                del loss
            with rank.phase(names[2]):
                engine.step()
    if engine.global_steps != STEPS or engine.skipped_steps:
        raise RuntimeError(f"{engine.skipped_steps} of {engine.global_steps} steps were left out")
    if rank.workload.save:
        with rank.phase("save"):
            save(engine, checkpoint)
        save_for_others(engine, checkpoint, TAG)


def resume(rank: Rank, checkpoint: Path) -> None:
    """Load what `train` saved in another process."""
    strict = not hasattr(rank.engine.module, "peft_config")
    with rank.phase("resume"):
        path, _ = rank.engine.load_checkpoint(str(checkpoint), tag=TAG, load_module_strict=strict)
    if path is None:
        raise RuntimeError("nothing was resumed")


RUNS = {"train": train, "resume": resume}


def without_contents(make: Callable[[], Any]) -> Any:
    """Make a model whose weights are zero, which takes no time and overflows nowhere, and tie them."""
    from transformers import PreTrainedModel
    from transformers.initialization import no_init_weights

    with no_init_weights():  # it does not tie either, and puts everything back
        PreTrainedModel.init_weights = lambda self: self.tie_weights(recompute_mapping=False)
        net = make()
    for parameter in net.parameters():
        getattr(parameter, "ds_tensor", parameter).data.zero_()
    return net


def save(engine: Any, folder: Path) -> None:
    """Save the weights and then a checkpoint, as transformers' Trainer does."""
    from accelerate import Accelerator, DistributedType

    accelerator = SimpleNamespace(
        distributed_type=DistributedType.DEEPSPEED,
        deepspeed_config={"zero_optimization": {"stage": engine.zero_optimization_stage()}},
        unwrap_model=lambda engine: engine.module,
    )
    adapted = hasattr(engine.module, "peft_config")
    weights = Accelerator.get_state_dict(accelerator, engine)
    engine.module.save_pretrained(folder / "weights", state_dict=weights)
    del weights
    engine.save_checkpoint(str(folder), tag=TAG, exclude_frozen_parameters=adapted)


if __name__ == "__main__":
    main()
