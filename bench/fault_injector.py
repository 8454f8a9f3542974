"""Inject random faults into real jobs, and check what is left and what is recorded.

    python -m bench.fault_injector [--trials N] [--seed N] [--workers N]

Each trial starts a job of two ranks, waits for a random phase and a random time, and sends a random signal to
one random process of the job, or to all programs of zlaunch at once. Then it checks that no process, lock,
buffer or temporary directory is left after 10 s, that the exit status and the recorded verdict are right, and
that both agree. The ranks start a daemon in a session of its own.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import psutil

from tests.deaths.bed import Bed, Job, runs
from tests.launchers import LAUNCHERS
from tests.running import zlaunch

SCRIPT = """
import os, pathlib, subprocess, sys, time
subprocess.Popen(["setsid", "sleep", "1000"])
print("ready", flush=True)
pathlib.Path("asked" if "ZLAUNCH_RUN_DIR" not in os.environ else "trains").touch()
while not os.path.exists("end"):
    time.sleep(0.05)
"""
UNSURE = "from transformers import HfArgumentParser  # so that zlaunch asks\n"
COMPILER = """#!/bin/sh
case " $* " in *" -c "*) touch "$PLACE/compiles"; exec sleep 1000;; *) exec c++ "$@";; esac
"""

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
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
PHASES = ("planning", "asking", "compiling", "starting", "training", "ending")
LATEST = {"planning": 0.6, "starting": 4.0, "ending": 1.0}
"""Phase → the most seconds after its begin; the others last until the fault."""


@dataclass(frozen=True)
class Trial:
    """One fault, chosen before the job starts."""

    number: int
    launcher: str
    phase: str
    signal: signal.Signals
    seed: int


@dataclass(frozen=True)
class Result:
    """What came of a trial."""

    trial: Trial
    target: str
    left: int
    seconds: float
    status: int
    how: str
    code: str
    wrong: str

    def __str__(self) -> str:
        """Show it on one line."""
        one = self.trial
        return (
            f"{one.number:3} {one.launcher:9} {one.phase:9} {one.signal.name:7} {self.target:15} → "
            f"{self.status:3} {self.how:8} {self.code:18} {self.left} left, {self.seconds:.1f} s {self.wrong}"
        )


def trials(count: int, seed: int) -> Iterator[Trial]:
    """Choose faults."""
    chance = random.Random(seed)
    for number in range(count):
        yield Trial(
            number,
            chance.choice(LAUNCHERS),
            chance.choices(PHASES, weights=(1, 1, 2, 2, 4, 2))[0],
            chance.choice([*STOPS, signal.SIGKILL, signal.SIGKILL]),
            chance.randrange(1 << 30),
        )


def run(trial: Trial) -> Result:
    """Start a job, do harm to it, and judge what comes of it."""
    chance = random.Random(trial.seed)
    with tempfile.TemporaryDirectory(prefix="zlaunch-fault-") as name, contextlib.ExitStack() as after:
        folder = Path(name)
        (folder / "tmp").mkdir()
        (folder / "compiler").write_text(COMPILER)
        (folder / "compiler").chmod(0o755)
        (folder / "job.py").write_text((UNSURE if trial.phase == "asking" else "") + SCRIPT)
        environment = {"TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": str(folder / "cache")}
        if trial.phase == "compiling":
            environment |= {"TORCH_EXTENSIONS_DIR": str(folder / "ops"), "CXX": str(folder / "compiler")}
            environment["PLACE"] = name
        else:
            del environment["XDG_CACHE_HOME"]
        ask = () if trial.phase == "asking" else ("--no-ask",)
        words = ["train", "job.py", *ask, "--gpus", "2", "--launcher", trial.launcher, "--run-dir", "r"]
        job = Job(folder, words, Bed(env=environment))
        after.callback(job.end)
        _await(trial, job)
        time.sleep(chance.uniform(0, LATEST.get(trial.phase, 0.5)))
        target = _harm(trial, job, chance)
        if _has_no_effect(trial, target):
            (folder / "end").touch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(120)
            job.moment = time.time()
        status, left, seconds = job.await_end(10.0)
        ending = job.ending()
        verdict = ending.get("verdict") or {}
        litter = [*folder.glob("tmp/zlaunch-*"), *folder.glob("ops/*/lock")]
        result = Result(
            trial,
            target,
            left + len(litter),
            seconds,
            status,
            ending.get("how", "-"),
            verdict.get("code", "-"),
            "",
        )
        has_begun = (folder / "r" / "job.json").exists()
        if has_begun and not ending:  # nothing ran that could record it
            result = replace(result, how=f"shown as {_shown(folder)}")
        wrong = _judge(result, has_begun, ending) or ("" if "Traceback" not in job.said() else "a traceback")
        if not has_begun and "Traceback" in job.said() and ", in main\n" not in job.said():
            wrong = ""  # it came while Python itself started, before zlaunch can heed it
        return replace(result, wrong=wrong)


def _await(trial: Trial, job: Job) -> None:
    """Wait for a phase."""
    folder = job.folder
    if trial.phase in {"asking", "compiling"}:
        job.await_file(folder / {"asking": "asked", "compiling": "compiles"}[trial.phase])
    elif trial.phase == "starting":
        job.await_file(folder / "r" / "logs" / "launcher.log")
    elif trial.phase in {"training", "ending"}:
        job.await_ready(num_ranks=2)
    if trial.phase == "ending":
        (folder / "end").touch()


def _harm(trial: Trial, job: Job, chance: random.Random) -> str:
    """Send the signal to a process of a random kind; return the kind."""
    found: dict[str, list[psutil.Process]] = collections.defaultdict(list)
    for process in job.left():
        kinds = [kind for kind, word in PROGRAMS.items() if runs(process, word)]
        kind = next((kind for kind in kinds if kind != "compiler" or trial.phase == "compiling"), None)
        if kind is not None:
            found[kind].append(process)
    if not found:
        return "nothing"
    targets = sorted(found)
    if trial.signal == signal.SIGKILL:
        targets.append(ALL)
    target = chance.choice(targets)
    if target == ALL:
        # As `pkill -9 -f` finds them: the reaper has another name.
        victims = list(chain.from_iterable(found.get(kind, []) for kind in OURS if kind != "reaper"))
    else:
        victims = [chance.choice(found[target])]
    if target == "compiler":
        victims = found[target]  # ninja waits for the others
    job.dies_now()
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(trial.signal)
    return target


def _has_no_effect(trial: Trial, target: str) -> bool:
    """Whether the job goes on, as it does if zlaunch cannot learn the arguments of a script."""
    is_unanswered = trial.phase == "asking" and target in {"script", "reaper"}
    return target in {"daemon", "nothing"} or (is_unanswered and trial.signal == signal.SIGKILL)


def _shown(folder: Path) -> str:
    """Ask `zlaunch runs` for the state of the run."""
    shown = zlaunch("runs", "show", "r", "--json", cwd=folder)
    return str(json.loads(shown.out)["state"]) if shown.status == 0 else shown.err


def _judge(result: Result, has_begun: bool, ending: Mapping[str, object]) -> str:
    """Say what is wrong; empty if nothing is."""
    trial, target = result.trial, result.target
    if result.left:
        return f"{result.left} left"
    is_killed = target in {"zlaunch", ALL} and trial.signal == signal.SIGKILL
    if has_begun and not is_killed and ending.get("exit_status") != result.status:
        return f"recorded {ending.get('exit_status')}"
    right = _expected(trial, target)
    if not has_begun:  # nothing is recorded of it
        right = {(status, "-", "-") for status, *_ in right}
    if is_killed and trial.phase == "starting":
        right |= {(137, "shown as lost", "-")}
    if trial.phase in {"ending", "starting"} or _has_no_effect(trial, target):
        right |= {(0, "finished", "-")}  # it came too late, or did not matter
    got = (result.status, result.how, result.code)
    if got in right or (trial.phase == "ending" and result.how == "stumbled"):
        return ""
    return f"expected {' or '.join(map(str, sorted(right)))}"


KILLED_LAUNCHER = (137, "failed", "launcher-killed")
KILLED = {
    "zlaunch": (137, "lost", "zlaunch-killed"),
    ALL: (137, "lost", "zlaunch-killed"),
    "rank program": (137, "failed", "rank-lost"),
    "script": (137, "failed", "killed"),
}
"""Kind of process → what comes of its SIGKILL; of all others, a launcher that was killed."""


def _expected(trial: Trial, target: str) -> set[tuple[int, str, str]]:
    """Return what may come of a fault: exit status, how it ended, code of the verdict."""
    number, is_kill = 128 + trial.signal, trial.signal == signal.SIGKILL
    stops = {(number, "stopped", "stopped")}
    if is_kill and trial.phase == "compiling" and target not in {"zlaunch", ALL}:
        return {(69, "failed", "op-build-failed")}
    if is_kill:
        return {KILLED.get(target, KILLED_LAUNCHER)}
    if target in {"ninja", "compiler"}:
        return {(69, "failed", "op-build-failed")}
    if target == "script":
        by_itself = {(number, "failed", "ended-by-signal")}
        return by_itself | stops if trial.signal == signal.SIGINT else by_itself
    if target == "node launcher" and trial.signal == signal.SIGHUP:
        return {KILLED_LAUNCHER}  # DeepSpeed's runner does not say what ended it
    return stops


def table(results: list[Result]) -> str:
    """Count the trials by kind of process and signal."""
    signals = (*STOPS, signal.SIGKILL)
    lines = [
        f"| process | {' | '.join(one.name for one in signals)} | left after 10 s | wrong |",
        f"|{'---|' * (len(signals) + 3)}",
    ]
    for target in (*PROGRAMS, ALL, "nothing"):
        here = [one for one in results if one.target == target]
        if here:
            counts = [sum(one.trial.signal == number for one in here) for number in signals]
            cells = [target, *counts, sum(one.left for one in here), sum(bool(one.wrong) for one in here)]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    phases = collections.Counter(one.trial.phase for one in results)
    shown = ", ".join(f"{phases[phase]} {phase}" for phase in PHASES)
    slowest = max(one.seconds for one in results)
    return "\n".join([*lines, "", f"Phases: {shown}. The longest cleanup took {slowest:.1f} s."])


def main() -> None:
    """Run the trials, and print each that went wrong and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of trials to repeat")
    arguments = parser.parse_args()
    chosen = [
        one
        for one in trials(arguments.trials, arguments.seed)
        if not arguments.only or one.number in arguments.only
    ]
    # Started in the background, or by nohup, it would have all jobs ignore these.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    results = []
    with concurrent.futures.ThreadPoolExecutor(arguments.workers) as pool:
        for result in pool.map(run, chosen):
            results.append(result)
            print(result, flush=True)
    print(table(results))
    sys.exit(any(result.wrong for result in results))


if __name__ == "__main__":
    main()
