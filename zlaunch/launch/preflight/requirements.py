"""What a job asks of the machine it is started on, as far as it can be told before it runs.

Bytes here are the least that a job takes: what is refused for them could not have worked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zlaunch.errors import Refused
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.memory.model_states import MASTER_BYTES
from zlaunch.estimate.memory.settings import Settings, read_settings
from zlaunch.estimate.workload import Workload
from zlaunch.hosts.machine import Gpu, Machine
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.trainer_args import flags, is_switched_on, read_arguments
from zlaunch.launch.plan import LaunchPlan, PlanInputs
from zlaunch.launch.preflight.reporters import Reporter, reporters_of
from zlaunch.units import count, plural

LEAST_PROGRAM_BYTES: Final = 320 << 20
"""A rank on a CPU before it has a tensor: torch, transformers and DeepSpeed, measured, rounded down."""

SHM_COMM_BYTES: Final = 66 << 20
"""What each rank writes to /dev/shm (`deepspeed/ops/csrc/cpu/comm/shm.cpp`: 2 x 1 MiB and 2 x 32 MiB)."""

RUN_BYTES: Final = 4 << 20
"""What zlaunch itself writes about a run, and the beginning of its logs."""

PARTLY_TRAINED = (
    *("requires_grad", "requires_grad_", "get_peft_model", "peft_config", "LoraConfig"),
    *("BitsAndBytesConfig", "load_in_4bit", "load_in_8bit"),
)
"""Words of a script that trains or keeps less than all of a model."""

_SAVES_NOTHING = re.compile(r"""\bsave_strategy\b[^\n]{0,40}=\s*["']no["']""")
"""A script whose own default is to save nothing."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How many bytes: surely, and most likely; and why."""

    least: int
    likely: int
    why: str


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What a job puts into a directory."""

    path: Path
    num_bytes: int
    what: str
    elsewhere: str
    """What to type to have it somewhere else."""


@dataclass(frozen=True)
class ResourceRequirements:
    """What a job takes on one machine; None for what nobody can tell."""

    ranks: int
    """On this machine."""
    gpus: tuple[Gpu, ...] = ()
    """Those of it that the job will use."""
    idle: tuple[int, ...] = ()
    """Those that nobody uses, this job included, and that `--gpus` can name."""
    gpu_bytes: int | None = None
    """On each of its GPUs."""
    memory: Amount | None = None
    shm_bytes: int = 0
    shm_users: tuple[str, ...] = ()
    """What else passes data through /dev/shm, who knows how much."""
    locked_bytes: int = 0
    """What each rank locks with mlock, whatever `pin_memory` says."""
    over_ssh: bool = False
    crosses_hosts: bool = False
    writes: tuple[DiskUse, ...] = ()
    monitors: tuple[Reporter, ...] = ()
    script_args: tuple[str, ...] = ()
    """Those that the Trainer reads; none for other scripts."""

    @property
    def packages(self) -> frozenset[str]:
        """Name the packages that its monitors may need."""
        return frozenset(package for monitor in self.monitors for package in monitor.packages)


@dataclass(frozen=True)
class _Job:
    """What the parts of a demand are worked out from."""

    plan: LaunchPlan
    inputs: PlanInputs
    settings: Settings
    config: Mapping[str, Any]
    parameters: int | None
    trainable: int | None
    """Elements that are trained, with no doubt; None where the script may train less than all."""
    ranks: int

    @property
    def is_trainer(self) -> bool:
        return self.inputs.script.interface is ConfigInterface.TRAINER


def requirements_of(
    plan: LaunchPlan,
    inputs: PlanInputs,
    model: ModelConfig | None,
    forecast: Forecast | None,
    machine: Machine,
) -> ResourceRequirements:
    """Work out what a job takes on one of its machines, named as its topology names it."""
    over_ssh = plan.topology.over_ssh
    hosts = [host for host in plan.topology.hosts if not over_ssh or host.name == machine.hostname]
    used = {device for host in hosts for device in host.devices}
    job = _job(plan, inputs, model, forecast, sum(len(host.devices) for host in hosts))
    idle = () if over_ssh else tuple(gpu.index for gpu in machine.gpus if not gpu.is_busy)
    return ResourceRequirements(
        ranks=job.ranks,
        gpus=tuple(gpu for gpu in machine.gpus if gpu.index in used),
        idle=tuple(index for index in idle if index not in used),
        gpu_bytes=_on_each_gpu(forecast, plan),
        memory=_memory(job, forecast) if job.ranks else None,
        shm_bytes=_shm_bytes(job),
        shm_users=tuple(_shm_users(job)) if job.ranks else (),
        locked_bytes=_locked(job, forecast) if job.ranks else 0,
        over_ssh=over_ssh,
        crosses_hosts=len(plan.topology.hosts) > 1 and plan.accelerator == "cuda",
        writes=tuple(_writes(job, forecast)),
        monitors=tuple(reporters_of(job.config, inputs.job.script_args, job.is_trainer)),
        script_args=inputs.job.script_args if job.is_trainer else (),
    )


def _job(
    plan: LaunchPlan, inputs: PlanInputs, model: ModelConfig | None, forecast: Forecast | None, ranks: int
) -> _Job:
    config = plan.values.config()
    args, _ = read_arguments(inputs.job.script_args, inputs.script.defaults)
    workload = Workload(
        model={} if model is None else model.value,
        ds_config=config,
        world_size=plan.topology.world_size,
        ranks_per_host=ranks,
        seq_len=1,
        optimizer=str(args["optim"].value),
    )
    elements, whole = _elements(model), trains_all(inputs.script, inputs.job.script_args)
    trainable = forecast.trainable if forecast is not None else elements if whole else None
    return _Job(plan, inputs, read_settings(workload), config, elements, trainable, ranks)


def _elements(model: ModelConfig | None) -> int | None:
    """Count the parameters of a model; None for one whose sizes nobody knows."""
    if model is None:
        return None
    from zlaunch.job.transformer import read_transformer  # tables of all families

    try:
        return read_transformer(model.value).parameters
    except Refused:
        return None


def trains_all(script: Script, argv: Sequence[str]) -> bool:
    """Whether nothing suggests that only adapters are trained, or that parameters are quantized."""
    words = ("lora", "peft", "4bit", "8bit", "freeze")
    named = any(word in name for name, _ in flags(argv) for word in words)
    return not named and not any(script.mentions(word) for word in PARTLY_TRAINED)


def _on_each_gpu(forecast: Forecast | None, plan: LaunchPlan) -> int | None:
    if forecast is None:
        return None
    from zlaunch.hosts.gpu_catalog import overhead_bytes  # tables, for GPUs only

    least, _ = overhead_bytes(plan.topology.world_size)
    return forecast.bounds(forecast.peak("gpu"))[0] + least


def _memory(job: _Job, forecast: Forecast | None) -> Amount | None:
    """Say what the ranks here keep in their machine's memory."""
    if forecast is not None:
        from zlaunch.estimate.fit import Cluster, memory_need

        need = memory_need(forecast, Cluster(len(job.plan.topology.hosts), job.ranks)).host
        return Amount(*forecast.bounds(need), f"{plural(job.ranks, 'rank')}, by {forecast.method}")
    if job.plan.accelerator != "cpu" or job.parameters is None or job.trainable is None:
        return None
    least = job.ranks * (LEAST_PROGRAM_BYTES + _parameter_bytes(job) + _optimizer_bytes(job))
    why = f"{count(job.parameters)} parameters and their optimizer in {plural(job.ranks, 'rank')}"
    return Amount(least, least, why)


def _parameter_bytes(job: _Job) -> int:
    """Say what a rank holds of the parameters in its memory."""
    settings, held = job.settings, 0 if job.settings.parameters_on == "nvme" else job.parameters or 0
    return settings.item * (settings.share(held) if settings.stage == 3 else held)


def _optimizer_bytes(job: _Job) -> int:
    """Say what a rank holds for its optimizer in its memory."""
    settings, trainable = job.settings, job.trainable or 0
    if settings.optimizer_on == "nvme":
        return 0
    per_element = settings.state_bytes + (MASTER_BYTES if settings.is_half else 0)
    return per_element * (settings.share(trainable) if settings.stage else trainable)


def _shm_bytes(job: _Job) -> int:
    """Say what DeepSpeed's all-reduce on a CPU takes, which LOCAL_SIZE switches on (`shm_interface.cpp`)."""
    world_size = job.plan.topology.world_size
    local_size = str(job.ranks) if job.plan.launcher == "deepspeed" else job.inputs.environ.get("LOCAL_SIZE")
    if job.plan.accelerator != "cpu" or job.ranks < 2 or local_size != str(world_size):
        return 0
    return job.ranks * SHM_COMM_BYTES


def _shm_users(job: _Job) -> Iterator[str]:
    if job.plan.accelerator == "cuda" and job.ranks > 1:
        yield "NCCL"
    workers = job.is_trainer and dict(flags(job.inputs.job.script_args)).get("dataloader_num_workers")
    if workers and workers.isdecimal() and int(workers) > 0:
        yield plural(job.ranks * int(workers), "dataloader worker")


def _locked(job: _Job, forecast: Forecast | None) -> int:
    """Add up the buffers for NVMe, which are locked with mlock; torch's pinned memory is not."""
    settings, locked = job.settings, 0
    if settings.parameters_on == "nvme":
        locked += settings.item * settings.parameter_buffers
    if settings.optimizer_on == "nvme" and job.trainable is not None:
        locked += (
            settings.buffer_count * MASTER_BYTES * min(settings.sub_group, settings.share(job.trainable))
        )
    is_native = job.inputs.environ.get("DS_PIN_MEMORY_BACKEND", "").strip().lower() == "native"
    return max(locked, forecast.peak("pinned")) if is_native and forecast is not None else locked


def _writes(job: _Job, forecast: Forecast | None) -> Iterator[DiskUse]:
    yield DiskUse(job.plan.layout.root, RUN_BYTES, "the record of the run", "`--run-dir DIR`")
    for directory in job.plan.swap_dirs[:1]:
        if num_bytes := _nvme_bytes(job, forecast):
            yield DiskUse(directory.parent, num_bytes, "what is offloaded to NVMe", "`--nvme DIR`")
    if job.is_trainer and job.ranks and job.trainable is not None and _saves(job):
        said = dict(flags(job.inputs.job.script_args))
        only_model = "save_only_model" in said and is_switched_on(said["save_only_model"] or "true")
        per_element = checkpoint_bytes(job.settings, only_model)
        yield DiskUse(
            job.inputs.script.output_dir(job.inputs.job.script_args).absolute(),
            per_element * job.trainable,
            f"a checkpoint of {count(job.trainable)} parameters with {per_element} bytes each",
            "`-- --output_dir DIR`",
        )


def _nvme_bytes(job: _Job, forecast: Forecast | None) -> int:
    """Say what the ranks here put into files: fp32 copies, gradients and states, and parameters."""
    if forecast is not None:
        return job.ranks * forecast.peak("nvme")
    settings, num_bytes = job.settings, 0
    if settings.optimizer_on == "nvme":
        num_bytes += (2 * MASTER_BYTES + settings.state_bytes) * settings.share(job.trainable or 0)
    if settings.parameters_on == "nvme" and job.trainable is not None:
        num_bytes += settings.item * settings.share(job.parameters or 0)
    return job.ranks * num_bytes


def _saves(job: _Job) -> bool:
    """Whether the Trainer writes checkpoints: by default it does, at the last step too."""
    said = dict(flags(job.inputs.job.script_args)).get("save_strategy")
    if said is None:
        return not _SAVES_NOTHING.search(job.inputs.script.source)
    return said != "no"


def checkpoint_bytes(settings: Settings, only_model: bool = False) -> int:
    """Say what a checkpoint takes for each parameter that is trained; measured with one rank.

    The Trainer writes the model, DeepSpeed once more with its states below stage 3; and the fp32 copy,
    which stages 1 to 3 keep in fp32 too, with the optimizer's states.
    """
    if only_model:
        return settings.item
    copies = 1 if settings.stage == 3 else 2
    master = MASTER_BYTES if settings.stage or settings.is_half else 0
    return copies * settings.item + master + settings.state_bytes
