"""Runs in every rank that zlaunch starts: writes what each phase of the program really held in memory.

A `.pth` file in the environment of the programs executes this file if `PROGRAMS_OBSERVER` names it. The ranks
end when they have taken two steps and saved. Nothing here is shared with the rehearsal.
"""

import gc
import json
import os
import site
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(os.environ["PROGRAMS_OBSERVER"]).parent.parent.parent
PACKAGES = (
    "transformers.trainer",
    "transformers.models.auto.modeling_auto",
    "datasets",
    "peft",
    "trl",
    "timm",
)
"""Packages whose tensors of their own are made before anything is measured."""


def begin() -> None:
    """Import what takes long, and start to measure."""
    sys.path.insert(0, str(ROOT))
    from tests.estimate.rehearsal import allocations, gloo, real_program
    from tests.preloading import preload

    sys.path.remove(str(ROOT))
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # allocations of other threads are taken for those of gloo
    preload(*filter(_is_there, PACKAGES))
    import torch
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity

    ShareMemCommBuilder().load(verbose=False)
    torch.set_num_threads(1)
    gloo.make_prompt()
    allocations.mark_others()
    folder = Path(os.environ["PROGRAMS_OBSERVED"])
    rank = os.environ["RANK"]

    def leave() -> None:
        watch.enter("end")
        profile.__exit__(None, None, None)
        torch.distributed.barrier()
        account = allocations.account(profile.profiler.kineto_results)
        answer = {"optimizer": watch.optimizer, **asdict(account)}
        (folder / f"{rank}.json").write_text(json.dumps(answer))
        torch.distributed.barrier()
        os._exit(0)

    watch = real_program.Watch(folder / "checkpoint", leave)
    watch.install()
    gc.collect()
    gc.freeze()
    profile = torch.profiler.profile(
        activities=[ProfilerActivity.CPU],
        profile_memory=True,
        experimental_config=_ExperimentalConfig(capture_overload_names=True),
    )
    profile.__enter__()
    watch.enter("load")


def _is_there(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name.partition(".")[0]) is not None


def _after(execute: Callable[[], Any]) -> Callable[[], None]:
    def executed() -> None:
        execute()
        begin()

    return executed


if "ZLAUNCH_RANK" in os.environ and "RANK" in os.environ:
    site.execsitecustomize = _after(site.execsitecustomize)  # which has zlaunch's hook
