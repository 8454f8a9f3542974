"""The table: deaths, and what must come of each under every launcher."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.deaths import places
from tests.deaths.bed import WITHIN_SECONDS, Bed, Job, runs
from tests.launchers import LAUNCHERS

LAUNCHER_MODULES = ("torch.distributed.run", "deepspeed.launcher.runner", "deepspeed.launcher.launch")
STOPS_AT_ONCE = ("--stall-after", "1", "--on-stall", "stop")


@dataclass(frozen=True)
class Death:
    """A way to die: what brings it about, and what must come of it."""

    name: str
    script: str
    """The file, and the function in it."""
    how: str
    status: int
    verdict: str | None
    rank: int | None = None
    """With which rank it began, by the verdict."""
    harm: Callable[[Job], None] | None = None
    """What is done from outside, once all ranks are ready."""
    around: Callable[[Path], AbstractContextManager[Bed]] = places.nowhere
    options: tuple[str, ...] = ()
    launchers: tuple[str, ...] = LAUNCHERS
    says: str = ""
    """What the verdict must hold, in its cause or its facts."""
    prints: str = ""
    """What each rank must have printed."""
    within: float = WITHIN_SECONDS


def kill(
    program: str, rank: int | None = None, number: signal.Signals = signal.SIGKILL
) -> Callable[[Job], None]:
    """Kill a process of the job, or send it another signal."""

    def harm(job: Job) -> None:
        process = job.find(program, rank)
        job.dies_now()
        process.send_signal(number)

    return harm


def kill_all_programs_of_zlaunch(job: Job) -> None:
    """Kill them as `pkill -9 -f` does, and the launchers with them."""
    names = ("zlaunch", *LAUNCHER_MODULES)
    processes = [process for process in job.left() if any(map(partial(runs, process), names))]
    job.dies_now()
    for process in processes:
        process.kill()


def send(*numbers: signal.Signals) -> Callable[[Job], None]:
    """Send signals to zlaunch, half a second apart."""

    def harm(job: Job) -> None:
        job.dies_now()
        for count, number in enumerate(numbers):
            time.sleep(0.5 if count else 0)
            job.process.send_signal(number)

    return harm


def kill_the_launcher(job: Job) -> None:
    """Kill torchrun or deepspeed itself."""
    kill(_launcher_of(job))(job)


def terminate_the_launcher(job: Job) -> None:
    """Send SIGTERM to torchrun or deepspeed alone."""
    kill(_launcher_of(job), number=signal.SIGTERM)(job)


def _launcher_of(job: Job) -> str:
    return next(name for name in LAUNCHER_MODULES if name in (job.run / "run.sh").read_text())


def close_the_terminal(job: Job) -> None:
    """Take the terminal away in which zlaunch runs."""
    assert job.bed.terminal is not None
    job.dies_now()
    os.close(job.bed.terminal[0])


def kill_in_the_middle(
    program: str, rank: int, number: signal.Signals = signal.SIGKILL
) -> Callable[[Job], None]:
    """Kill a process of a rank that has been computing for a while, or send it another signal."""

    def harm(job: Job) -> None:
        job.await_step(100)
        kill(program, rank, number)(job)

    return harm


TABLE = (
    Death("a rank raises", "script.raises", "failed", 1, "script-exception", 1, says="the cause"),
    Death("a rank exits with 7", "script.exits", "failed", 7, "ended-by-status", 1),
    Death("SIGSEGV in a rank", "script.segfaults", "failed", 139, "crashed", 1),
    Death("SIGABRT in a rank", "script.aborts", "failed", 134, "crashed", 1),
    Death(
        "SIGBUS: a memory-mapped file is truncated",
        *("script.reads_a_file_that_was_cut_off", "failed", 135, "crashed", 1),
    ),
    Death(
        "SIGBUS: /dev/shm of 1 MiB",
        *("script.shares_more_than_there_is", "failed", 135, "shared-memory-full", 1),
        around=places.small_shared_memory,
        options=("--force",),
    ),
    Death("SIGKILL of a rank's script", "script.wait", "failed", 137, "killed", 1, kill("script.py", 1)),
    Death(
        "SIGKILL of a rank and its wrapper process",
        *("script.wait", "failed", 137, "rank-lost", 1, kill("zlaunch.worker.rank", 1)),
    ),
    Death("SIGKILL of the launcher", "script.wait", "failed", 137, "launcher-killed", harm=kill_the_launcher),
    Death(
        "SIGKILL of the node launcher",
        *("script.wait", "failed", 137, "launcher-killed"),
        harm=kill("deepspeed.launcher.launch"),
        launchers=("deepspeed",),
    ),
    Death(
        "SIGKILL of zlaunch.worker.guard",
        *("script.wait", "failed", 137, "launcher-killed"),
        harm=kill("zlaunch.worker.guard"),
    ),
    Death(
        "SIGKILL of zlaunch itself",
        *("script.does_not_stop", "lost", 137, "zlaunch-killed"),
        harm=send(signal.SIGKILL),
    ),
    Death(
        "SIGKILL of all programs of zlaunch at once",
        *("script.wait", "lost", 137, "zlaunch-killed"),
        harm=kill_all_programs_of_zlaunch,
    ),
    Death(
        "SIGTERM to the launcher alone",
        *("script.wait", "stopped", 143, "stopped"),
        harm=terminate_the_launcher,
    ),
    Death(
        "SIGTERM to zlaunch.worker.guard alone",
        *("script.wait", "stopped", 143, "stopped"),
        harm=kill("zlaunch.worker.guard", number=signal.SIGTERM),
    ),
    Death(
        "SIGINT to the wrapper process of a rank alone",
        *("script.wait", "stopped", 130, "stopped"),
        harm=kill("zlaunch.worker.rank", 1, signal.SIGINT),
    ),
    Death(
        "SIGTERM to the wrapper process of a rank during a collective",
        *("script.reduces_forever", "stopped", 143, "stopped"),
        harm=kill_in_the_middle("zlaunch.worker.rank", 1, signal.SIGTERM),
    ),
    Death(
        "SIGKILL of the reaper",
        *("script.wait", "failed", 137, "launcher-killed"),
        harm=kill("-I"),
    ),
    Death("Ctrl-C", "script.wait", "stopped", 130, "stopped", harm=send(signal.SIGINT)),
    Death(
        "Ctrl-C twice, the script ignores signals",
        *("script.does_not_stop", "stopped", 130, "stopped"),
        harm=send(signal.SIGINT, signal.SIGINT),
        prints="asked to stop",
        within=5.0,  # what the first signal alone would grant a rank
    ),
    Death("SIGTERM", "script.wait", "stopped", 143, "stopped", harm=send(signal.SIGTERM)),
    Death(
        "SIGTERM, the script ignores signals",
        *("script.does_not_stop", "stopped", 143, "stopped"),
        harm=send(signal.SIGTERM),
        prints="asked to stop",
    ),
    Death("SIGHUP", "script.wait", "stopped", 129, "stopped", harm=send(signal.SIGHUP)),
    Death(
        "the terminal closes",
        *("script.wait", "stopped", 129, "stopped"),
        harm=close_the_terminal,
        around=places.own_terminal,
    ),
    Death(
        "out of memory: a control group of 1 GiB",
        *("script.eats_all_memory", "failed", 137, "host-out-of-memory", 1),
        around=places.container_of_memory,
    ),
    Death(
        "out of memory: RLIMIT_AS",
        *("script.asks_for_more_than_its_limit", "failed", 1, "host-allocation-failed", 1),
    ),
    Death(
        "the disk of the script is full",
        *("script.fills_the_disk", "failed", 1, "disk-full", 1),
        around=places.small_disk,
    ),
    Death(
        "the disk of the run directory is full",
        *("script.fills_the_disk_of_the_run", "failed", 7, "ended-by-status", 1),
        around=places.run_on_a_small_disk,
    ),
    Death(
        "the output of a rank fills the disk of the run directory",
        *("script.prints_until_the_disk_is_full", "failed", 1, "disk-full", 1),
        around=places.run_on_a_small_disk,
    ),
    Death(
        "a stale lock of a killed build",
        *("script.waits_for_a_build_that_nobody_does", "stalled", 124, "stale-build-lock"),
        around=places.stale_lock,
        options=STOPS_AT_ONCE,
    ),
    Death(
        "an op of the script fails to compile",
        *("script.builds_what_does_not_compile", "failed", 1, "op-build-failed"),
        says="broken.cpp:1:20: error:",
    ),
    Death(
        "an op of DeepSpeed fails to compile",
        *("script.ends", "failed", 69, "op-build-failed"),
        around=places.no_compiler,
        says="no-such-compiler: not found",
    ),
    Death("a stall", "script.stops_stepping", "stalled", 124, "stalled", options=STOPS_AT_ONCE),
    Death(
        "a collective times out",
        *("script.waits_in_vain", "failed", 1, "collective-timeout", 1),
    ),
    Death(
        "a rank is killed during a collective",
        *("script.reduces_forever", "failed", 137, "killed", 1),
        harm=kill_in_the_middle("script.py", 1),
    ),
    Death(
        "the port is in use",
        *("script.takes_a_port_that_is_taken", "failed", 1, "port-taken", 1),
        around=places.taken_port,
    ),
    Death("wrong arguments", "script.knows_no_such_argument", "failed", 2, "wrong-arguments"),
    Death(
        "a module is missing",
        *("script.imports_what_is_missing", "failed", 1, "module-missing"),
        says="zlaunch_of_another_world",
    ),
    Death(
        "the loss becomes NaN",
        *("script.diverges", "finished", 0, "loss-not-a-number"),
    ),
    Death(
        "fp16 overflows at every loss scale",
        *("training.overflows_in_fp16", "failed", 1, "loss-scale-collapsed"),
    ),
    Death(
        "DeepSpeed rejects a ds_config late",
        *("training.config_is_refused", "failed", 1, "config-refused"),
    ),
    Death(
        "a checkpoint from a different number of ranks",
        *("training.loads", "failed", 1, "other-world-size"),
        around=places.checkpoint_of_one_rank,
    ),
    Death(
        "SIGABRT after the end of training",
        *("training.stumbles", "stumbled", 0, "stumbled", 1),
    ),
    Death("none: the job succeeds", "script.ends", "finished", 0, None),
)
