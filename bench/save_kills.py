"""Kill trainings while they save, and resume from what is left.

    python -m bench.save_kills [--kills N] [--seed N] [--only NAME…]

Two real ranks train with DeepSpeed on the CPU and save at each step. At a random moment during a save they
get SIGKILL: both at once, or one a while after the other, as if a launcher had ended it. Then a complete
checkpoint has to be there, zlaunch has to find the newest one, and the training that resumes from it has to
have the losses of one that was not killed.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from tests.running import ACTIVATED, ROOT, zlaunch
from zlaunch.checkpoint.find import LATEST, find, latest_tag
from zlaunch.checkpoint.summary import Summary, summarize
from zlaunch.resume.newest import newest_complete

STEPS, RANKS = 5, 2
FIRST, LAST = 2, 4
"""Saves during which a training is killed."""
PATIENCE = 300.0


def zero(stage: int, optimizer: str = "none", parameters: str = "none") -> dict[str, Any]:
    """Write the settings of ZeRO with offload."""
    section: dict[str, Any] = {"stage": stage}
    for name, device in (("offload_optimizer", optimizer), ("offload_param", parameters)):
        if device != "none":
            section[name] = {"device": device, "pin_memory": False}
    return section


@dataclass(frozen=True)
class Case:
    """One kind of training."""

    zero: dict[str, Any]
    program: str = "engine"
    in_memory: dict[str, Any] | None = None
    """With what it goes on after a conversion, where DeepSpeed cannot load its checkpoints."""

    @property
    def needs(self) -> list[str]:
        """What the process has to load from which its ranks are forked."""
        on_nvme = [] if self.in_memory is None else ["nvme"]
        return [self.program, *on_nvme]


CASES: Mapping[str, Case] = {
    "stage 1": Case(zero(1)),
    "stage 1, CPU": Case(zero(1, "cpu")),
    "stage 2": Case(zero(2)),
    "stage 2, CPU": Case(zero(2, "cpu")),
    "stage 3": Case(zero(3)),
    "stage 3, CPU": Case(zero(3, "cpu", "cpu")),
    "stage 3, NVMe": Case(zero(3, "nvme", "cpu"), in_memory=zero(3, "cpu", "cpu")),
    "Trainer, stage 2": Case(zero(2), "trainer"),
    "Trainer, stage 3": Case(zero(3), "trainer"),
}


class Host:
    """A process that has imported DeepSpeed, and forks ranks."""

    def __init__(self, *needs: str) -> None:
        """Start it, and wait until it has imported everything."""
        environment = {**os.environ, **ACTIVATED, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        argv = [sys.executable, "-m", "bench.save_kills_ranks", *needs]
        self._process = subprocess.Popen(
            argv, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or '"it has ended"')

    def _ask(self, question: object) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return self._answer()

    def start(self, **job: Any) -> list[int]:
        """Start the ranks of a job; return their process ids."""
        pids = self._ask(job)
        assert isinstance(pids, list), pids
        return pids

    def wait(self) -> list[int]:
        """Wait for the ranks of the job; return their exit statuses."""
        statuses: list[int] = self._ask("wait")
        return statuses

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def train(host: Host, folder: Path, case: Case, resume: Path | None = None) -> list[int]:
    """Start a training in a folder, from a checkpoint or the beginning."""
    universal = None if resume is None or case.in_memory is None else converted(resume)
    section = case.zero if universal is None or case.in_memory is None else case.in_memory
    drive = folder / "drive"
    drive.mkdir(parents=True, exist_ok=True)
    section = {
        name: {**one, "nvme_path": str(drive)} if isinstance(one, dict) and one["device"] == "nvme" else one
        for name, one in section.items()
    }
    return host.start(
        folder=str(folder),
        program=case.program,
        zero=section,
        steps=STEPS,
        resume=None if resume is None else str(universal or resume),
        universal=universal is not None,
    )


def converted(checkpoint: Path) -> Path:
    """Convert a checkpoint as a user would, so that it can be loaded into memory."""
    result = zlaunch("checkpoint", "reshard", checkpoint, "--offload", "cpu", cwd=checkpoint.parent)
    assert result.status == 0, result.err
    return checkpoint.with_name(f"{checkpoint.name}_universal")


def events(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Read what a rank has recorded: losses, and when saves began and ended."""
    with contextlib.suppress(OSError):
        lines = (folder / f"rank{rank}.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]
    return []


def losses(folder: Path) -> dict[tuple[int, int], str]:
    """Read the last loss of each step and rank, exactly."""
    found = {}
    for rank in range(RANKS):
        for event in events(folder, rank):
            if "loss" in event:
                found[rank, event["step"]] = event["loss"]
    return found


def has(folder: Path, rank: int, step: int, moment: str) -> bool:
    """Whether a rank has begun or ended to save a step."""
    return any(one.get("save") == moment and one["step"] == step for one in events(folder, rank))


def last_save_seconds(folder: Path) -> float:
    """Read how long the last whole save of a training took."""
    began, ended = (
        {one["step"]: one["at"] for one in events(folder, 0) if one.get("save") == moment}
        for moment in ("begins", "ends")
    )
    return float(ended[max(ended)] - began[max(ended)])


@dataclass(frozen=True)
class Moment:
    """When a training is killed; delays are in parts of the duration of a save."""

    step: int
    delay: float
    """From the begin of the save in rank 0 to the first kill."""
    later: float
    """From there to the kill of the other rank."""
    first: int
    """The rank that is killed first."""

    @classmethod
    def at_random(cls, chance: random.Random) -> "Moment":
        """Choose one; in half of them, both ranks are killed at once."""
        later = chance.uniform(0, 0.5) if chance.random() < 0.5 else 0.0
        return cls(chance.randint(FIRST, LAST), chance.uniform(0, 0.95), later, chance.randrange(RANKS))


def kill_during_save(pids: Sequence[int], folder: Path, moment: Moment) -> None:
    """Kill all ranks after rank 0 has begun to save a step."""
    wait_until(lambda: has(folder, 0, moment.step, "begins"))
    duration = last_save_seconds(folder)
    time.sleep(moment.delay * duration)
    kill(pids[moment.first])
    if moment.later:
        time.sleep(moment.later * duration)
    kill(pids[1 - moment.first])


def wait_until(happens: Callable[[], bool]) -> None:
    """Wait for something that a training does."""
    end = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < end, "a training does not go on"
        time.sleep(0.002)


def kill(pid: int) -> None:
    """Kill a rank, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def state_of_latest(folder: Path, found: Mapping[Path, Summary]) -> str:
    """Say what DeepSpeed would load by itself from the directory of the tags, or a Trainer's newest."""
    base = max(found, default=folder) if not (folder / LATEST).exists() else folder
    named = latest_tag(base)
    if not named:
        return "empty" if named == "" else "missing"
    one = found.get(base / named) or found.get(base)
    return "complete" if one is not None and not one.problems else "half-written"


@dataclass(frozen=True)
class Kill:
    """What came of one kill."""

    was_saving: bool
    problems: Mapping[str, Sequence[str]]
    """By the name of a checkpoint that is not complete."""
    latest: str
    resumed: int | None
    """Step of the newest complete checkpoint."""
    statuses: Sequence[int] = ()
    is_equal: bool = False
    difference: float = float("nan")
    """Largest difference of a loss, relative."""


def one_kill(
    host: Host, folder: Path, case: Case, reference: Path, attack: Callable[[Sequence[int], Path], None]
) -> Kill:
    """Kill one training, and go on; `attack` kills the ranks that save to a folder."""
    attack(train(host, folder, case), folder)
    host.wait()
    step = max(one["step"] for one in events(folder, 0) if one.get("save") == "begins")
    was_saving = not all(has(folder, rank, step, "ends") for rank in range(RANKS))
    saves = folder / "saves"
    found = {one.folder: summarize(one) for one in find(saves)}
    latest = state_of_latest(saves, found)
    newest = newest_complete(saves)
    problems = {
        path.name: [f"{problem.file.name}: {problem.message}" for problem in one.problems]
        for path, one in found.items()
        if one.problems
    }
    if newest is None or newest.step is None:
        return Kill(was_saving, problems, latest, None)
    for rank in range(RANKS):
        (folder / f"rank{rank}.jsonl").unlink()
    train(host, folder, case, newest.checkpoint.folder)
    statuses = host.wait()
    told, wanted = losses(folder), losses(reference)
    due = set(product(range(RANKS), range(newest.step + 1, STEPS + 1)))
    away = [
        abs(float.fromhex(told[key]) - float.fromhex(wanted[key])) / abs(float.fromhex(wanted[key]))
        for key in due & told.keys()
    ]
    is_equal = all(told.get(key) == wanted[key] for key in due)
    most = max(away, default=float("nan"))
    return Kill(was_saving, problems, latest, newest.step, statuses, is_equal, most)


def not_killed(host: Host, folder: Path, case: Case) -> Path:
    """Train to the end; return the folder."""
    train(host, folder, case)
    assert host.wait() == [0] * RANKS, (folder / "rank0.log").read_text("utf-8")[-2000:]
    return folder


def kills(case: Case, moments: Sequence[Moment], base: Path, host: Host) -> Iterator[Kill]:
    """Kill trainings of one case."""
    reference = not_killed(host, base / "reference", case)
    for number, moment in enumerate(moments):
        yield one_kill(host, base / str(number), case, reference, partial(kill_during_save, moment=moment))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=4, help="of each case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(CASES), metavar="NAME")
    arguments = parser.parse_args()
    print("| case | kills | during a save | half-written | `latest` names | lost | resumed | equal | most |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in arguments.only:
        chance = random.Random(f"{arguments.seed} {name}")
        moments = [Moment.at_random(chance) for _ in range(arguments.kills)]
        host = Host(*CASES[name].needs)
        try:
            with tempfile.TemporaryDirectory(prefix="zlaunch-kills-", ignore_cleanup_errors=True) as base:
                done = list(kills(CASES[name], moments, Path(base), host))
        finally:
            host.close()
        latest = [one.latest for one in done]
        named = ", ".join(f"{latest.count(one)} {one}" for one in dict.fromkeys(latest))
        cells = (
            len(done),
            sum(one.was_saving for one in done),
            sum(bool(one.problems) for one in done),
            named,
            sum(one.resumed is None for one in done),
            sum(one.resumed is not None and not any(one.statuses) for one in done),
            sum(one.is_equal for one in done),
            f"{max((one.difference for one in done), default=float('nan')):.2%}",
        )
        print(f"| {name} | {' | '.join(map(str, cells))} |", flush=True)
        for moment, one in zip(moments, done, strict=True):
            print(f"    {moment} {one}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
