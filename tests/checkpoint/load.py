"""Load checkpoints into engines, and take a step: `torchrun … -m tests.checkpoint.load OUT DIR/SAVED:ENGINE…`.

OUT gets a JSON object: pair → the losses of the next steps, or the error. After `+universal` in the name of an
engine, the universal checkpoint is loaded.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # noqa: TID253 - a program of its own
from torch.distributed import all_gather_object, get_rank, get_world_size  # noqa: TID253

from tests.checkpoint.engines import ENGINES, OTHER_OPTIMIZERS
from tests.checkpoint.save import EXPERTS_ASKED, STEPS, Net, engine, experts_engine


def opened(folder: Path, config: dict[str, Any]) -> tuple[Any, Callable[[], object]]:
    """Make an engine, and how it loads the checkpoint: with accelerate, if that has saved it."""
    if not folder.name.startswith("accelerate"):
        made = engine(config, steps=0)
        return made, lambda: made.load_checkpoint(str(folder))[0]
    from accelerate import Accelerator, DeepSpeedPlugin

    plugin = DeepSpeedPlugin(hf_ds_config={**config, "train_micro_batch_size_per_gpu": 2})
    accelerator, net = Accelerator(deepspeed_plugin=plugin, mixed_precision="bf16"), Net()
    trained = [one for one in net.parameters() if one.requires_grad]
    made, _ = accelerator.prepare(net, torch.optim.AdamW(trained))
    return made, lambda: accelerator.load_state(str(folder)) or folder


def loaded(folder: Path, name: str) -> list[float] | str:
    """Load a checkpoint into an engine; return the losses of the next steps, or the error."""
    kind, _, universal = name.partition("+")
    engines = {**ENGINES, **OTHER_OPTIMIZERS}
    config: dict[str, Any] = {**engines[kind], "checkpoint": {"load_universal": bool(universal)}}
    made, load = opened(folder, config)
    try:
        if not load():
            return "nothing was found"
        losses = []
        for step in range(STEPS):
            torch.manual_seed(99 + step)  # in all ranks, so that their number makes no difference
            loss = made(torch.randn(2, 7).to(torch.bfloat16 if "bf16" in config else torch.float32))
            made.backward(loss)
            made.step()
            losses.append(float(loss))
        return losses
    except Exception as error:  # noqa: BLE001 - whatever DeepSpeed raises is the answer
        return f"{type(error).__name__}: {error}"
    finally:
        made.destroy()


def answered(exported: Path) -> list[float]:
    """Load exported experts into a model that has all of them in this rank; return what it answers."""
    from safetensors.torch import load_file

    made = experts_engine(ranks=1)
    made.module.load_state_dict(load_file(exported / "model.safetensors"))
    made.eval()
    with torch.no_grad():
        answer = made(EXPERTS_ASKED).float().flatten().tolist()
    made.destroy()
    return list(answer)


def main(out: Path, pairs: list[str]) -> None:
    """Load each pair in all ranks; an error of any rank counts. `experts` as an engine takes an exported model."""
    import deepspeed

    deepspeed.init_distributed("gloo")
    told = {}
    for pair in pairs:
        folder, _, name = pair.rpartition(":")
        answers: list[Any] = [None] * get_world_size()
        load = answered(Path(folder)) if name == "experts" else loaded(Path(folder), name)
        all_gather_object(answers, load)
        told[pair] = next((one for one in answers if isinstance(one, str)), answers[0])
    if get_rank() == 0:
        out.write_text(json.dumps(told))
    torch.distributed.barrier()  # a rank that ends early ends those that are still busy
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo may abort a process that Python finalizes


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
