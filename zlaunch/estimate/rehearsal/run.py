"""One rehearsal: the installed engine takes two steps, or resumes, and the ledger sees everything."""

import contextlib
import gc
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import real_accelerator

from zlaunch.estimate.rehearsal import (
    checkpoints,
    cuda_semantics,
    device,
    fake_tensors,
    model,
    ops,
    optimizer,
    patches,
)
from zlaunch.estimate.rehearsal.accelerator import FakeGPU
from zlaunch.estimate.rehearsal.allocation_log import AllocationLog
from zlaunch.estimate.rehearsal.attribution import Attribution
from zlaunch.estimate.rehearsal.inputs import inputs_of, is_text
from zlaunch.estimate.workload import Workload

_ENOUGH = 1 << 50
"""Bytes of a GPU on which nothing has to be given back."""


def describe_error(error: BaseException, phase: str) -> str:
    """Say what was raised, where, and during which phase; an assertion without words is its own words."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    words = str(error).strip() or frame.line
    place = frame.filename.rsplit("/site-packages/", 1)[-1]
    return f"{type(error).__name__}: {words} ({place}:{frame.lineno}, during {phase})"


_THEIRS = ("deepspeed", "transformers", "peft")


@dataclass
class RehearsedRun:
    """What a rehearsal leaves."""

    ledger: AllocationLog = field(default_factory=AllocationLog)
    parameters: int = 0
    trainable: int = 0
    optimizer: str = ""
    flops: float = 0.0
    late_error: str | None = None
    notes: tuple[str, ...] = ()
    is_text: bool = True
    tell: Callable[[dict[str, bool]], None] = lambda _: None
    """Is told what the model is trained on, as soon as that is known."""

    @property
    def is_made_up(self) -> bool:
        """Whether a model is trained on what is no text, and may not be meant for it."""
        return not self.is_text and self.ledger.phase not in ("load", "initialize")


def is_theirs(error: BaseException, whose: Sequence[str] = _THEIRS) -> bool:
    """Say whether an exception is DeepSpeed's or the model's own, not one of tracing."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and any(f"/site-packages/{name}/" in frames[-1].filename for name in whose)


def prepare(workload: Workload, *, fast: bool = True) -> None:
    """Do once in a process what every rehearsal needs; without `fast`, nothing is there to save time."""
    device.register()
    fake_tensors.spread_attributes()
    fake_tensors.share_keys(_place(workload))
    fake_tensors.FakeGpuMode.fast = fast
    patches.apply(fast)
    if workload.accelerator == "cuda":
        cuda_semantics.apply()


def train(workload: Workload, run: RehearsedRun, checkpoint: Path) -> None:
    """Take two steps, and save a checkpoint if the workload asks for that.

    Fills `run`; whatever DeepSpeed raises goes through, with what was seen until then in `run`.
    """
    with _initialized(workload, run) as rank:
        for step in range(workload.steps):
            rank.mode.flops = 0.0
            rank.step(step)
        run.flops = rank.mode.flops
        if workload.save:
            with rank.phase("save"):
                checkpoints.save(rank.engine, rank.net, checkpoint)


def resume(workload: Workload, run: RehearsedRun, checkpoint: Path) -> None:
    """Load what `train` saved in a process that ended, into an engine that has not trained yet."""
    with _initialized(workload, run) as rank, rank.phase("resume"):
        checkpoints.resume(rank.engine, rank.net, checkpoint)
        ops.count_files(run.ledger, rank.drive)


def _swapping_to(drive: str, ds_config: Mapping[str, Any]) -> Mapping[str, Any]:
    zero = ds_config.get("zero_optimization", {})
    moved = {
        name: {**section, "nvme_path": drive}
        for name in ("offload_optimizer", "offload_param")
        if (section := zero.get(name) or {}).get("nvme_path") is not None
    }
    return {**ds_config, "zero_optimization": {**zero, **moved}} if moved else ds_config


@dataclass
class _Rank:
    """What the script of a rank has at hand."""

    workload: Workload
    config: Any
    chosen: model.ChosenModel
    mode: fake_tensors.FakeGpuMode
    parts: Attribution
    run: RehearsedRun
    drive: Path
    net: Any = None
    inputs: Any = None
    engine: Any = None

    @contextlib.contextmanager
    def phase(self, name: str, moment: str | None = None) -> Iterator[None]:
        """Name what happens meanwhile."""
        self.parts.moment = moment or name
        with self.run.ledger.in_phase(name):
            yield
            gc.collect()
            gc.freeze()  # what is alive now is not looked at again

    def load(self) -> None:
        """Make the model."""
        from transformers.integrations import HfDeepSpeedConfig

        with self.phase("load"):
            # While this object lives, transformers makes models in `zero.Init`, as under the Trainer.
            stage3 = HfDeepSpeedConfig(dict(self.workload.ds_config)) if self.workload.zero_init else None
            self.net = model.build(self.workload, self.config, self.chosen)
            del stage3
            self.inputs = inputs_of(self.workload, self.net, self.config)
            self.run.tell({"has_images": self.inputs.has_images})
            self.run.notes = (*filter(None, [self.chosen.note]), *self.inputs.notes)
            self.parts.know(self.net)
            numels = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in self.net.parameters()]
            self.run.parameters = sum(numel for numel, _ in numels)
            self.run.trainable = sum(numel for numel, trained in numels if trained)

    def initialize(self) -> None:
        """Give the model to DeepSpeed."""
        with self.phase("initialize"):
            self.engine = optimizer.initialize(self.workload, self.net)
            self.run.optimizer = type(self.engine.optimizer).__name__

    def step(self, number: int) -> None:
        """Train on the micro-batches of a step."""
        moments = ("forward", "backward", "step")
        names = moments if number == 0 else ("second step",) * 3
        place, dtype = _place(self.workload), model.trained_dtype(self.workload.ds_config)
        for _ in range(int(self.workload.ds_config.get("gradient_accumulation_steps", 1))):
            with self.phase(names[0], moments[0]):
                loss = _loss(self.engine(**self.inputs.make(place, dtype)))
            with self.phase(names[1], moments[1]):
                self.engine.backward(loss)
                del loss
            with self.phase(names[2], moments[2]):
                self.engine.step()


def _loss(output: Any) -> Any:
    """Take the loss out of what a model returned."""
    loss = output[0] if isinstance(output, tuple) else getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise model.CannotTell("the model computes no loss from what it is thought to be trained on")
    return loss


@contextlib.contextmanager
def _initialized(workload: Workload, run: RehearsedRun) -> Iterator[_Rank]:
    """Bring a rank to where its engine is initialized; everything within runs without memory.

    DeepSpeed deletes what is in the directory that it is to swap to, where a job may have its parameters:
    here it gets one of its own.
    """
    with tempfile.TemporaryDirectory() as drive:
        workload = replace(workload, ds_config=_swapping_to(drive, workload.ds_config))
        config = model.read_config(workload)
        chosen = model.choose_class(config, workload.remote_code)
        run.is_text = is_text(chosen.type, config)
        run.tell({"is_text": run.is_text})
        is_half = model.trained_dtype(workload.ds_config) is not torch.float32
        parts = Attribution(model.vocabulary(config), half=is_half)
        mode = fake_tensors.FakeGpuMode(run.ledger, parts.of, cuda_semantics.WORKSPACES, _place(workload))
        ops.replace_builders(mode)
        if workload.accelerator == "cuda":
            real_accelerator.set_accelerator(FakeGPU(mode, _ENOUGH, workload.ranks_per_host))
        optimizer.join(workload)
        rank = _Rank(workload, config, chosen, mode, parts, run, Path(drive))
        gc.disable()
        gc.freeze()
        with torch.autograd.set_multithreading_enabled(False), mode:
            rank.load()
            rank.initialize()
            yield rank


def _place(workload: Workload) -> torch.device:
    return torch.device(device.NAME, 0) if workload.accelerator == "cuda" else torch.device("cpu")
