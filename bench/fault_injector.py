"""Inject random faults into real jobs, and check what is left and what is recorded.

    python -m bench.fault_injector [--trials N] [--seed N] [--workers N] [--only N …] [--keep DIR]

Each trial starts a job of two ranks, waits for a random phase and a random time, and does one or two random
faults of `KINDS`: a signal to a process, again a signal during the cleanup, a run directory that cannot be
written or is gone, somebody else's process that the kernel kills for want of memory, a limit of processes.
Then it checks that no process, lock, buffer or temporary directory is left after 10 s, that the exit status
and the verdict are right, and that what is recorded and what is printed agree. The ranks start a daemon in a
session of its own, and leave a buffer in shared memory, as DeepSpeed does.

The processes of other hosts are in network namespaces of this machine. It has to be root.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import psutil

from tests.cluster.bed import Bed as Hosts
from tests.cluster.bed import hosts
from tests.deaths.bed import Bed, Job, runs
from tests.deaths.script import BUFFERS
from tests.launchers import LAUNCHERS
from tests.memory_groups import memory_groups
from tests.running import zlaunch
from zlaunch.whereabouts import is_alive

BEGIN = f"""
import os, pathlib, signal, subprocess, sys, time
subprocess.Popen(["setsid", "sleep", "1000"])
if "ZLAUNCH_RUN_DIR" in os.environ:
    where = "_".join(os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    pathlib.Path("{BUFFERS}" + str(os.getuid()) + "_" + where).write_text(os.getcwd())
"""
SLEEP = """
print("ready", flush=True)
pathlib.Path("asked" if "ZLAUNCH_RUN_DIR" not in os.environ else "trains").touch()
while not os.path.exists("end"):
    time.sleep(0.05)
"""
IGNORE = """
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
"""
REDUCE = """
import torch, torch.distributed as dist
from zlaunch.worker.report import report
dist.init_process_group("gloo")
print("ready", flush=True)
ends, step = torch.zeros(1), 0
while not ends.item():
    ends.fill_(os.path.exists("end"))
    dist.all_reduce(ends)
    step += 1
    report(step)
    time.sleep(0.02 if os.environ["RANK"] == "0" else 0)  # the others wait for it in the collective
dist.destroy_process_group()
"""
SCRIPTS = {
    "sleeps": BEGIN + SLEEP,
    "ignores": BEGIN + IGNORE + SLEEP,
    "reduces": BEGIN + REDUCE,
    "reduces on hosts": BEGIN + REDUCE,
}
"""What the ranks do → their script."""

UNSURE = "from transformers import HfArgumentParser  # so that zlaunch asks\n"
COMPILER = """#!/bin/sh
case " $* " in *" -c "*) touch "$PLACE/compiles"; exec sleep 1000;; *) exec c++ "$@";; esac
"""

NUM_RANKS = 2
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KILLS = (signal.SIGKILL,)
PROGRAMS = {
    "zlaunch": "train",
    "reaper": "-I",
    "guard": "zlaunch.worker.guard",
    "launcher": "torch.distributed.run",
    "runner": "deepspeed.launcher.runner",
    "node launcher": "deepspeed.launcher.launch",
    "rank program": "zlaunch.worker.rank",
    "build": "zlaunch.worker.build_op",
    "ninja": "ninja",
    "script": "job.py",
    "compiler": "sleep",
    "daemon": "sleep",
}
"""Kind of process → a word of its command line. The first that fits counts."""

ALL = "all of zlaunch's"
OURS = ("zlaunch", "reaper", "guard", "launcher", "runner", "node launcher", "rank program", "build")
BELOW = ("reaper", "guard", "launcher", "runner", "node launcher", "rank program", "build", "ninja", "script")
"""What zlaunch ends when it is stopped."""
PHASES = ("planning", "asking", "compiling", "starting", "training", "ending")
LATEST = {"planning": 0.6, "starting": 4.0, "ending": 1.0}
"""Phase → the most seconds after its begin; the others last until the fault."""

WITHIN_SECONDS = 10.0
"""Until nothing may be left."""

AT_ONCE = 0.3
"""Two faults within so many seconds may arrive in either order."""

HANDLES_WITHIN = 0.02
"""Seconds from the moment when a program has received a signal until it handles it."""

Outcomes = set[tuple[int, str, str]]
"""What may come of a fault: exit status, how the job ended, code of the verdict."""


@dataclass(frozen=True)
class Blow:
    """What a fault was done to, and when."""

    target: str
    number: signal.Signals | None = None
    moment: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        return self.target if self.number is None else f"{self.number.name} to {self.target}"


@dataclass(frozen=True)
class Scene:
    """A job that harm is done to."""

    job: Job
    phase: str
    chance: random.Random
    undo: ExitStack

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.job.folder / "r"

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Find the processes of the job by their kind."""
        found: dict[str, list[psutil.Process]] = collections.defaultdict(list)
        for process in self.job.left():
            kinds = [kind for kind, word in PROGRAMS.items() if runs(process, word)]
            kind = next((kind for kind in kinds if kind != "compiler" or self.phase == "compiling"), None)
            if kind is not None:
                found[kind].append(process)
        return found


@dataclass(frozen=True)
class Fault:
    """One thing that is done to a job."""

    strike: Callable[[Scene], Blow]
    prepare: Callable[[Path, ExitStack], tuple[str, ...]] = lambda *_: ()
    """What is done before the job starts; the words before its own."""


def to_process(numbers: Sequence[signal.Signals], *kinds: str) -> Fault:
    """Send a signal to a process of one of these kinds; of any if none is named."""

    def strike(scene: Scene) -> Blow:
        number, found = scene.chance.choice(numbers), scene.processes()
        targets = sorted(kind for kind in found if not kinds or kind in kinds)
        if not targets:
            return Blow("nothing", number)
        if number == signal.SIGKILL and not kinds:
            targets.append(ALL)
        target = scene.chance.choice(targets)
        if target == ALL:
            # As `pkill -9 -f` finds them: the reaper has another name.
            victims = list(chain.from_iterable(found[kind] for kind in OURS if kind != "reaper"))
        elif target == "compiler":
            victims = found[target]  # ninja waits for the others
        else:
            victims = [scene.chance.choice(found[target])]
        blow = Blow(target, number)
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.send_signal(number)
        return blow

    return Fault(strike)


def command(*argv: object, check: bool = True) -> None:
    """Run a program of the system."""
    subprocess.run([str(word) for word in argv], check=check)


def delete(scene: Scene) -> Blow:
    """Delete the run directory; what is written meanwhile makes it fail."""
    while scene.run.exists():
        shutil.rmtree(scene.run, ignore_errors=True)
    return Blow("run directory deleted")


def move(scene: Scene) -> Blow:
    """Give the run directory another name."""
    scene.run.rename(scene.run.with_name("moved"))
    return Blow("run directory moved")


def make_immutable(scene: Scene) -> Blow:
    """Let nobody change the run directory and what is in it."""
    scene.undo.callback(command, "chattr", "-R", "-i", scene.run)
    command("chattr", "-R", "-f", "+i", scene.run, check=False)  # what is written meanwhile may go
    return Blow("run directory immutable")


def mount_read_only(scene: Scene) -> Blow:
    """Mount the run directory over itself, so that no file in it can be opened for writing."""
    command("mount", "--bind", scene.run, scene.run)
    scene.undo.callback(command, "umount", "-l", scene.run)
    command("mount", "-o", "remount,ro,bind", scene.run)
    return Blow("run directory read-only")


def fill(scene: Scene) -> Blow:
    """Fill the disk of the run directory."""
    with (scene.run / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 16, 1 << 12, 1):
            while file.write(b"x" * size) == size:
                pass
    return Blow("run directory's disk full")


def small_disk(folder: Path, undo: ExitStack) -> tuple[str, ...]:
    """Give the run directory a disk of 4 MiB."""
    (folder / "r").mkdir()
    command("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder / "r")
    undo.callback(command, "umount", "-l", folder / "r")
    return ()


def kill_a_stranger(_: Scene) -> Blow:
    """Have the kernel kill a process of another control group for want of memory."""
    with memory_groups(32 << 20) as (group,):
        eat = "x = []\nwhile True: x.append(bytes(range(256)) * 4096)"
        enter = f'echo $$ >{group}/cgroup.procs && exec "$@"'
        eater = subprocess.run(["sh", "-c", enter, "-", sys.executable, "-c", eat], check=False)
        assert eater.returncode == -signal.SIGKILL
    return Blow("stranger out of memory")


def group_of_processes(folder: Path, undo: ExitStack) -> tuple[str, ...]:
    """Put the job into a control group that can limit its processes; `folder/group` leads to it."""
    above = Path("/sys/fs/cgroup/pids")
    if not above.exists():
        above = above.parent
        (above / "cgroup.subtree_control").write_text("+pids")
    group = above / f"zlaunch-{uuid.uuid4().hex}"
    group.mkdir()
    undo.callback(group.rmdir)
    (folder / "group").symlink_to(group)
    return ("sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "-")


def limit_processes(scene: Scene) -> Blow:
    """Let the job start only few processes more, as soon as it has a rank."""
    group = scene.job.folder / "group"
    while scene.job.process.poll() is None and not scene.processes()["rank program"]:
        time.sleep(0.02)
    most = int((group / "pids.current").read_text()) + scene.chance.randrange(3)
    (group / "pids.max").write_text(str(most))
    while scene.job.process.poll() is None and (group / "pids.events").read_text() == "max 0\n":
        if len(scene.processes()["daemon"]) == NUM_RANKS:
            (group / "pids.max").write_text("max")
            return Blow("no more processes than all")
        time.sleep(0.02)
    return Blow("no more processes")


def stop(scene: Scene) -> Blow:
    """Ask zlaunch to stop, at once: looking through all processes takes longer than some of its cleanups."""
    number = scene.chance.choice(STOPS)
    if scene.job.process.poll() is not None:
        return Blow("nothing", number)
    blow = Blow("zlaunch", number)
    scene.job.process.send_signal(number)
    return blow


def await_cleanup(scene: Scene, below: Sequence[psutil.Process], first: Blow) -> None:
    """Wait until zlaunch has received a signal, and mostly until a process that was below it has ended."""
    zlaunch, awaited = scene.job.process, scene.chance.choice([None, *below])
    while zlaunch.poll() is None and _is_pending(zlaunch.pid, first):
        time.sleep(0.005)
    time.sleep(HANDLES_WITHIN)
    while zlaunch.poll() is None and awaited is not None and is_alive(awaited):
        time.sleep(0.005)


def _is_pending(pid: int, blow: Blow) -> bool:
    masks = re.findall(r"(?m)^(?:SigPnd|ShdPnd):\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return any(int(mask, 16) >> (blow.number or 0) - 1 & 1 for mask in masks)


ANY_SIGNAL = to_process([*STOPS, signal.SIGKILL, signal.SIGKILL])
STOP = Fault(stop)
DIRECTORY = (
    *(Fault(delete), Fault(move), Fault(make_immutable), Fault(mount_read_only)),
    Fault(fill, small_disk),
)
STRANGER = (Fault(kill_a_stranger),)
ENDS = (STOP, to_process(KILLS, "script"), to_process(KILLS, "rank program"))
EVERYWHERE = ("planning", "asking", *("compiling",) * 2, *("starting",) * 2, *("training",) * 4, "ending")


@dataclass(frozen=True)
class Kind:
    """A kind of trial: where, when and what. Each is chosen by chance."""

    name: str
    share: int
    """Of a hundred trials."""
    faults: Sequence[Sequence[Fault]]
    """One fault of each is done."""
    work: Sequence[str]
    phases: Sequence[str]
    gap: tuple[float, float] = (0.0, 0.0)
    """Seconds between two faults."""
    is_in_cleanup: bool = False
    """Whether the second fault is done as soon as the job is being ended after the first."""


MOSTLY_SLEEPS = ("sleeps", "sleeps", "sleeps", "reduces")
LOCAL = ("sleeps", "reduces", "ignores")
TRAINING = ("training",)
SOON = (0.0, 1.0)

KINDS = (
    Kind("a signal", 20, [[ANY_SIGNAL]], MOSTLY_SLEEPS, EVERYWHERE),
    Kind("two signals at once", 15, [[ANY_SIGNAL], [ANY_SIGNAL]], MOSTLY_SLEEPS, EVERYWHERE),
    Kind(
        "two signals within a second",
        share=10,
        faults=[[ANY_SIGNAL], [ANY_SIGNAL]],
        work=("sleeps",),
        phases=EVERYWHERE,
        gap=(AT_ONCE, 1.0),
    ),
    Kind(
        "a second stop during the cleanup",
        share=12,
        faults=[[STOP], [STOP]],
        work=("ignores", "ignores", "sleeps", "reduces"),
        phases=("compiling", *TRAINING * 5),
        is_in_cleanup=True,
    ),
    Kind(
        "a stop of a rank program in a collective",
        share=13,
        faults=[[to_process(STOPS, "rank program")]],
        work=("reduces", "reduces on hosts"),
        phases=TRAINING,
    ),
    Kind(
        "the run directory",
        share=8,
        faults=[DIRECTORY],
        work=("sleeps", "reduces", "reduces on hosts"),
        phases=("training", "training", "ending"),
    ),
    Kind(
        "the run directory, then a signal",
        share=10,
        faults=[DIRECTORY, (ANY_SIGNAL, *ENDS)],
        work=("sleeps", "reduces"),
        phases=TRAINING,
        gap=SOON,
    ),
    Kind("an out-of-memory kill of a stranger, then a signal", 5, [STRANGER, ENDS], LOCAL, TRAINING, SOON),
    Kind("a signal, then an out-of-memory kill of a stranger", 4, [ENDS, STRANGER], LOCAL, TRAINING, SOON),
    Kind(
        "no more processes",
        share=3,
        faults=[[Fault(limit_processes, group_of_processes)]],
        work=("sleeps",),
        phases=("planning",),
    ),
)


@dataclass(frozen=True)
class Trial:
    """What was chosen before the job starts."""

    number: int
    kind: Kind
    launcher: str
    work: str
    phase: str
    faults: tuple[Fault, ...]
    seed: int


@dataclass(frozen=True)
class Result:
    """What came of a trial."""

    trial: Trial
    blows: tuple[Blow, ...]
    left: int
    seconds: float
    status: int
    how: str
    code: str
    wrong: str = ""

    def __str__(self) -> str:
        """Show it on one line."""
        trial, (first, *others) = self.trial, self.blows
        done = [str(first), *(f"{blow} {blow.moment - first.moment:.1f} s later" for blow in others)]
        return (
            f"{trial.number:3} {trial.launcher:9} {trial.work:16} {trial.phase:9} {', '.join(done)} → "
            f"{self.status:3} {self.how:8} {self.code:18} {self.left} left, {self.seconds:.1f} s {self.wrong}"
        )


def trials(count: int, seed: int) -> Iterator[Trial]:
    """Choose kinds, each as often as its share says, and what else is left to chance."""
    chance = random.Random(seed)
    for number in range(count):
        kind = chance.choices(KINDS, [kind.share for kind in KINDS])[0]
        yield Trial(
            number,
            kind,
            chance.choice(LAUNCHERS),
            work := chance.choice(kind.work),
            _possible(chance.choice(kind.phases), work),
            tuple(map(chance.choice, kind.faults)),
            chance.randrange(1 << 30),
        )


def _possible(phase: str, work: str) -> str:
    """Torch is imported in ranks alone: no op is compiled for these, and nobody asks them."""
    if work != "sleeps" and phase in {"asking", "compiling"}:
        return "training"
    return phase


class MarkedJob(Job):
    """A job whose processes on other hosts are found by its folder: ssh does not hand the mark on."""

    def left(self) -> list[psutil.Process]:
        """List what runs of the job, wherever it went."""
        found, folder = {process.pid: process for process in super().left()}, str(self.folder)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if folder in " ".join([process.cwd(), *process.cmdline()]):
                    found[process.pid] = process
        return list(found.values())

    def buffers(self) -> list[Path]:
        """List what lies of the job in shared memory."""
        found, words = [], os.fsencode(self.folder)
        for file in Path(BUFFERS).parent.glob(f"{Path(BUFFERS).name}*"):
            with contextlib.suppress(OSError):
                if file.stat().st_size == len(words) and file.read_bytes() == words:
                    found.append(file)
        return found


def run(trial: Trial, bed: Hosts | None, keep: Path | None) -> Result:
    """Start a job, do harm to it, and judge what comes of it."""
    chance = random.Random(trial.seed)
    with tempfile.TemporaryDirectory(prefix="zlaunch-fault-") as name, ExitStack() as undo:
        folder = Path(name)
        job = MarkedJob(folder, _words(trial, bed), _bed(trial, folder, bed, undo))
        undo.callback(job.end)
        scene = Scene(job, trial.phase, chance, undo)
        _await(trial, job)
        time.sleep(chance.uniform(0, LATEST.get(trial.phase, 0.5)))
        blows: list[Blow] = []
        found = scene.processes()
        below = list(chain.from_iterable(found[kind] for kind in BELOW))
        for fault in trial.faults:
            if blows and trial.kind.is_in_cleanup:
                await_cleanup(scene, below, blows[0])
            elif blows:
                time.sleep(chance.uniform(*trial.kind.gap))
            blows.append(fault.strike(scene))
            job.dies_now()
        if not any(_expected(trial, blow) for blow in blows):  # it goes on
            (folder / "end").touch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(120)
            job.dies_now()
        status, left, seconds = job.await_end(WITHIN_SECONDS)
        litter = [*folder.glob("tmp/*"), *folder.glob("ops/*/lock")]
        result = _judge(trial, tuple(blows), job, (status, left + len(litter), seconds))
        if keep is not None and result.wrong:
            files = shutil.ignore_patterns("filler", "ops", "cache")
            shutil.copytree(folder, keep / str(trial.number), ignore=files, dirs_exist_ok=True)
        return result


def _words(trial: Trial, bed: Hosts | None) -> list[str]:
    words = ["train", "job.py", "--launcher", trial.launcher, "--run-dir", "r", "--json"]
    if trial.phase != "asking":
        words.append("--no-ask")
    if trial.work != "reduces on hosts":
        return [*words, "--gpus", str(NUM_RANKS)]
    assert bed is not None
    return [*words, "--hostfile", str(bed.hostfile)]


def _bed(trial: Trial, folder: Path, bed: Hosts | None, undo: ExitStack) -> Bed:
    """Write what the job needs into its folder."""
    (folder / "tmp").mkdir()
    (folder / "compiler").write_text(COMPILER)
    (folder / "compiler").chmod(0o755)
    unsure = UNSURE if trial.phase == "asking" else ""
    (folder / "job.py").write_text(unsure + SCRIPTS[trial.work])
    # A cache that torch keeps for all programs of a user, and may make when it logs an exception.
    environment = {"TMPDIR": str(folder / "tmp"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    if trial.phase == "compiling":
        environment |= {"TORCH_EXTENSIONS_DIR": str(folder / "ops"), "CXX": str(folder / "compiler")}
        environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "PLACE": str(folder)}
    if trial.work == "reduces on hosts":
        assert bed is not None
        environment |= bed.environment()
    before = [fault.prepare(folder, undo) for fault in trial.faults]
    return Bed(tuple(chain.from_iterable(before)), env=environment)


def _await(trial: Trial, job: Job) -> None:
    """Wait for a phase."""
    folder = job.folder
    if trial.phase in {"asking", "compiling"}:
        job.await_file(folder / {"asking": "asked", "compiling": "compiles"}[trial.phase])
    elif trial.phase == "starting":
        job.await_file(folder / "r" / "logs" / "launcher.log")
    elif trial.phase in {"training", "ending"}:
        job.await_ready(num_ranks=NUM_RANKS)
    if trial.phase == "ending":
        (folder / "end").touch()


def _judge(trial: Trial, blows: tuple[Blow, ...], job: Job, ended: tuple[int, int, float]) -> Result:
    """Compare what came of a trial with what may come of it."""
    status, left, seconds = ended
    ending, printed = job.ending(), _printed(job.folder)
    verdict = ending.get("verdict") or {}
    how, code = ending.get("how", "-"), verdict.get("code", "-")
    is_killed = any(map(_is_kill, blows))
    has_begun = bool(ending) or any(job.folder.glob("*/job.json"))
    if not ending and printed:  # its directory is gone, or cannot be written
        how, code = printed["state"], _code(printed["cause"])
    elif not ending and has_begun:  # nothing ran that could record it
        how, code = _shown(job.folder)
    right = _right(trial, blows)
    if (
        trial.phase == "starting"
        and blows[0].target == "rank program"
        and not any(job.folder.glob("r/ranks/*"))
    ):
        right = right.union(UNRECORDED, *(_expected(trial, blow) for blow in blows))
    if how == "-":
        right = {(number, "-", "-") for number, *_ in right}
    is_stumbled = trial.phase == "ending" and (status, how) == (0, "stumbled")
    wrong = ""
    if left:
        wrong = f"left: {', '.join(' '.join(process.cmdline()) for process in job.left())}"
    elif seconds > WITHIN_SECONDS:
        wrong = "late"
    elif not is_killed and {status} != {status, *_statuses(ending), *_statuses(printed)}:
        wrong = f"recorded {_statuses(ending)}, printed {_statuses(printed)}"
    elif (status, how, code) not in right and not is_stumbled:
        wrong = f"expected {' or '.join(map(str, sorted(right)))}"
    elif "Traceback" in job.said() and (has_begun or ", in main\n" in job.said()):
        # Before, it came while Python itself started, when zlaunch cannot heed it.
        wrong = "a traceback"
    return Result(trial, blows, left, seconds, status, how, code, wrong)


def _statuses(record: Mapping[str, Any]) -> list[int]:
    return [record["exit_status"]] if "exit_status" in record else []


def _printed(folder: Path) -> dict[str, Any]:
    """Read the JSON that zlaunch has printed; empty if it has not."""
    lines = (folder / "out").read_text("utf-8", "replace").splitlines()
    if not lines or not lines[-1].startswith("{"):
        return {}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _shown(folder: Path) -> tuple[str, str]:
    """Ask `zlaunch runs` for the state and the verdict of the run."""
    shown = zlaunch("runs", "why", "r", "--json", cwd=folder)
    if shown.status != 0:
        return shown.err, "-"
    run = json.loads(shown.out)
    return f"shown as {run['state']}", run["verdict"]["code"]


CAUSES = {
    "stopped": "stopped the job with SIG",
    "killed": "was killed from outside (SIGKILL); by whom is unknown",
    "ended-by-signal": "was ended from outside (SIG",
    "rank-lost": "and its wrapper process are gone",
    "launcher-killed": "the launcher was killed from outside (SIGKILL",
    "launcher-failed": "the launcher (torchrun|deepspeed) failed",
    "connection-lost": "lost its connection",
}
"""Code of a verdict → words of its cause, which alone is in the JSON."""


def _code(cause: str | None) -> str:
    if cause is None:
        return "-"
    return next((code for code, words in CAUSES.items() if re.search(words, cause)), cause)


FINISHED = (0, "finished", "-")
BUILD_FAILED = (69, "failed", "op-build-failed")
KILLED_LAUNCHER = (137, "failed", "launcher-killed")
KILLED_ZLAUNCH = (137, "lost", "zlaunch-killed")
LOST = (137, "shown as lost", "lost-without-verdict")
"""Zlaunch was killed, and no program below it ran that could record it."""
LOST_AFTER_BUILD = (137, "shown as lost", "op-build-failed")
KILLED = {
    "zlaunch": KILLED_ZLAUNCH,
    ALL: KILLED_ZLAUNCH,
    "rank program": (137, "failed", "rank-lost"),
    "script": (137, "failed", "killed"),
}
"""Kind of process → what comes of its SIGKILL; of all others, a launcher that was killed."""

UNRECORDED: Outcomes = {(1, "failed", "launcher-failed")}
"""What comes of a signal that a rank program gets while Python itself starts, before it can heed it."""

OTHERS: Mapping[str, Outcomes] = {
    "no more processes": {(1, "failed", "too-many-processes")},
}
"""Faults that are no signals, and end the job."""


def _right(trial: Trial, blows: Sequence[Blow]) -> Outcomes:
    """Return what may come of a trial: of the first fault, or of one that ended the job before it could."""
    outcomes = [(blow, expected) for blow in blows if (expected := _expected(trial, blow))]
    if not outcomes:
        return {FINISHED}
    (first, right), *later = outcomes
    for blow, expected in later:
        are_at_once = blow.moment - first.moment < AT_ONCE and not trial.kind.is_in_cleanup
        if are_at_once or _forestalls(blow, first):
            right = right | expected
        if BUILD_FAILED in right and KILLED_ZLAUNCH in right:
            right = right | {LOST_AFTER_BUILD}
        if blow.number and _is_stop(blow) and not _is_stop(first):  # nothing is restarted, whatever the cause
            right = right | {(128 + blow.number, "stopped", code) for _, _, code in right}
    if blows[0].target == "run directory immutable" and first.target in {"rank program", "script"}:
        # Nobody can record or print how it ended: its logs are immutable, too.
        assert first.number is not None
        right = right | {(status, "failed", "launcher-failed") for status in (1, 256 - first.number)}
    if trial.phase == "ending":  # it came too late
        right = right | {FINISHED}
    if any(map(_is_kill, blows)):  # also after the end was recorded
        right = right | {(137, how, code) for _, how, code in right}
    return right


def _is_stop(blow: Blow) -> bool:
    return blow.target == "zlaunch" and blow.number in STOPS


def _is_kill(blow: Blow) -> bool:
    return blow.target in {"zlaunch", ALL} and blow.number == signal.SIGKILL


def _forestalls(blow: Blow, first: Blow) -> bool:
    """Whether a fault decides how a job ends that was already ending."""
    if blow.number != signal.SIGKILL:
        return False
    return _is_kill(blow) or (first.target != "zlaunch" and blow.target not in KILLED)


def _expected(trial: Trial, blow: Blow) -> Outcomes:
    """Return what may come of a fault; nothing if the job goes on."""
    target, number = blow.target, blow.number
    if number is None:
        return OTHERS.get(target, set())
    is_kill = number == signal.SIGKILL
    # The job goes on if zlaunch cannot learn the arguments of a script.
    is_unanswered = trial.phase == "asking" and target in {"script", "reaper"} and is_kill
    if target in {"daemon", "nothing"} or is_unanswered:
        return set()
    if is_kill:
        if trial.phase == "compiling" and target not in {"zlaunch", ALL}:
            return {BUILD_FAILED}
        if trial.phase in {"starting", "ending"} and target in {"zlaunch", ALL}:
            return {KILLED_ZLAUNCH, LOST}
        return {KILLED.get(target, KILLED_LAUNCHER)}
    if target in {"ninja", "compiler"}:
        return {BUILD_FAILED}
    stops: Outcomes = {(128 + number, "stopped", "stopped")}
    if target == "script":
        by_itself = {(128 + number, "failed", "ended-by-signal")}
        return by_itself | stops if number == signal.SIGINT else by_itself
    if target == "node launcher" and number == signal.SIGHUP:
        return {KILLED_LAUNCHER}  # DeepSpeed's runner does not say what ended it
    return stops


def tables(results: Sequence[Result]) -> str:
    """Count the trials by their kind, and the signals by kind of process."""
    lines = ["| trial | trials | left after 10 s | wrong |", "|---|---|---|---|"]
    for kind in KINDS:
        here = [result for result in results if result.trial.kind is kind]
        wrong = sum(bool(result.wrong) for result in here)
        lines.append(f"| {kind.name} | {len(here)} | {sum(result.left for result in here)} | {wrong} |")
    signals = (*STOPS, signal.SIGKILL)
    lines += [
        "",
        f"| process | {' | '.join(one.name for one in signals)} |",
        f"|{'---|' * (len(signals) + 1)}",
    ]
    counts = collections.Counter((blow.target, blow.number) for result in results for blow in result.blows)
    for target in (*PROGRAMS, ALL, "nothing"):
        cells = [counts[target, number] for number in signals]
        if any(cells):
            lines.append(f"| {' | '.join(map(str, [target, *cells]))} |")
    others = [
        f"{number} {target}" for (target, sent), number in sorted(counts.items(), key=str) if sent is None
    ]
    phases = collections.Counter(result.trial.phase for result in results)
    second = [all(map(_is_stop, result.blows)) for result in results if result.trial.kind.is_in_cleanup]
    slowest = max(result.seconds for result in results)
    return "\n".join(
        [
            *(*lines, ""),
            f"Other faults: {', '.join(others)}.",
            f"Phases: {', '.join(f'{phases[phase]} {phase}' for phase in PHASES)}.",
            f"Second stops: {len(second)}, of which {sum(second)} came during the cleanup.",
            f"The longest cleanup took {slowest:.1f} s.",
        ]
    )


def main() -> None:
    """Run the trials, and print each that went wrong and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of trials to repeat")
    parser.add_argument("--keep", type=Path, help="where to copy the folders of trials that went wrong")
    arguments = parser.parse_args()
    chosen = [
        trial
        for trial in trials(arguments.trials, arguments.seed)
        if not arguments.only or trial.number in arguments.only
    ]
    # Started in the background, or by nohup, it would have all jobs ignore these.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    results = []
    with ExitStack() as undo:
        bed = None
        if any(trial.work == "reduces on hosts" for trial in chosen):
            bed = undo.enter_context(hosts(Path(undo.enter_context(tempfile.TemporaryDirectory()))))
        pool = undo.enter_context(concurrent.futures.ThreadPoolExecutor(arguments.workers))
        for result in pool.map(partial(run, bed=bed, keep=arguments.keep), chosen):
            results.append(result)
            print(result, flush=True)
    print(tables(results))
    sys.exit(any(result.wrong for result in results))


if __name__ == "__main__":
    main()
