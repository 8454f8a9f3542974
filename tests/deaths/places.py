"""Where jobs die: small disks, little memory, taken ports, stale locks, and a terminal that closes."""

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.abilities import need_root, unable
from tests.deaths.bed import HERE, Bed
from tests.memory_groups import memory_groups
from tests.running import ACTIVATED, run


@contextlib.contextmanager
def nowhere(_: Path) -> Iterator[Bed]:
    """Nothing special."""
    yield Bed()


@contextlib.contextmanager
def mounted(place: Path, mebibytes: int) -> Iterator[None]:
    """Put a small file system somewhere."""
    need_root("mount a file system")
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)],
        check=False,
        capture_output=True,
    )
    if done.returncode != 0:
        unable(f"no file system can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Bed]:
    """A disk of 4 MiB for what the script writes."""
    with mounted(folder / "disk", 4):
        yield Bed()


@contextlib.contextmanager
def run_on_a_small_disk(folder: Path) -> Iterator[Bed]:
    """A disk of 4 MiB for the run directory, and for what the script writes."""
    with mounted(folder / "disk", 4):
        yield Bed(options=("--run-dir", folder / "disk" / "r"))


@contextlib.contextmanager
def small_shared_memory(_: Path) -> Iterator[Bed]:
    """A /dev/shm of 1 MiB, for this job alone."""
    need_root("mount another /dev/shm")
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    done = subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False, capture_output=True)
    if done.returncode != 0:
        unable(f"no other /dev/shm can be mounted here: {done.stderr.decode().strip()}")
    yield Bed(before=("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"))


@contextlib.contextmanager
def container_of_memory(_: Path) -> Iterator[Bed]:
    """A control group that may hold 1 GiB."""
    with memory_groups(1 << 30) as (group,):
        yield Bed(enter=partial(_enter, group / "cgroup.procs"), alone=True)


def _enter(procs: Path) -> None:
    procs.write_text(str(os.getpid()))


@contextlib.contextmanager
def taken_port(_: Path) -> Iterator[Bed]:
    """A port that another program has: this one."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        yield Bed(env={"TAKEN_PORT": str(taken.getsockname()[1])})


@contextlib.contextmanager
def no_compiler(folder: Path) -> Iterator[Bed]:
    """No op was compiled yet, and there is no compiler."""
    yield Bed(env={"TORCH_EXTENSIONS_DIR": str(folder / "ops"), "CXX": "no-such-compiler"})


@contextlib.contextmanager
def checkpoint_of_one_rank(folder: Path) -> Iterator[Bed]:
    """A checkpoint that one rank has saved alone, once for all jobs."""
    place = folder.parent / "saved-by-one-rank"
    alone = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    if not place.exists():
        fresh = folder / "saved"
        saved = run(
            sys.executable,
            *(HERE / "training.py", "saves", fresh),
            cwd=folder,
            env={**alone, **ACTIVATED, "DS_ACCELERATOR": "cpu"},
        )
        assert saved.status == 0, saved.err
        fresh.rename(place)
    yield Bed(args=(place,))


@contextlib.contextmanager
def stale_lock(folder: Path) -> Iterator[Bed]:
    """The lock of an op of the script's own, whose build was killed, or hangs; some releases wait for each."""
    lock = folder / "ops" / "mine" / "lock"
    lock.parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield Bed()


@contextlib.contextmanager
def own_terminal(_: Path) -> Iterator[Bed]:
    """A terminal in which zlaunch is the only program."""
    ours, its = os.openpty()
    yield Bed(enter=partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0), terminal=(ours, its))
    for end in (ours, its):
        with contextlib.suppress(OSError):
            os.close(end)
