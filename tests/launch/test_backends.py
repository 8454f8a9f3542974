import pytest

from tests.making import local, over_ssh, script
from zlaunch.hosts.cluster.topology import Host, Reach, Topology
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.job.spec import Launcher
from zlaunch.launch.backends import backend_of, launcher_of, launchers
from zlaunch.launch.launcher import Target

SCRIPT = Target("train.py", ("--lr", "1"))
MODULE = Target("package.train", ("--lr", "1"), "module")
PROGRAM = Target("/tools/bin/python", ("start.py",), "program")
HOSTS = over_ssh(Host("w0", (0, 1)), Host("w1", (3,)))


def _deepspeed(target: Target, topology: Topology, accelerator: str = "cuda") -> tuple[str, ...]:
    return backend_of("deepspeed").build_argv(target, topology, accelerator, 2950)


def test_torchrun_starts_a_rank_for_each_device() -> None:
    assert backend_of("torchrun").build_argv(SCRIPT, local(1, 3), "cuda", 2950) == (
        "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--log-dir=/dev/null", "train.py", "--lr", "1",
    )  # fmt: skip


def test_torchrun_starts_a_module_by_its_name() -> None:
    argv = backend_of("torchrun").build_argv(MODULE, local(0), "cuda", 2950)
    assert argv[-4:] == ("-m", "package.train", "--lr", "1")


def test_torchrun_starts_any_program() -> None:
    argv = backend_of("torchrun").build_argv(PROGRAM, local(0), "cuda", 2950)
    assert argv[-3:] == ("--no-python", "/tools/bin/python", "start.py")


def test_deepspeed_is_told_the_devices_of_this_machine() -> None:
    assert _deepspeed(SCRIPT, local(1, 3)) == (
        "deepspeed.launcher.runner", "--hostfile=/dev/null", "--include=localhost:1,3", "--master_port=2950",
        "--no_local_rank", "train.py", "--lr", "1",
    )  # fmt: skip


def test_deepspeed_is_told_a_number_of_ranks_on_a_cpu() -> None:
    assert "--num_gpus=2" in _deepspeed(SCRIPT, local(0, 1), "cpu")


def test_deepspeed_is_told_the_slots_of_other_hosts() -> None:
    assert "--include=w0:0,1@w1:3" in _deepspeed(SCRIPT, HOSTS)


def test_deepspeed_is_told_the_slots_of_other_hosts_without_accelerators() -> None:
    assert "--include=w0:0,1@w1:3" in _deepspeed(SCRIPT, HOSTS, "cpu")


def test_deepspeed_reads_the_hosts_from_the_run_directory() -> None:
    assert "--hostfile=run/hostfile" in _deepspeed(Target("train.py", (), hostfile="run/hostfile"), HOSTS)


def test_deepspeed_goes_over_ssh_even_to_a_single_host() -> None:
    assert "--force_multi" in _deepspeed(SCRIPT, over_ssh(Host("w0", (0,))))


def test_deepspeed_stays_on_this_machine_without_a_hostfile() -> None:
    assert "--force_multi" not in _deepspeed(SCRIPT, local(0))


def test_deepspeed_starts_a_module_by_its_name() -> None:
    assert _deepspeed(MODULE, local(0))[-4:] == ("--module", "package.train", "--lr", "1")


def test_deepspeed_starts_any_program() -> None:
    assert _deepspeed(PROGRAM, local(0))[-3:] == ("--no_python", "/tools/bin/python", "start.py")


@pytest.mark.parametrize("name", launchers())
def test_the_target_and_its_arguments_come_last(name: Launcher) -> None:
    assert backend_of(name).build_argv(SCRIPT, local(0), "cuda", 2950)[-3:] == ("train.py", "--lr", "1")


@pytest.mark.parametrize("name", launchers())
def test_a_launcher_is_a_module_that_runs_as_a_program(name: Launcher) -> None:
    package, *parts = backend_of(name).build_argv(SCRIPT, local(0), "cuda", 2950)[0].split(".")
    file = inspect_python(None).folder(package).joinpath(*parts).with_suffix(".py")
    assert '__name__ == "__main__"' in file.read_text()


@pytest.mark.parametrize(
    ("reach", "launcher"),
    [
        (Reach.HERE, "deepspeed"),
        (Reach.SSH, "deepspeed"),
        (Reach.SRUN, "torchrun"),
        (Reach.JOINED, "torchrun"),
    ],
)
def test_a_script_that_wants_its_local_rank_gets_it_from_zlaunch_inside_a_job(
    reach: Reach, launcher: Launcher
) -> None:
    wants = script(local_rank_flag="--local_rank")
    assert (launcher_of(None, wants, reach), launcher_of("torchrun", wants, reach)) == (launcher, "torchrun")
