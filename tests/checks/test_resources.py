"""What a machine lacks for a job: one ailment, one finding."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.asking import forecast, model
from tests.checks.recorded import changed, machine_facts
from tests.each import each
from tests.facts import facts_of
from tests.making import CPU_MACHINE, PYTHON, gpu, local, machine, over_ssh, script
from zlaunch.checks.host import check_host
from zlaunch.checks.requirements import Amount, DiskUse, Requirements, Tracker
from zlaunch.checks.tracking import REPORTERS
from zlaunch.errors import Finding, Severity
from zlaunch.estimate.forecast import PROGRAM_BYTES, Forecast
from zlaunch.estimate.memory.host_memory import SHARED_BYTES
from zlaunch.hosts.cluster.topology import Host, Topology
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.resources import Cgroup, Disk, FreeResources, Gpu, GpuProcess, Machine
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec, Offload
from zlaunch.launch.all_hosts import findings_of
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.requirements import requirements_of, trains_all

MIB, GIB = 1 << 20, 1 << 30
RUN = DiskUse(Path("/runs/one"), 4 * MIB, "the run directory", "`--run-dir DIR`")
CHECKPOINT = DiskUse(Path("/data/out"), 16 * GIB, "a checkpoint", "`-- --output_dir DIR`")
GPUS = tuple(replace(gpu(index), free_bytes=139 * GIB) for index in range(4))
DEMAND = Requirements(
    ranks=2,
    devices=(0, 1),
    gpu_bytes=40 * GIB,
    memory=Amount(30 * GIB, 40 * GIB, "2 ranks (rehearsal)"),
    shm_users=("NCCL",),
    locked_bytes=GIB,
    crosses_hosts=True,
    uses_infiniband=True,
    writes=(RUN, CHECKPOINT),
    monitors=(
        Tracker("wandb.enabled", "`wandb.enabled` is true", ("wandb",), "`--set wandb.enabled=false`"),
    ),
    args=ScriptArgs.of(("--report_to", "tensorboard")),
)
CPU_DEMAND = replace(DEMAND, devices=(), gpu_bytes=None, shm_users=(), shm_bytes=2 * SHARED_BYTES)
HEALTHY = MachineFacts(
    python=PYTHON,
    hardware=machine(*GPUS),
    free=FreeResources(
        memory_bytes=64 * GIB,
        shm=Disk(9, 32 * GIB, 32 * GIB),
        has_infiniband=True,
        disks={RUN.path: Disk(1, 99 * GIB, 50 * GIB), CHECKPOINT.path: Disk(2, 99 * GIB, 50 * GIB)},
        user="ann",
    ),
)
WITHOUT_WANDB = replace(PYTHON, packages={**PYTHON.packages, "wandb": None})
SLICE = Cgroup("/sys/fs/cgroup/job", 32 * GIB, 20 * GIB)
OTHERS = GpuProcess(4711, "python train.py", "bob", 100 * GIB)


def with_free(**values: Any) -> MachineFacts:
    assert HEALTHY.free is not None
    return replace(HEALTHY, free=replace(HEALTHY.free, **values))


def with_disk(use: DiskUse, disk: Disk) -> MachineFacts:
    assert HEALTHY.free is not None
    return with_free(disks={**HEALTHY.free.disks, use.path: disk})


def on_gpu_0(free: int, *processes: GpuProcess, num_gpus: int = 4) -> tuple[Requirements, MachineFacts]:
    """Two of the GPUs are for the job, the first is busy, and the others are idle."""
    busy = replace(GPUS[0], free_bytes=free, processes=processes)
    return DEMAND, replace(HEALTHY, hardware=machine(busy, *GPUS[1:num_gpus]))


def findings(needs: Requirements, facts: MachineFacts) -> list[Finding]:
    return findings_of(check_host(facts, needs))


AILMENTS: dict[str, tuple[Requirements, MachineFacts, str, Severity, str, str]] = {
    "a GPU on which the job does not fit": (
        *(*on_gpu_0(39 * GIB, OTHERS), "gpu-busy", Severity.FAILS_LATER),
        *("`python train.py` of bob (pid 4711) uses 100.0 GiB", "`--gpus 2,3` uses idle GPUs"),
    ),
    "a GPU that somebody is on, where the job fits": (
        *(*on_gpu_0(60 * GIB, OTHERS, num_gpus=2), "gpu-busy", Severity.ADVICE),
        *("60.0 of 139.0 GiB are free", "wait until `nvidia-smi` shows that it is free"),
    ),
    "a GPU that the user himself is on": (
        *(
            *on_gpu_0(39 * GIB, replace(OTHERS, user="ann"), num_gpus=2),
            "gpu-busy",
            Severity.FAILS_LATER,
        ),
        *("GPU 0", "`kill 4711` ends your processes"),
    ),
    "a GPU that a container cannot look into": (
        *(*on_gpu_0(39 * GIB), "gpu-busy", Severity.FAILS_LATER),
        *("a process that is not visible from here", "`--gpus 2,3`"),
    ),
    "too little memory": (
        *(DEMAND, with_free(memory_bytes=29 * GIB), "host-memory-short", Severity.FAILS_LATER),
        *("take at least 30.0 GiB of memory; 29.0 GiB are available", "free 1.0 GiB"),
    ),
    "memory that may not suffice": (
        *(DEMAND, with_free(memory_bytes=39 * GIB), "host-memory-short", Severity.ADVICE),
        *("may take 40.0 GiB", "free 1.0 GiB"),
    ),
    "memory that only swap makes suffice": (
        *(DEMAND, with_free(memory_bytes=29 * GIB, swap_bytes=2 * GIB), "host-memory-short"),
        *(Severity.ADVICE, "take at least 30.0 GiB", "free 1.0 GiB"),
    ),
    "a control group that leaves too little": (
        *(DEMAND, with_free(cgroup=SLICE), "host-memory-short", Severity.FAILS_LATER),
        *("12.0 GiB are left of the limit of 32.0 GiB of /sys/fs/cgroup/job", "`docker run --memory 50g`"),
    ),
    "no /dev/shm left for CPU ranks": (
        *(CPU_DEMAND, with_free(shm=Disk(9, 64 * MIB, MIB)), "shm-too-small", Severity.FAILS_LATER),
        *("132 MiB; 1 of 64 are free", "size=196m /dev/shm`"),
    ),
    "buffers of ended jobs in /dev/shm": (
        *(CPU_DEMAND, with_free(shm=Disk(9, 200 * MIB, 68 * MIB), shm_left_bytes=132 * MIB)),
        *("shm-too-small", Severity.ADVICE, "68 of 200 are free"),
        "`rm /dev/shm/deepspeed_allreduce_buffer_*` frees 132.0 MiB if no DeepSpeed job",
    ),
    "a /dev/shm that not all CPU ranks fit into": (
        *(CPU_DEMAND, with_free(shm=Disk(9, 64 * MIB, 64 * MIB)), "shm-too-small"),
        *(Severity.ADVICE, "132 MiB; 64 of 64 are free", "`--launcher torchrun`"),
    ),
    "a container's /dev/shm for NCCL": (
        *(DEMAND, with_free(shm=Disk(9, 64 * MIB, 64 * MIB)), "shm-too-small", Severity.ADVICE),
        *("NCCL passes data through it", "`docker run --shm-size 1g`"),
    ),
    "a limit of locked memory below the buffers for NVMe": (
        *(DEMAND, with_free(memlock_bytes=8 * MIB), "memlock-too-small", Severity.FAILS_LATER),
        *(
            "locks 1.0 GiB of buffers for NVMe, but the limit of a process is 8.0 MiB",
            "`ulimit -l unlimited`",
        ),
    ),
    "a limit of locked memory with InfiniBand": (
        *(replace(DEMAND, locked_bytes=0), with_free(memlock_bytes=8 * MIB), "memlock-too-small"),
        *(Severity.ADVICE, "InfiniBand", "on every host"),
    ),
    "no room for a checkpoint": (
        *(DEMAND, with_disk(CHECKPOINT, Disk(2, 99 * GIB, 15 * GIB))),
        *(
            "disk-too-small",
            Severity.FAILS_LATER,
            "16.0 GiB for a checkpoint",
            "`-- --output_dir DIR` on a larger",
        ),
    ),
    "no room for the record of the run": (
        *(DEMAND, with_disk(RUN, Disk(1, 99 * GIB, MIB))),
        *(
            "disk-too-small",
            Severity.FAILS_LATER,
            "1.0 MiB are free on the file system of `/runs/one`",
            "`--run-dir DIR`",
        ),
    ),
    "a place like /proc, where nothing can be kept": (
        *(DEMAND, with_disk(RUN, Disk(1, 0, 0))),
        *(
            "disk-too-small",
            Severity.FAILS_LATER,
            "nothing can be stored on the file system of `/runs/one`",
            "`--run-dir DIR`",
        ),
    ),
    "a monitor whose package is missing": (
        *(DEMAND, replace(HEALTHY, python=WITHOUT_WANDB), "monitor-missing", Severity.ERROR),
        *("`wandb` is not installed", "`pip install wandb`, or `--set wandb.enabled=false`"),
    ),
    "a monitor that transformers does not know": (
        *(replace(DEMAND, args=ScriptArgs.of(("--report_to", "tensorbord"))), HEALTHY, "unknown-monitor"),
        *(Severity.ERROR, "`tensorbord`", "did you mean `tensorboard`?"),
    ),
}


@pytest.mark.parametrize("demand", [DEMAND, CPU_DEMAND])
def test_a_healthy_machine_gives_no_cause_for_words(demand: Requirements) -> None:
    assert findings(demand, HEALTHY) == []


def test_what_cannot_be_found_out_gives_no_cause_for_words() -> None:
    assert findings(DEMAND, MachineFacts(PYTHON)) == []
    assert findings(replace(DEMAND, memory=None), MachineFacts(PYTHON, free=FreeResources())) == []


@each("ailment", AILMENTS)
def test_each_ailment_is_the_one_thing_that_is_found(ailment: str) -> None:
    demand, room, code, severity, said, hinted = AILMENTS[ailment]
    (finding,) = findings(demand, room)
    assert (finding.code, finding.severity) == (code, severity)
    assert said in finding.message
    assert hinted in (finding.hint or "")


def test_what_goes_to_one_disk_is_added_up() -> None:
    shared = Disk(1, 99 * GIB, 16 * GIB + 2 * MIB)
    (finding,) = findings(DEMAND, with_free(disks={RUN.path: shared, CHECKPOINT.path: shared}))
    assert finding.code == "disk-too-small"


def test_the_worst_comes_first() -> None:
    demand, busy = on_gpu_0(60 * GIB, OTHERS)
    room = replace(busy, free=with_free(memory_bytes=GIB).free)
    assert [one.severity for one in findings(demand, room)] == [Severity.FAILS_LATER, Severity.ADVICE]


def demand(
    *argv: str,
    on: Machine = CPU_MACHINE,
    at: Topology | None = None,
    source: str = "",
    interface: ConfigInterface = ConfigInterface.TRAINER,
    told: Forecast | None = None,
    environ: dict[str, str] | None = None,
    **job: Any,
) -> Requirements:
    facts = facts_of(
        JobSpec(Path("train.py"), ScriptArgs.of(argv), **job),
        script(source, interface),
        machine=on,
        model=model(),
        topology=at or local(0, 1),
        environ=environ or {},
        estimate=None if told is None else SimpleNamespace(forecast=told),
    )
    return requirements_of(make_plan(facts), on.hostname)


def checkpoint_of(one: Requirements) -> int:
    return sum(writing.num_bytes for writing in one.writes if "checkpoint" in writing.what)


NUM_PARAMETERS = 1_824_000
"""Of the model that questions are asked about."""


@pytest.mark.parametrize(
    ("stage", "argv", "per_parameter"),
    [
        *((0, (), 16), (1, (), 16), (2, (), 16), (3, (), 14)),
        *((2, ("--save_only_model",), 2), (2, ("--save_strategy", "no"), 0)),
    ],
)
def test_a_checkpoint_has_so_many_bytes_for_each_parameter(
    stage: int, argv: tuple[str, ...], per_parameter: int
) -> None:
    assert checkpoint_of(demand(*argv, stage=stage)) == per_parameter * NUM_PARAMETERS


def test_a_checkpoint_in_fp32_keeps_the_copy_of_the_optimizer_too() -> None:
    assert checkpoint_of(demand(stage=2, precision="fp32")) == 20 * NUM_PARAMETERS


@pytest.mark.parametrize(
    "one",
    [
        lambda: demand(source='save_strategy: str = "no"'),
        lambda: demand(source="model = get_peft_model(model, LoraConfig())"),
        lambda: demand("--use_lora", "true"),
        lambda: demand(interface=ConfigInterface.DEEPSPEED),
    ],
)
def test_what_nobody_can_tell_of_a_checkpoint_is_not_asked_for(
    one: Callable[[], Requirements],
) -> None:
    assert checkpoint_of(one()) == 0


def test_cpu_ranks_keep_their_states_in_memory() -> None:
    two, one = (demand(stage=2, at=local(*devices)).memory for devices in ((0, 1), (0,)))
    assert two is not None
    assert one is not None
    # each rank has all parameters, in two bytes; the optimizer's twelve are shared out
    assert two.least - one.least == (320 << 20) + 2 * NUM_PARAMETERS


@pytest.mark.parametrize(
    ("option", "argv", "is_whole"),
    [
        ("lora_rank: int = field(default=0)", (), True),
        ("use_peft: bool = False", (), True),
        ("lora_rank: int = field(default=0)", ("--lora_rank", "4"), False),
        ("lora_rank: int = field(default=8)", (), False),
        ("rank: int = 0", (), False),
    ],
)
def test_adapters_that_an_argument_turns_on_do_not_count_without_it(
    option: str, argv: tuple[str, ...], is_whole: bool, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"class Arguments:\n    {option}\n\nmodel = get_peft_model(model, LoraConfig())\n")
    assert trains_all(read_script(file), ScriptArgs.of(argv)) == is_whole


def test_an_engine_that_only_generates_is_not_asked_for_the_memory_of_a_training() -> None:
    engine = "engine = deepspeed.initialize(model=model, config=config)[0]\n"
    loop = f"{engine}engine.backward(engine(x))\nengine.step()\n"
    told = [
        demand(source=one, interface=ConfigInterface.DEEPSPEED, at=local(0)).memory for one in (loop, engine)
    ]
    assert [one is None for one in told] == [False, True]


def test_a_forecast_says_what_the_hosts_memory_takes() -> None:
    told = demand(on=machine(*GPUS), told=forecast(10, pageable=20)).memory
    assert told is not None
    assert told.least == 2 * (20 * GIB + PROGRAM_BYTES)


@pytest.mark.parametrize(
    ("launcher", "environ", "num_bytes"),
    [
        ("deepspeed", {}, 2 * SHARED_BYTES),
        ("torchrun", {}, 0),
        ("torchrun", {"LOCAL_SIZE": "2"}, 2 * SHARED_BYTES),
    ],
)
def test_cpu_ranks_use_shared_memory_only_where_local_size_is_set(
    launcher: str, environ: dict[str, str], num_bytes: int
) -> None:
    assert demand(launcher=launcher, environ=environ).shm_bytes == num_bytes


def test_an_offload_to_nvme_locks_its_buffers_and_fills_the_drive() -> None:
    keys = {"offload_param.buffer_count": 7, "offload_param.buffer_size": 10**7, "sub_group_size": 10**5}
    said = tuple((f"zero_optimization.{key}", value) for key, value in keys.items())
    one = demand(stage=3, offload=Offload("nvme", "nvme"), nvme_dir=Path("/nvme"), overrides=said)
    share = NUM_PARAMETERS // 2
    assert one.locked_bytes == 2 * 7 * 10**7 + 4 * 4 * 10**5
    assert {writing.path: writing.num_bytes for writing in one.writes}[Path("/nvme")] == 2 * (16 + 2) * share


def test_an_offload_to_the_cpu_locks_nothing() -> None:
    assert demand(stage=2, offload=Offload("cpu", "none")).locked_bytes == 0


def test_dataloader_workers_and_nccl_pass_data_through_shared_memory() -> None:
    one = demand("--dataloader_num_workers", "4", on=machine(*GPUS))
    assert one.shm_users == ("NCCL", "8 dataloader workers")


def test_only_the_ranks_of_this_host_count_here() -> None:
    one = demand(at=over_ssh(Host("here", (0,)), Host("there", (0, 1, 2))))
    assert one.ranks == 1


def test_a_machine_without_ranks_needs_neither_gpus_nor_a_network() -> None:
    one = demand(at=over_ssh(Host("w0", (0,)), Host("w1", (0,))))
    assert (one.devices, one.crosses_hosts, one.uses_infiniband) == ((), False, False)
    old = changed(machine_facts("old-driver"), network={"chosen": {"NCCL_SOCKET_IFNAME": "ib0"}})
    assert [finding.code for finding in findings(replace(one, writes=()), old)] == []


def test_another_host_is_asked_for_what_its_own_ranks_take() -> None:
    hosts = over_ssh(Host("here", (0,)), Host("there", (0, 1, 2)))
    here, there = (demand(on=replace(CPU_MACHINE, hostname=name), at=hosts) for name in ("here", "there"))
    assert here.memory is not None
    assert there.memory is not None
    assert there.memory.least > 2 * here.memory.least


def test_over_ssh_no_gpus_are_offered_that_only_a_filter_could_name() -> None:
    _, facts = on_gpu_0(60 * GIB, OTHERS)
    one = demand(on=machine(*GPUS), at=over_ssh(Host("here", (0,))))
    (finding,) = [one for one in findings(one, facts) if one.code == "gpu-busy"]
    assert finding.hint == "wait until `nvidia-smi` shows that it is free"


def test_a_busy_gpu_that_the_job_leaves_alone_is_neither_a_finding_nor_offered() -> None:
    busy = (replace(gpu(2), free_bytes=0), replace(GPUS[0], free_bytes=0))
    facts = replace(HEALTHY, hardware=machine(busy[1], GPUS[1], busy[0], GPUS[3]))
    one = demand(on=machine(*GPUS), at=local(0))
    assert [(each.code, each.hint) for each in findings(one, facts)] == [
        ("gpu-busy", "`--gpus 1,` uses idle GPUs")
    ]


def test_every_monitor_of_transformers_is_known() -> None:
    text = (inspect_python(None).folder("transformers") / "integrations" / "integration_utils.py").read_text()
    table = text.partition("INTEGRATION_TO_CALLBACK = {")[2].partition("}")[0]
    names = [line.split('"')[1] for line in table.splitlines() if '"' in line]
    assert sorted(names) == sorted(REPORTERS)


@pytest.mark.parametrize("section", ["tensorboard", "wandb", "comet"])
def test_a_monitor_of_the_ds_config_needs_its_package(section: str) -> None:
    one = demand(overrides=((f"{section}.enabled", True),))
    assert [monitor.where for monitor in one.monitors] == [f"{section}.enabled"]


def test_a_script_of_its_own_is_free_to_report_where_it_likes() -> None:
    one = demand("--report_to", "pigeon", interface=ConfigInterface.DEEPSPEED)
    assert findings(one, HEALTHY) == []


def test_a_gpu_of_the_job_that_is_only_too_small_is_left_to_the_estimate() -> None:
    small: Gpu = replace(GPUS[0], memory_bytes=30 * GIB, free_bytes=30 * GIB)
    assert findings(replace(DEMAND, devices=(0,)), replace(HEALTHY, hardware=machine(small))) == []


@pytest.mark.parametrize(
    ("argv", "source", "job"),
    [
        ((), "", {"overrides": (("tensor_parallel.autotp_size", 2),), "stage": 1}),
        (("--tp_size", "2"), "", {}),
        ((), "PipelineModule(layers, num_stages=2)", {}),
    ],
)
def test_ranks_that_share_a_model_do_not_each_need_the_memory_for_it(
    argv: tuple[str, ...], source: str, job: dict[str, Any]
) -> None:
    assert demand().memory is not None
    assert demand(*argv, source=source, **job).memory is None
