"""Train one cell as one real rank: `python -m bench.gpu_cell DEVICE < WORKLOAD`, figures to stdout as JSON.

The job is made as a rehearsal makes it; what it takes is counted by the device. The process group has the
right size, and nobody else is in it: numbers are wrong, memory is real. Until its workload comes, a process
imports what it will need and leaves the device alone, so the next one can wait beside one that is measured.
"""

import contextlib
import gc
import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.gpu_device import DEVICES, Device

Phase = Callable[[str], contextlib.AbstractContextManager[None]]
STEPS = 2

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
    workload = json.load(sys.stdin)
    try:
        answer = measure(workload, DEVICES[sys.argv[1]]())
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


def measure(fields: dict[str, Any], device: Device) -> dict[str, Any]:
    """Make the model, train two steps, save and resume; return the peaks of each phase."""
    from pydantic import TypeAdapter

    from zlaunch.memory.workload import Workload

    workload = TypeAdapter(Workload).validate_python(fields)
    device.begin()
    join(workload)
    from transformers.integrations import HfDeepSpeedConfig

    from zlaunch.rehearsal import model, training

    config = model.read_config(workload)
    gc.disable()  # what is garbage at the end of a phase is collected in it

    @contextlib.contextmanager
    def phase(name: str) -> Any:
        with device.phase(name):
            yield
            gc.collect()

    with phase("load"):
        stage3 = HfDeepSpeedConfig(dict(workload.ds_config)) if workload.zero_init else None
        net = without_contents(lambda: model.build(workload, config))
        del stage3
    with phase("initialize"):
        engine = training.initialize(workload, net)
    for step in range(STEPS):
        names = ("second step",) * 3 if step else ("forward", "backward", "step")
        for _ in range(workload.ds_config["gradient_accumulation_steps"]):
            with phase(names[0]):
                loss = engine(**model.batch(workload, config, device.place())).loss
            with phase(names[1]):
                engine.backward(loss)
                del loss
            with phase(names[2]):
                engine.step()
    if workload.save:
        save_and_resume(engine, phase)
    phases = device.end()
    if engine.global_steps != STEPS or engine.skipped_steps:
        raise RuntimeError(f"{engine.skipped_steps} of {engine.global_steps} steps were left out")
    return {"phases": phases, "optimizer": type(engine.optimizer).__name__}


def join(workload: Any) -> None:
    """Join a process group of the right size, in which nobody else is."""
    import deepspeed
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(
        RANK="0",
        LOCAL_RANK="0",
        WORLD_SIZE=str(workload.world_size),
        LOCAL_WORLD_SIZE=str(workload.ranks_per_host),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    distributed.init_process_group("fake", rank=0, world_size=workload.world_size, store=FakeStore())
    deepspeed.init_distributed(dist_backend="fake", verbose=False)  # else `zero.Init` sees one rank


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


def save_and_resume(engine: Any, phase: Phase) -> None:
    """Save the weights and then a checkpoint, and load that, as transformers' Trainer does."""
    from accelerate import Accelerator, DistributedType

    accelerator = SimpleNamespace(
        distributed_type=DistributedType.DEEPSPEED,
        deepspeed_config={"zero_optimization": {"stage": engine.zero_optimization_stage()}},
        unwrap_model=lambda engine: engine.module,
    )
    adapted = hasattr(engine.module, "peft_config")
    with tempfile.TemporaryDirectory() as folder:
        with phase("save"):
            weights = Accelerator.get_state_dict(accelerator, engine)
            engine.module.save_pretrained(Path(folder, "weights"), state_dict=weights)
            del weights
            engine.save_checkpoint(folder, tag="saved", exclude_frozen_parameters=adapted)
        _save_for_others(engine, folder)
        with phase("resume"):
            path, _ = engine.load_checkpoint(folder, tag="saved", load_module_strict=not adapted)
    if path is None:
        raise RuntimeError("nothing was resumed")


def _save_for_others(engine: Any, folder: str) -> None:
    """Give the other ranks the files that nobody wrote: as large as our own."""
    if not engine.zero_optimization():
        return
    names = engine._get_mp_rank_zero_checkpoint_names(
        load_dir=folder,
        tag="saved",
        mp_rank=0,
        dp_world_size=engine.dp_world_size,
        bf16_mode=engine.bfloat16_enabled(),
    )
    for name in names[1:]:
        Path(name).symlink_to(names[0])


if __name__ == "__main__":
    main()
