"""The resources that a job needs on each machine, as far as they are known before it starts.

Sizes are lower bounds, so a job that is refused for them could not have worked.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Final, NamedTuple

from zlaunch.checks.requirements import RUN_BYTES, Amount, DiskUse, Requirements, Tracker
from zlaunch.checks.tracking import reporters_of
from zlaunch.dsconfig.batch import rank_groups
from zlaunch.errors import Refused
from zlaunch.estimate.fit import Cluster, memory_need
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.memory import closed_form
from zlaunch.estimate.memory.host_memory import SHARED_BYTES
from zlaunch.estimate.memory.model_states import MASTER_BYTES, model_states
from zlaunch.estimate.memory.settings import Settings, read_settings
from zlaunch.estimate.splits import split_by_arguments, split_by_config, split_by_script
from zlaunch.estimate.uncounted import in_arguments, in_script, takes_less
from zlaunch.estimate.workload import Workload
from zlaunch.hosts.machine.gpu_catalog import overhead_bytes
from zlaunch.hosts.machine.network import SOCKET_VARIABLES
from zlaunch.job.args import NO_ARGS, ScriptArgs
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.launch.plan import LaunchPlan
from zlaunch.units import count, plural

LEAST_PROGRAM_BYTES: Final = 320 << 20
"""Host memory of a CPU rank without a tensor: torch, transformers and DeepSpeed, measured, rounded down."""


class _Job(NamedTuple):
    plan: LaunchPlan
    settings: Settings
    rehearsed: Forecast | None
    expected: Forecast | None
    """The rehearsed forecast, else the closed form; None where the model is unknown, or partly trained."""
    ranks: int

    @property
    def is_trainer(self) -> bool:
        return self.plan.script.interface is ConfigInterface.TRAINER

    def at_least(self, num_bytes: float) -> int:
        """Reduce an expected amount where the closed form may have miscounted the parameters."""
        if self.expected is None or self.expected.error <= closed_form.KNOWN_ERROR:
            return int(num_bytes)
        return self.expected.bounds(int(num_bytes))[0]


def requirements_of(plan: LaunchPlan, name: str) -> Requirements:
    """Work out what a job needs on one of its machines, by the name that its topology has for it."""
    spans_hosts = plan.topology.spans_hosts
    hosts = [host for host in plan.topology.hosts if not spans_hosts or host.name == name]
    job = _job_to_check(plan, sum(len(host.devices) for host in hosts))
    crosses_hosts = len(plan.topology.hosts) > 1 and bool(job.ranks)  # other hosts may have all ranks
    own = plan.environment
    monitors, args = list[Tracker](), NO_ARGS
    if plan.topology.hosts[0] in hosts:  # where rank 0 is, which alone reports
        monitors = [*reporters_of(plan.values.config(), plan.facts.trainer_flags, job.is_trainer)]
        if job.is_trainer:
            args = plan.facts.trainer_flags
    return Requirements(
        ranks=job.ranks,
        devices=tuple(sorted({*chain(*(host.devices for host in hosts))})),
        gpu_bytes=_on_each_gpu(job),
        memory=_host_memory(job) if job.ranks else None,
        shm_bytes=_shm_bytes(job),
        shm_users=tuple(_shm_users(job)) if job.ranks else (),
        locked_bytes=_locked(job) if job.ranks else 0,
        spans_hosts=spans_hosts,
        crosses_hosts=crosses_hosts,
        uses_infiniband=crosses_hosts and plan.accelerator == "cuda",
        socket_variables={name: own[name].value for name in SOCKET_VARIABLES if name in own},
        writes=tuple(_writes(job)),
        monitors=tuple(monitors),
        args=args,
    )


def _job_to_check(plan: LaunchPlan, ranks: int) -> _Job:
    args, _ = plan.facts.read_args()
    model, estimate = plan.facts.model, plan.facts.estimate
    forecast = None if estimate is None else estimate.forecast
    workload = Workload(
        model={} if model is None else model.value,
        ds_config=plan.values.config(),
        world_size=plan.topology.world_size,
        ranks_per_host=ranks,
        seq_len=1,
        optimizer=str(args["optim"].value),
    )
    expected = forecast
    if forecast is None and model is not None and _is_countable(plan):
        with suppress(Refused):
            expected = closed_form.forecast(workload)
    return _Job(plan, read_settings(workload), forecast, expected, ranks)


def _is_countable(plan: LaunchPlan) -> bool:
    """Whether each rank holds what ZeRO leaves to it of the whole model."""
    script, args = plan.script, plan.facts.trainer_flags
    if rank_groups(plan.values.config(), plan.topology.world_size).layers > 1:
        return False
    split = split_by_config(plan.values, script.interface) or split_by_arguments(args)
    return trains_all(script, args) and not (split or split_by_script(script))


def trains_all(script: Script, args: ScriptArgs) -> bool:
    """Whether the whole model seems to be trained, neither adapters alone nor quantized."""
    return not takes_less((*in_arguments(args), *in_script(script)))


def _on_each_gpu(job: _Job) -> int | None:
    if job.rehearsed is None:
        return None
    least, _ = overhead_bytes(job.plan.topology.world_size)
    return job.rehearsed.bounds(job.rehearsed.peak("gpu"))[0] + least


def _host_memory(job: _Job) -> Amount | None:
    """Work out the host memory of all ranks here; without a rehearsal, of CPU ranks alone."""
    if job.rehearsed is not None:
        need = memory_need(job.rehearsed, Cluster(len(job.plan.topology.hosts), job.ranks)).host
        return Amount(*job.rehearsed.bounds(need), f"{plural(job.ranks, 'rank')} ({job.rehearsed.method})")
    expected, settings = job.expected, job.settings
    if job.plan.accelerator != "cpu" or expected is None:
        return None
    states = model_states(
        expected.parameters, settings.stage, settings.groups.world_size, settings.per_parameter
    )
    held = states.parameters * (settings.parameters_on != "nvme")
    held += states.optimizer * (settings.optimizer_on != "nvme")
    least = job.ranks * (LEAST_PROGRAM_BYTES + job.at_least(held))
    why = f"{count(expected.parameters)} parameters and their optimizer in {plural(job.ranks, 'rank')}"
    return Amount(least, least, why)


def _shm_bytes(job: _Job) -> int:
    """Return what DeepSpeed's all-reduce on CPUs takes, which LOCAL_SIZE enables (`shm_interface.cpp`)."""
    world_size = job.plan.topology.world_size
    local_size = job.plan.facts.environ.get("LOCAL_SIZE")
    if job.plan.backend.is_of_deepspeed:
        local_size = str(job.ranks)
    if job.plan.accelerator != "cpu" or job.ranks < 2 or local_size != str(world_size):
        return 0
    return job.ranks * SHARED_BYTES


def _shm_users(job: _Job) -> Iterator[str]:
    if job.plan.accelerator == "cuda" and job.ranks > 1:
        yield "NCCL"
    workers = job.is_trainer and job.plan.facts.trainer_flags.value("dataloader_num_workers")
    if workers and workers.isdecimal() and int(workers) > 0:
        yield plural(job.ranks * int(workers), "dataloader worker")


def _locked(job: _Job) -> int:
    """Return the buffers for NVMe, which are locked with mlock; torch's pinned memory is not."""
    pinned = {} if job.expected is None else job.expected.parts.get("pinned", {})
    locked = job.at_least(pinned.get("swap buffers", 0))
    is_native = job.plan.facts.environ.get("DS_PIN_MEMORY_BACKEND", "").strip().lower() == "native"
    return max(locked, job.rehearsed.peak("pinned")) if is_native and job.rehearsed is not None else locked


def _writes(job: _Job) -> Iterator[DiskUse]:
    yield DiskUse(job.plan.layout.root, RUN_BYTES, "the run directory", "`--run-dir DIR`")
    resumption = job.plan.facts.resumption
    if resumption is not None and (conversion := resumption.conversion) is not None:
        where = "`zlaunch checkpoint reshard DIR OUT`"
        yield DiskUse(conversion.folder, conversion.disk.certain, "the converted checkpoint", where)
    if job.expected is None:
        return
    for directory in job.plan.swap_dirs[:1]:
        if num_bytes := job.ranks * job.at_least(job.expected.peak("nvme")):
            yield DiskUse(directory.parent, num_bytes, "offload to NVMe", "`--nvme DIR`")
    saves = job.plan.saves
    if saves is not None and job.ranks and job.is_trainer:
        trainable, per_element = job.expected.trainable, _bytes_per_element(job)
        each = job.at_least(per_element * trainable)
        yield DiskUse(
            saves.directory,
            each,
            f"a checkpoint of {count(trainable)} parameters, {per_element} bytes each",
            "`--save DIR`" if job.plan.facts.job.save else "`-- --output_dir DIR`",
            over_run=0 if saves.limit is None else each * (saves.most or 0),
        )


def _bytes_per_element(job: _Job) -> int:
    return checkpoint_bytes(job.settings, bool(job.plan.facts.trainer_flags.is_on("save_only_model")))


def likely_checkpoint_bytes(plan: LaunchPlan) -> int | None:
    """Estimate the size of a Trainer's checkpoint; None if the model is unknown, or partly trained."""
    job = _job_to_check(plan, plan.topology.world_size)
    return None if job.expected is None else _bytes_per_element(job) * job.expected.trainable


def checkpoint_bytes(settings: Settings, only_model: bool = False) -> int:
    """Return the bytes of a checkpoint for each trained parameter; measured with one rank.

    The Trainer writes the model; below stage 3 DeepSpeed writes it once more. Then come the optimizer's
    states and the fp32 copy, which stages 1 to 3 keep even of fp32 parameters.
    """
    if only_model:
        return settings.item
    copies = 1 if settings.stage == 3 else 2
    master = MASTER_BYTES if settings.stage or settings.is_half else 0
    return copies * settings.item + master + settings.state_bytes
