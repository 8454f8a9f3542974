"""Dies in the way its argument names: `script.py FUNCTION`. Runs in each rank, and imports no torch unless it must.

It always leaves a program behind that nobody waits for, in a session of its own, and what DeepSpeed leaves in
shared memory.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

BUFFERS = "/dev/shm/deepspeed_allreduce_buffer_"
MARK = "ZLAUNCH_TEST_OF_DEATH"
RANK = int(os.environ.get("RANK", "0"))


def ready() -> None:
    """Say that it can be killed now."""
    print("ready", flush=True)


def dying() -> None:
    """Note the moment; the first one counts."""
    Path(f"moment-{RANK}").touch()


def wait() -> None:
    ready()
    time.sleep(1000)


def the_second(die: "object") -> None:
    """Let only the second rank die; the first waits."""
    if RANK != 1:
        wait()
    dying()
    assert callable(die)
    die()
    wait()


def raises() -> None:
    def die() -> None:
        raise RuntimeError("the cause")

    the_second(die)


def exits() -> None:
    the_second(lambda: sys.exit(7))


def segfaults() -> None:
    import ctypes

    the_second(lambda: ctypes.string_at(0))


def aborts() -> None:
    the_second(os.abort)


def reads_a_file_that_was_cut_off() -> None:
    def die() -> None:
        import mmap

        with Path("data.bin").open("wb+") as file:
            file.truncate(mmap.PAGESIZE * 4)
            mapped = mmap.mmap(file.fileno(), 0)
            file.truncate(0)
            print(mapped[0])

    the_second(die)


def shares_more_than_there_is() -> None:
    def die() -> None:
        import mmap

        with Path("/dev/shm/batches").open("wb+") as file:
            file.truncate(8 << 20)
            mapped = mmap.mmap(file.fileno(), 0)
            for start in range(0, 8 << 20, mmap.PAGESIZE):
                mapped[start] = 1

    the_second(die)


def does_not_stop() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: print("asked to stop", flush=True))
    ready()
    while True:
        time.sleep(1000)


def eats_all_memory() -> None:
    def die() -> None:
        eaten = []
        while True:
            eaten.append(b"x" * (16 << 20))

    the_second(die)


def asks_for_more_than_its_limit() -> None:
    def die() -> None:
        import resource

        import torch

        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        dying()
        torch.ones(16 << 30, dtype=torch.uint8)

    the_second(die)


def fills_the_disk() -> None:
    the_second(lambda: Path("disk", "checkpoint.bin").write_bytes(b"x" * (8 << 20)))


def await_the_other() -> None:
    """Wait for the word of the first rank, which needs room too."""
    log = Path("disk", "r", "logs", "rank-0.log")
    while not log.exists() or "ready" not in log.read_text():
        time.sleep(0.05)


def prints_until_the_disk_is_full() -> None:
    def die() -> None:
        await_the_other()
        dying()
        while True:
            print("x" * 4096, flush=True)

    the_second(die)


def fills_the_disk_of_the_run() -> None:
    def die() -> None:
        await_the_other()
        with Path("disk", "data.bin").open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError:
                    continue
        time.sleep(3)
        dying()
        sys.exit(7)

    the_second(die)


def waits_for_a_build_that_nobody_does() -> None:
    from torch.utils.cpp_extension import load

    use_own_ops()
    load("mine", [write("mine.cpp", "int one() { return 1; }\n")])


def builds_what_does_not_compile() -> None:
    from torch.utils.cpp_extension import load

    use_own_ops()
    try:
        load("broken", [write("broken.cpp", "int one() { return two; }\n")])
    finally:
        dying()


def use_own_ops() -> None:
    """Leave those of DeepSpeed alone, which are compiled already."""
    os.environ["TORCH_EXTENSIONS_DIR"] = str(Path("ops").absolute())


def write(name: str, text: str) -> str:
    """Write a source that both ranks compile."""
    file = Path(name)
    if not file.exists():
        partial = Path(f"{name}.{RANK}")
        partial.write_text(text)
        partial.replace(file)
    return str(file.absolute())


def stops_stepping() -> None:
    from zlaunch.worker.report import report

    for step in range(1, 10):
        report(step, steps=10, loss=1.0)
        time.sleep(0.3)  # the watch looks once a second, and must see two steps to know how long one takes
    wait()


def diverges() -> None:
    """Gradient descent on x², too fast: the loss overflows, and then it is no number."""
    from zlaunch.worker.report import report

    x, rate = 1.0, 1e10
    for step in range(1, 100):
        x -= rate * 2 * x
        report(step, steps=99, loss=x * x - x * x / 2, learning_rate=rate)
    dying()


def waits_in_vain() -> None:
    import datetime as dt

    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    short = dist.new_group(timeout=dt.timedelta(seconds=2))
    if RANK == 1:
        wait()
    try:
        dist.all_reduce(torch.ones(1), group=short)
    finally:
        dying()


def reduces_forever() -> None:
    import torch
    import torch.distributed as dist

    from zlaunch.worker.report import report

    dist.init_process_group("gloo")
    ready()
    for step in range(1, 1 << 30):
        dist.all_reduce(torch.ones(1 << 16))
        report(step)


def takes_a_port_that_is_taken() -> None:
    import torch.distributed as dist

    if RANK == 0:
        wait()
    dying()
    dist.TCPStore("127.0.0.1", int(os.environ["TAKEN_PORT"]), is_master=True)


def knows_no_such_argument() -> None:
    import argparse

    dying()
    argparse.ArgumentParser().parse_args()


def imports_what_is_missing() -> None:
    dying()
    import zlaunch_of_another_world  # type: ignore[import-not-found]  # noqa: F401


def ends() -> None:
    dying()


def leave_something_behind() -> None:
    subprocess.Popen(["setsid", "sleep", "1000"])
    where = "_".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    with contextlib.suppress(OSError):  # the other rank may have filled it already
        Path(f"{BUFFERS}{os.getuid()}_{where}").write_text(os.environ[MARK])


if __name__ == "__main__":
    leave_something_behind()
    globals()[sys.argv[1]]()
