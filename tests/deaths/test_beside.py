"""What a death must not touch, and what it must not leave: other runs, drives, shared memory, terminals."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.abilities import unable
from tests.deaths.bed import HERE, Bed, Job
from tests.launchers import LAUNCHERS, taken
from tools.build_ops import op_cache
from zlaunch.hosts.machine.build_lock import lock_state, locks_by_file
from zlaunch.hosts.machine.interpreter import inspect_python

pytestmark = [pytest.mark.job, pytest.mark.timeout(1200)]

LIBAIO = Path("/usr/include/libaio.h")
PYTHON = inspect_python(None)

Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start jobs in one folder, and leave none behind."""
    with ExitStack() as jobs:

        def begin(script: str, *options: object, name: str = "r", bed: Bed | None = None) -> Job:
            file, _, function = script.partition(".")
            words = (
                "train",
                HERE / f"{file}.py",
                "--no-ask",
                "--run-dir",
                tmp_path / name,
                *options,
                "--",
                function,
            )
            job = Job(tmp_path, [str(word) for word in words], bed or Bed(), name=name)
            jobs.callback(job.end)
            return job

        yield begin


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """A place for swap files; the offload to NVMe needs the headers of libaio."""
    if not LIBAIO.exists():
        unable("libaio-dev is not installed")
    (tmp_path / "drive").mkdir()
    return tmp_path / "drive"


def nvme(drive: Path) -> tuple[object, ...]:
    return ("--stage", "3", "--offload", "nvme", "--nvme", drive)


def swap_of(job: Job) -> list[Path]:
    found = [Path(name) for name in json.loads((job.run / "job.json").read_text())["swap_dirs"]]
    assert found
    for directory in found:
        (directory / "optimizer.swp").write_bytes(b"x")
    return found


@pytest.mark.parametrize("launcher", taken(LAUNCHERS, 0))
def test_a_zlaunch_that_is_killed_leaves_nothing_on_the_drive(
    launcher: str, drive: Path, start: Start
) -> None:
    job = start("script.wait", "--launcher", launcher, *nvme(drive))
    job.await_ready(num_ranks=2)
    swap_of(job)
    job.dies_now()
    job.process.kill()
    _, left, _ = job.await_end()
    assert (left, list(drive.iterdir())) == (0, [])


@pytest.mark.parametrize("launcher", taken(LAUNCHERS, 1))
def test_a_run_that_dies_leaves_the_other_in_the_same_folder_alone(
    launcher: str, drive: Path, start: Start
) -> None:
    options = ("--launcher", launcher, *nvme(drive))
    dies, lives = (start("script.reduces_forever", *options, name=name) for name in ("dies", "lives"))
    for job in (dies, lives):
        job.await_ready(num_ranks=2)
        swap_of(job)
    before, log = lives.left(), (lives.run / "logs" / "rank-0.log").read_bytes()
    dies.dies_now()
    dies.process.kill()
    _, left, _ = dies.await_end()
    assert left == 0
    lives.await_step(lives.step() + 1)
    assert set(before) <= set(lives.left())
    assert (lives.run / "logs" / "rank-0.log").read_bytes() == log
    assert all(swap.is_dir() for swap in swap_of(lives))
    lives.process.send_signal(signal.SIGTERM)
    lives.dies_now()
    assert lives.await_end()[:2] == (143, 0)
    assert (lives.ending()["how"], list(drive.iterdir())) == ("stopped", [])


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_the_buffers_that_deepspeed_leaves_in_shared_memory_are_deleted(
    number: signal.Signals, start: Start
) -> None:
    job = start("training.waits", "--launcher", "deepspeed")
    job.await_ready(num_ranks=2)
    assert len(buffers_of(job)) == 2
    job.dies_now()
    job.process.send_signal(number)
    assert job.await_end()[1] == 0
    assert buffers_of(job) == []


def buffers_of(job: Job) -> list[Path]:
    argv = json.loads((job.run / "job.json").read_text())["argv"]
    port = next(word.partition("=")[2] for word in argv if word.startswith("--master_port="))
    return list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"))


def test_ctrl_c_before_the_job_starts_ends_without_a_traceback(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    os.mkfifo(config)
    job = Job(tmp_path, ["train", "--ds-config", str(config)], Bed())
    with ExitStack() as ends:
        ends.callback(job.end)
        writer = opened_by_its_reader(config, job)
        job.process.send_signal(signal.SIGINT)
        assert job.process.wait(10) == 130
        os.close(writer)
    assert "Traceback" not in (tmp_path / "err").read_text()
    assert not (tmp_path / "runs").exists()


def opened_by_its_reader(pipe: Path, job: Job) -> int:
    """Wait until zlaunch reads a file, of which nothing comes."""
    while job.process.poll() is None:
        with suppress(OSError):
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.02)
    raise AssertionError(job.told())


def test_the_lock_that_a_killed_build_has_left_keeps_no_job_waiting(tmp_path: Path, start: Start) -> None:
    """It is removed where torch would wait for it."""
    name = "deepspeed_shm_comm"
    ops = tmp_path / "ops"
    if (op_cache().folder / name).exists():
        shutil.copytree(op_cache().folder / name, ops / name)
    (ops / name).mkdir(parents=True, exist_ok=True)
    (ops / name / "lock").touch()
    job = start("script.ends", bed=Bed(env={"TORCH_EXTENSIONS_DIR": str(ops)}))
    assert job.process.wait(240) == 0
    is_removed = f"removed the lock {ops / name / 'lock'}" in (tmp_path / "err").read_text()
    assert is_removed == locks_by_file(PYTHON)
    assert (ops / name / "lock").exists() != is_removed


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_a_zlaunch_that_ends_while_ops_compile_leaves_no_compiler_and_no_lock(
    tmp_path: Path, start: Start, number: signal.Signals
) -> None:
    compiler, compiles = tmp_path / "compiler", tmp_path / "compiles"
    compiler.write_text(
        f'#!/bin/sh\ncase " $* " in *" -c "*) touch {compiles}; exec sleep 1000;; *) exec c++ "$@";; esac\n'
    )
    compiler.chmod(0o755)
    ops = tmp_path / "ops"
    job = start("script.ends", bed=Bed(env={"TORCH_EXTENSIONS_DIR": str(ops), "CXX": str(compiler)}))
    job.await_file(compiles)
    assert states_of_locks(ops) == {"held"}
    job.dies_now()
    job.process.send_signal(number)
    status, left, _ = job.await_end()
    assert (status, left, states_of_locks(ops) - {"free"}) == (128 + number, 0, set())
    assert job.ending()["how"] == ("lost" if number is signal.SIGKILL else "stopped")


def states_of_locks(ops: Path) -> set[str]:
    return {lock_state(lock, PYTHON) for lock in ops.glob("*/lock")}


def test_the_processes_that_are_counted_are_those_in_sessions_of_their_own_too(start: Start) -> None:
    job = start("script.wait")
    job.await_ready(num_ranks=2)
    assert [process.name() for process in job.left()].count("sleep") == 2
