"""Runs in every rank, under each launcher alike: records losses, the engine's stage, and the use of DDP.

A `.pth` file in the environment of the programs executes this file if `PROGRAMS_OBSERVER` names it. It
wraps functions after their modules were imported, and does not depend on zlaunch. It also lets torchvision
accept data sets that were made here.
"""

import functools
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = os.environ["PROGRAMS_OBSERVED"]


def record(**facts: object) -> None:
    """Append facts to the file of this process."""
    rank = os.environ.get("RANK", "none")
    with Path(FOLDER, f"rank-{rank}-{os.getpid()}.jsonl").open("a") as file:
        print(json.dumps(facts), file=file)


def after(owner: Any, name: str, look: Callable[[Any], None]) -> None:
    """Call `look` with the object after one of its methods returned."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        look(self)
        return result

    setattr(owner, name, wrapper)


def record_loss(tensor: Any) -> None:
    """Record a number on which `backward` was called."""
    if tensor.numel() == 1:
        record(loss=float(tensor.detach()))


def record_engine(engine: Any) -> None:
    """Record how DeepSpeed's engine was built."""
    precision = "fp32"
    if engine.bfloat16_enabled():
        precision = "bf16"
    elif engine.fp16_enabled():
        precision = "fp16"
    record(stage=int(engine.zero_optimization_stage()), world=int(engine.world_size), precision=precision)


def record_ddp(_: Any) -> None:
    """Record that a model was wrapped."""
    record(ddp=True)


WATCHED: dict[str, Callable[[ModuleType], None]] = {
    "torch._tensor": lambda module: after(module.Tensor, "backward", record_loss),
    "torch.nn.parallel.distributed": lambda module: after(
        module.DistributedDataParallel, "__init__", record_ddp
    ),
    "deepspeed.runtime.engine": lambda module: after(module.DeepSpeedEngine, "__init__", record_engine),
    "torchvision.datasets.utils": lambda module: setattr(module, "check_md5", lambda *_, **__: True),
}


class Observer(MetaPathFinder):
    """Wraps the functions of a module after its execution."""

    def __init__(self) -> None:
        self.looking = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Find the module as the other finders do."""
        if fullname not in WATCHED or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.looking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execution(module: ModuleType) -> None:
                execute(module)
                WATCHED[fullname](module)

            spec.loader.exec_module = execution  # type: ignore[method-assign]
        return spec


if not any(type(finder).__name__ == "Observer" for finder in sys.meta_path):  # `.pth` files may run twice
    sys.meta_path.insert(0, Observer())
