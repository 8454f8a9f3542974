"""One rehearsal: the installed engine takes two steps, and the ledger sees everything."""

import contextlib
import gc
import os
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from deepspeed.accelerator import real_accelerator

from zlaunch.memory.workload import Workload
from zlaunch.rehearsal import checkpoints, device, model, ops, patches, phantom, semantics, training
from zlaunch.rehearsal.accelerator import FakeGPU
from zlaunch.rehearsal.ledger import Ledger
from zlaunch.rehearsal.parts import Parts

_ENOUGH = 1 << 50
"""Bytes of a GPU on which nothing has to be given back."""


def told(error: BaseException, phase: str) -> str:
    """Say what was raised, where, and during which phase; an assertion without words is its own words."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    words = str(error).strip() or frame.line
    place = frame.filename.rsplit("/site-packages/", 1)[-1]
    return f"{type(error).__name__}: {words} ({place}:{frame.lineno}, during {phase})"


_THEIRS = ("deepspeed", "transformers", "peft")


@dataclass
class Run:
    """What a rehearsal leaves."""

    ledger: Ledger = field(default_factory=Ledger)
    parameters: int = 0
    trainable: int = 0
    optimizer: str = ""
    flops: float = 0.0
    late_error: str | None = None


def is_theirs(error: BaseException) -> bool:
    """Say whether an exception is DeepSpeed's or the model's own, not one of tracing."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and any(f"/site-packages/{name}/" in frames[-1].filename for name in _THEIRS)


def prepare(workload: Workload, *, fast: bool = True) -> None:
    """Do once in a process what every rehearsal needs; without `fast`, nothing is there to save time."""
    device.register()
    phantom.spread_attributes()
    phantom.share_keys(_place(workload))
    phantom.PhantomMode.fast = fast
    patches.apply(fast)
    if workload.accelerator == "cuda":
        semantics.apply()


def rehearse(workload: Workload, run: Run) -> None:
    """Fill `run`; whatever DeepSpeed raises goes through, with what was seen until then in `run`.

    DeepSpeed deletes what is in the directory that it is to swap to, where a job may have its parameters:
    here it gets one of its own.
    """
    with tempfile.TemporaryDirectory() as drive:
        _rehearse(replace(workload, ds_config=_swapping_to(drive, workload.ds_config)), run)


def _swapping_to(drive: str, ds_config: Mapping[str, Any]) -> Mapping[str, Any]:
    zero = ds_config.get("zero_optimization", {})
    moved = {
        name: {**section, "nvme_path": drive}
        for name in ("offload_optimizer", "offload_param")
        if (section := zero.get(name) or {}).get("nvme_path") is not None
    }
    return {**ds_config, "zero_optimization": {**zero, **moved}} if moved else ds_config


def _rehearse(workload: Workload, run: Run) -> None:
    from transformers.integrations import HfDeepSpeedConfig

    config = model.read_config(workload)
    place = _place(workload)
    parts = Parts(model.vocabulary(config), half=_is_half(workload.ds_config))
    mode = phantom.PhantomMode(run.ledger, parts.of, semantics.WORKSPACES, place)
    ops.replace_builders(mode)
    if workload.accelerator == "cuda":
        real_accelerator.set_accelerator(FakeGPU(mode, _ENOUGH, workload.ranks_per_host))
    _join(workload)

    @contextlib.contextmanager
    def phase(name: str, moment: str | None = None) -> Iterator[None]:
        parts.moment = moment or name
        with run.ledger.in_phase(name):
            yield
            gc.collect()
            gc.freeze()  # what is alive now is not looked at again

    gc.disable()
    gc.freeze()
    with torch.autograd.set_multithreading_enabled(False), mode:
        with phase("load"):
            # While this object lives, transformers makes models in `zero.Init`, as under the Trainer.
            stage3 = HfDeepSpeedConfig(dict(workload.ds_config)) if workload.zero_init else None
            net = model.build(workload, config)
            del stage3
            parts.know(net)
            numels = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in net.parameters()]
            run.parameters = sum(numel for numel, _ in numels)
            run.trainable = sum(numel for numel, trained in numels if trained)
        with phase("initialize"):
            engine = training.initialize(workload, net)
            run.optimizer = type(engine.optimizer).__name__
        for step in range(workload.steps):
            mode.flops = 0.0
            _step(workload, engine, lambda: model.batch(workload, config, place), step, phase)
        run.flops = mode.flops
        if workload.save:
            with checkpoints.checkpoints(engine) as directory:
                with phase("save"):
                    checkpoints.save(engine, net, directory)
                with phase("resume"):
                    checkpoints.resume(engine, net, directory)


def _is_half(ds_config: Mapping[str, Any]) -> bool:
    return any(ds_config.get(name, {}).get("enabled") is True for name in ("bf16", "fp16"))


def _place(workload: Workload) -> torch.device:
    return torch.device(device.NAME, 0) if workload.accelerator == "cuda" else torch.device("cpu")


def _step(workload: Workload, engine: Any, make_batch: Any, step: int, phase: Any) -> None:
    moments = ("forward", "backward", "step")
    names = moments if step == 0 else ("second step",) * 3
    for _ in range(int(workload.ds_config.get("gradient_accumulation_steps", 1))):
        with phase(names[0], moments[0]):
            loss = engine(**make_batch()).loss
        with phase(names[1], moments[1]):
            engine.backward(loss)
            del loss
        with phase(names[2], moments[2]):
            engine.step()


def _join(workload: Workload) -> None:
    """Join a process group of the right size, in which nobody else is."""
    import deepspeed
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    os.environ.update(
        RANK=str(workload.rank),
        LOCAL_RANK=str(workload.rank % workload.ranks_per_host),
        WORLD_SIZE=str(workload.world_size),
        LOCAL_WORLD_SIZE=str(min(workload.ranks_per_host, workload.world_size)),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    distributed.init_process_group(
        "fake", rank=workload.rank, world_size=workload.world_size, store=FakeStore()
    )
    deepspeed.init_distributed(dist_backend="fake", verbose=False)  # else `zero.Init` sees one rank
