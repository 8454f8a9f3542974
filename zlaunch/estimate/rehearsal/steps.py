"""The steps of one rehearsal: load, initialize, train, save, or resume, with all allocations logged."""

import contextlib
import gc
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import torch
import transformers
from deepspeed.accelerator import real_accelerator

from zlaunch.estimate.forecast import Forecast, parts_at_peak
from zlaunch.estimate.rehearsal import (
    accelerator,
    checkpoints,
    cuda_semantics,
    device,
    fake_tensors,
    known_data,
    liger,
    model,
    patches,
    training,
)
from zlaunch.estimate.rehearsal.allocation_log import AllocationLog
from zlaunch.estimate.rehearsal.attribution import Attribution
from zlaunch.estimate.rehearsal.inputs import ModelInputs, inputs_of, is_text
from zlaunch.estimate.rehearsal.model import ChosenModel
from zlaunch.estimate.rehearsal.quantized import num_parameters
from zlaunch.estimate.workload import Accelerator, Workload

_JOB_PACKAGES = ("deepspeed", "transformers", "peft")
"""Packages whose exceptions a real run would raise too."""
_TORCH_PYTHON = ("torch/nn", "torch/optim")
"""Parts of torch that raise the same for fake tensors as for real ones."""
_HERE = str(Path(__file__).parent)
_ZERO_INIT = "/deepspeed/runtime/zero/partition_parameters.py"


@dataclass
class Rehearsal:
    """The results of one rehearsal, incomplete if it failed."""

    log: AllocationLog = field(default_factory=AllocationLog)
    facts: Forecast = field(default_factory=lambda: Forecast("rehearsal", (), {}, 0, 0, ""))
    """What is known besides the log."""
    is_text: bool = True
    mode: fake_tensors.FakeGpuMode | None = None
    report: Callable[[dict[str, bool]], None] = lambda _: None
    """Called with `is_text` and `has_images` as soon as they are known: the process may crash later."""

    def add(self, **facts: Any) -> None:
        """Add fields of the forecast."""
        self.facts = replace(self.facts, **facts)

    @property
    def genuine_error(self) -> BaseException | None:
        """The last error of an operator that real tensors raise, too."""
        if self.mode is None:
            return None
        return self.mode.genuine_error

    def forecast(self, seconds: float) -> Forecast:
        """Summarize the rehearsal, which took so many seconds."""
        phases, curve = self.log.phases(), self.log.curve()
        parts = parts_at_peak(phases)
        return replace(self.facts, phases=phases, parts=parts, curve=curve, seconds=seconds)


def describe_error(error: BaseException, phase: str) -> str:
    """Describe an exception, its place and phase; an assertion without a message by its source line."""
    frame = _job_frames(error)[-1]
    message = str(error).strip() or frame.line
    place = frame.filename.rsplit("/site-packages/", 1)[-1]
    return f"{type(error).__name__}: {message} ({place}:{frame.lineno}, during {phase})"


def is_raised_by(
    error: BaseException, packages: Sequence[str] = _JOB_PACKAGES, genuine: BaseException | None = None
) -> bool:
    """Whether an exception was raised in one of these packages, not by tracing.

    `genuine` is an exception that an operator raises for real tensors, too, so that its caller counts; so it
    does for Python code of torch that knows nothing of fake tensors.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if error is genuine or (frames and _is_in(frames[-1], _TORCH_PYTHON)):
        frames = _job_frames(error)
    return bool(frames) and _is_in(frames[-1], packages)


def _job_frames(error: BaseException) -> traceback.StackSummary:
    """Return the frames up to the last that called torch, unless there are no others."""
    frames = traceback.extract_tb(error.__traceback__)
    last = len(frames)
    while last and _passes_on(frames[last - 1]):
        last -= 1
    return traceback.StackSummary.from_list(frames[: last or len(frames)])


def _passes_on(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is of torch, of a rehearsal, or of `zero.Init` around the `__init__` of a module."""
    is_wrapper = frame.name == "wrapper" and frame.filename.endswith(_ZERO_INIT)
    return is_wrapper or frame.filename.startswith(_HERE) or _is_in(frame, ("torch",))


def _is_in(frame: traceback.FrameSummary, packages: Sequence[str]) -> bool:
    return any(f"/site-packages/{name}/" in frame.filename for name in packages)


def is_of_zero_init(workload: Workload, rehearsal: Rehearsal) -> bool:
    """Whether a model that failed to load inside `zero.Init` can be built without it."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    if rehearsal.mode is None:
        return False
    unset_hf_deepspeed_config()  # the exception keeps it alive
    config = model.read_config(workload)
    chosen = model.choose_class(config, workload.remote_code)
    try:
        with rehearsal.mode:
            model.build(replace(workload, zero_init=False), config, chosen)
    except Exception:  # noqa: BLE001 - whatever it is, `zero.Init` did not cause it
        return False
    return True


def prepare(workload: Workload, *, fast: bool = True) -> None:
    """Patch the process for rehearsals; `fast` includes what only saves time."""
    if workload.images.width is None:
        prepare_for(workload.accelerator, fast=fast)
        return
    with known_data.masks_of_data():
        prepare_for(workload.accelerator, fast=fast)


def prepare_for(accelerator: Accelerator, *, fast: bool = True) -> None:
    """Patch the process for rehearsals on a GPU, or on a CPU."""
    device.register()
    fake_tensors.patch_fake_tensor()
    fake_tensors.share_dispatch_keys(device_of(accelerator))
    fake_tensors.FakeGpuMode.fast = fast
    patches.apply(fast)
    if accelerator == "cuda":
        cuda_semantics.apply()


def train(workload: Workload, rehearsal: Rehearsal, checkpoint: Path) -> None:
    """Take two steps, and save a checkpoint if the workload asks for it.

    Exceptions of DeepSpeed pass through; `rehearsal` then holds the results so far.
    """
    with _initialized(workload, rehearsal) as rank:
        for number in range(workload.steps):
            rank.mode.flops = 0.0
            rank.take_step(number)
        rehearsal.add(flops=rank.mode.flops)
        if workload.has_other_traffic:
            rehearsal.add(collectives=tuple(rank.mode.traffic.counted()))
        if workload.save:
            with rank.phase("save"):
                checkpoints.save(rank.engine, rank.model, checkpoint)


def resume(workload: Workload, rehearsal: Rehearsal, checkpoint: Path) -> None:
    """Load a checkpoint that `train` saved in another process, into an engine that has not trained."""
    with _initialized(workload, rehearsal) as rank, rank.phase("resume"):
        checkpoints.resume(rank.engine, rank.model, checkpoint)
        for file in rank.nvme.rglob("*.swp"):  # which DeepSpeed copied from the checkpoint
            rehearsal.log.extend_file(str(file), int(file.read_text()))


@dataclass
class _Rank:
    workload: Workload
    mode: fake_tensors.FakeGpuMode
    attribution: Attribution
    rehearsal: Rehearsal
    nvme: Path
    model: torch.nn.Module = field(init=False)
    inputs: ModelInputs = field(init=False)
    engine: deepspeed.DeepSpeedEngine = field(init=False)

    @contextlib.contextmanager
    def phase(self, name: str, part: str | None = None) -> Iterator[None]:
        """Attribute all allocations inside to a phase, or to a part of it."""
        self.attribution.phase = part or name
        if part == "forward":
            self.mode.traffic.begin()
        with self.rehearsal.log.in_phase(name):
            yield
            gc.collect()
            gc.freeze()  # skip the survivors in later collections

    def load(self, config: transformers.PretrainedConfig, chosen: ChosenModel) -> None:
        from transformers.integrations import HfDeepSpeedConfig

        with self.phase("load"):
            stage3 = None
            if self.workload.zero_init:
                # While this object exists, transformers builds models inside `zero.Init`, as for the Trainer.
                stage3 = HfDeepSpeedConfig(dict(self.workload.ds_config))
            self.model = model.build(self.workload, config, chosen)
            del stage3
            self.inputs = inputs_of(self.workload, self.model, config)
            self.rehearsal.report({"has_images": self.inputs.has_images})
            self.attribution.set_model(self.model)
            parameters, trainable = num_parameters(self.model)
            kind = config.model_type
            has_all_kernels = not self.workload.liger or liger.apply(model.base_of(self.model), kind)
            self.rehearsal.add(
                parameters=parameters,
                trainable=trainable,
                notes=tuple(note for note in (chosen.note, *self.inputs.notes) if note),
                missing=self.inputs.missing,
                unsaved=tuple(self._unsaved(kind, has_all_kernels)),
            )

    def _unsaved(self, kind: str, has_all_kernels: bool) -> Iterator[str]:
        """Name what would save memory, and is not rehearsed."""
        if not has_all_kernels:
            yield f"kernels of Liger for `{kind}`"
        if self.workload.four_bits is not None and self.workload.zero_init:
            yield "weights of four bits at stage 3"

    def initialize(self) -> None:
        if self.workload.groups.layers > 1:
            gc.unfreeze()  # AutoTP collects the whole weights that it has replaced
        with self.phase("initialize"):
            self.engine = training.initialize(self.workload, self.model)
            self.rehearsal.add(optimizer=type(training.base_optimizer(self.engine)).__name__)

    def take_step(self, number: int) -> None:
        dtype = model.trained_dtype(self.workload.ds_config)
        phase: Callable[[str], contextlib.AbstractContextManager[None]] = self.phase
        if number > 0:
            phase = partial(self.phase, "second step")
        training.take_step(
            self.engine,
            partial(self.inputs.make, device_of(self.workload.accelerator), dtype),
            phase,
            int(self.workload.ds_config.get("gradient_accumulation_steps", 1)),
        )


@contextlib.contextmanager
def _initialized(workload: Workload, rehearsal: Rehearsal) -> Iterator[_Rank]:
    """Build a rank with an initialized engine; everything inside runs on fake tensors.

    DeepSpeed deletes the contents of its NVMe directory, where a running job may have its parameters.
    The rehearsal therefore uses a temporary directory.
    """
    with tempfile.TemporaryDirectory() as nvme:
        workload = replace(workload, ds_config=with_nvme_path(nvme, workload.ds_config))
        config = model.read_config(workload)
        chosen = model.choose_class(config, workload.remote_code)
        rehearsal.is_text = is_text(chosen.type, config)
        rehearsal.report({"is_text": rehearsal.is_text})
        is_half = model.trained_dtype(workload.ds_config) is not torch.float32
        vocab_size = getattr(config.get_text_config(), "vocab_size", None)
        attribution = Attribution(vocab_size, is_half=is_half)
        kernels = cuda_semantics.kernel_memory(workload.cublas_bytes)
        kind: type[fake_tensors.FakeGpuMode] = fake_tensors.FakeGpuMode
        if workload.images.width is not None or chosen.type.main_input_name == "input_values":
            known_data.let_data_be_read()
            kind = known_data.DataMode
        mode = kind(rehearsal.log, attribution.category_of, kernels, device_of(workload.accelerator))
        rehearsal.mode = mode
        accelerator.replace_builders(mode)
        if workload.accelerator == "cuda":
            real_accelerator.set_accelerator(accelerator.FakeGPU(mode, workload.ranks_per_host))
        training.join_process_group(workload)
        rank = _Rank(workload, mode, attribution, rehearsal, Path(nvme))
        gc.disable()
        gc.freeze()
        with torch.autograd.set_multithreading_enabled(False), mode:
            rank.load(config, chosen)
            rank.initialize()
            yield rank


def with_nvme_path(path: str, ds_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Let DeepSpeed swap to another directory, whose contents it deletes."""
    zero = dict(ds_config.get("zero_optimization", {}))
    for name in ("offload_optimizer", "offload_param"):
        section = zero.get(name) or {}
        if section.get("nvme_path") is not None:
            zero[name] = {**section, "nvme_path": path}
    if not zero:
        return ds_config
    return {**ds_config, "zero_optimization": zero}


def device_of(accelerator: Accelerator) -> torch.device:
    """Return the device of a rank's tensors."""
    if accelerator == "cuda":
        return torch.device(device.NAME, 0)
    return torch.device("cpu")
