"""What a machine lacks is said before anything is written; each lack here is real."""

import importlib.util
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory_groups import memory_groups
from tests.running import RECIPE, ZLAUNCH, Result, run, zlaunch
from zlaunch.hosts.machine.probe import free_resources

pytestmark = pytest.mark.job

IS_ROOT = os.geteuid() == 0
needs_mount = pytest.mark.skipif(
    not IS_ROOT or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0,
    reason="only root may mount",
)


def on_small_disks(script: str, cwd: Path) -> Result:
    """Run a shell script where `small` has 1 MiB and /dev/shm has 64, which nobody else sees."""
    mounts = "mount -t tmpfs -o size=1m tmpfs small && mount -t tmpfs -o size=64m tmpfs /dev/shm"
    (cwd / "small").mkdir()
    return run("unshare", "-m", "bash", "-c", f"{mounts} && {script}", cwd=cwd)


def train(*words: str) -> str:
    return shlex.join([*ZLAUNCH, "train", *words])


@needs_mount
def test_a_disk_without_room_for_a_checkpoint_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    words = ("--", "--save_strategy", "steps", "--output_dir", "small/out")
    result = on_small_disks(train(*words), tmp_path)
    assert result.status == 65
    assert f"1.0 MiB are free on the file system of `{tmp_path}/small/out`" in " ".join(result.err.split())
    assert result.err.endswith("hint: `--force` starts it anyway\n")
    assert [file.name for file in tmp_path.iterdir()] == ["small"]


@needs_mount
def test_a_directory_that_the_script_itself_writes_to_by_default_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(RECIPE.read_text().replace('"trainer_output"', '"small/out"'))
    model = ("--from_scratch", "--model", str(RECIPE.with_name("small_llama")))
    result = on_small_disks(train("own.py", "--", "--save_strategy", "steps", *model), tmp_path)
    assert f"1.0 MiB are free on the file system of `{tmp_path}/small/out`" in " ".join(result.err.split())


@needs_mount
def test_a_disk_without_room_for_the_record_of_the_run_is_named(tmp_path: Path) -> None:
    result = on_small_disks(f"{train('--run-dir', 'small/run')}; ls small", tmp_path)
    assert "[disk-too-small]" in result.err
    assert result.out == ""


@needs_mount
def test_a_run_directory_that_the_disk_cannot_take_is_named_and_taken_back(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    fill = "head -c $((1048576 - 40960)) /dev/zero > small/full && cd work"
    forced = train("--force", "--run-dir", "../small/run")
    result = on_small_disks(f"{fill} && {forced}; ended=$?; ls -A ../small; exit $ended", tmp_path)
    named = "error: the run directory `../small/run`: No space left on device"
    assert (result.status, named in result.err, result.out) == (69, True, "full\n")


@needs_mount
def test_a_dry_run_shows_the_same_and_force_lets_it_pass(tmp_path: Path) -> None:
    result = on_small_disks(
        train("--dry-run", "--force", "--launcher", "deepspeed", "--run-dir", "small/run"), tmp_path
    )
    assert result.status == 0
    assert "[disk-too-small]" in result.err
    assert "with DeepSpeed's launcher, 2 CPU ranks communicate through /dev/shm" in " ".join(
        result.err.split()
    )


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed here")
def test_a_monitor_without_its_package_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()  # as wandb itself leaves one
    result = zlaunch("train", "--", "--report_to", "wandb", cwd=tmp_path)
    assert result.status == 65
    assert "`pip install wandb`, or `-- --report_to none`" in result.err
    assert [file.name for file in tmp_path.iterdir()] == ["wandb"]


@pytest.mark.skipif(not IS_ROOT or not shutil.which("setpriv"), reason="only root may give up a capability")
def test_locked_memory_that_does_not_suffice_for_nvme_is_refused(tmp_path: Path) -> None:
    start = train("--dry-run", "--stage", "3", "--offload", "nvme", "--nvme", ".")
    limited = f"ulimit -l 64; {start}"
    result = run(
        *("setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock", "bash", "-c", limited),
        cwd=tmp_path,
    )
    assert result.status == 65
    assert "[memlock-too-small]" in result.err
    assert "the limit of a process is 0.1 MiB" in " ".join(result.err.split())


def test_a_limit_that_root_is_not_bound_by_gives_no_cause_for_words(tmp_path: Path) -> None:
    if free_resources([]).memlock_bytes is not None:
        pytest.skip("this user is bound by it")
    start = train("--dry-run", "--stage", "3", "--offload", "nvme", "--nvme", ".")
    result = run("bash", "-c", f"ulimit -l 64; {start}", cwd=tmp_path)
    assert (result.status, result.err) == (0, "")


@pytest.fixture
def narrow_group() -> Iterator[Path]:
    """Make a control group of 256 MiB with a wider one inside, and give the inner one."""
    with memory_groups(256 << 20, 64 << 30) as (_, inner):
        yield inner


def test_a_control_group_further_up_that_leaves_too_little_is_named(
    tmp_path: Path, narrow_group: Path
) -> None:
    enter = f"echo $$ > {narrow_group}/cgroup.procs"
    result = run("bash", "-c", f"{enter}; {train()}", cwd=tmp_path)
    said = " ".join(result.err.split())
    assert result.status == 65
    assert f"GiB of {narrow_group.parent}" in said
    assert "`docker run --memory 1g`" in said


def test_a_healthy_machine_is_passed_over_in_silence(tmp_path: Path) -> None:
    result = zlaunch("train", "--dry-run", cwd=tmp_path)
    assert (result.status, result.err) == (0, "")


def test_a_hostfile_without_the_program_that_starts_its_ranks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost slots=1\n")
    (tmp_path / "empty").mkdir()
    launcher = ("--launcher", "deepspeed")
    done = zlaunch(
        "train", "--hostfile", "hosts", *launcher, cwd=tmp_path, env={"PATH": str(tmp_path / "empty")}
    )
    assert (done.status, (tmp_path / "runs").exists()) == (69, False)
    assert "with pdsh, which is not installed" in " ".join(done.err.split())


def test_hosts_are_not_called_unreachable_where_ssh_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = zlaunch("train", "--hosts", "worker-1:1", cwd=tmp_path, env={"PATH": str(tmp_path / "empty")})
    assert (done.status, (tmp_path / "runs").exists()) == (69, False)
    assert done.err == (
        "error: worker-1: this machine has no `ssh`\nhint: `apt-get install openssh-client`\n"
    )


def test_a_scheduler_that_is_not_obeyed_is_named_if_it_says_several_hosts(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("gpu1\ngpu2\n")
    env = {"PBS_NODEFILE": str(tmp_path / "nodes")}
    done = zlaunch("train", "--dry-run", cwd=tmp_path, env=env)
    assert (done.status, "PBS_NODEFILE says 2 hosts, but this job runs on one" in done.err) == (0, True)
