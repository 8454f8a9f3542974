"""Kill trainings while they save, and go on from what is left.

    python -m bench.save_kills [--kills N] [--seed N] [--only NAME…]

Two real ranks train with DeepSpeed on the CPU and save at each step. Both are killed (SIGKILL) at a random
moment during a save. Then a complete checkpoint has to be there, and the training that goes on from the
newest one has to have the losses of one that was not killed.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.running import ACTIVATED, ROOT
from zlaunch.checkpoint.find import LATEST, CheckpointFolder, SavedBy, find, latest_tag
from zlaunch.checkpoint.verify import verify

STEPS, RANKS = 5, 2
FIRST, LAST = 2, 4
"""Saves during which a training is killed."""
MARGIN = 1.1
"""Kills are that much later than the end of the longest save, at most."""
PATIENCE = 120.0


def zero(stage: int, optimizer: str = "none", parameters: str = "none") -> dict[str, Any]:
    """Write the settings of ZeRO with offload."""
    section: dict[str, Any] = {"stage": stage}
    for name, device in (("offload_optimizer", optimizer), ("offload_param", parameters)):
        if device != "none":
            section[name] = {"device": device, "pin_memory": False}
    return section


CASES: Mapping[str, dict[str, Any]] = {
    "stage 1": zero(1),
    "stage 1, CPU": zero(1, "cpu"),
    "stage 2": zero(2),
    "stage 2, CPU": zero(2, "cpu"),
    "stage 3": zero(3),
    "stage 3, CPU": zero(3, "cpu", "cpu"),
    "stage 3, NVMe": zero(3, "nvme", "cpu"),
}
"""Name → the settings of ZeRO."""


class Host:
    """A process that has imported DeepSpeed, and forks ranks."""

    def __init__(self, *devices: str) -> None:
        """Start it, and wait until it has imported everything."""
        environment = {**os.environ, **ACTIVATED, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        argv = [sys.executable, "-m", "bench.save_kills_ranks", *devices]
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


def train(host: Host, folder: Path, case: str, resume: Path | None = None) -> list[int]:
    """Start a training in a folder, from a checkpoint or the beginning."""
    section = CASES[case]
    drive = folder / "drive"
    drive.mkdir(parents=True, exist_ok=True)
    section = {
        name: {**one, "nvme_path": str(drive)} if isinstance(one, dict) and one["device"] == "nvme" else one
        for name, one in section.items()
    }
    return host.start(
        folder=str(folder),
        zero=section,
        steps=STEPS,
        resume=None if resume is None else str(resume),
    )


def events(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Read what a rank has recorded: losses, and when saves began and ended."""
    with contextlib.suppress(OSError):
        lines = (folder / f"rank{rank}.jsonl").read_text("utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]
    return []


def losses(folder: Path) -> dict[tuple[int, int], str]:
    """Read the last loss of each step and rank, exactly."""
    return {
        (rank, one["step"]): one["loss"]
        for rank in range(RANKS)
        for one in events(folder, rank)
        if "loss" in one
    }


def save_seconds(folder: Path) -> float:
    """Read how long the longest save took."""
    saves: dict[int, list[float]] = {}
    for one in events(folder, 0):
        if "save" in one:
            saves.setdefault(one["step"], []).append(one["at"])
    return max(times[-1] - times[0] for times in saves.values())


def kill_during_save(pids: Sequence[int], folder: Path, step: int, delay: float) -> None:
    """Kill all ranks a moment after rank 0 has begun to save a step."""
    end = time.monotonic() + PATIENCE
    while not any(one.get("save") == "begins" and one["step"] == step for one in events(folder, 0)):
        assert time.monotonic() < end, "no save has begun"
        time.sleep(0.001)
    time.sleep(delay)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def newest_complete(folder: Path) -> Path | None:
    """Find the checkpoint to go on from."""
    complete = [one for one in find(folder) if one.saved_by is SavedBy.ENGINE and not _broken(one)]
    return max(complete, key=lambda one: one.named_step or 0).folder if complete else None


def _broken(checkpoint: CheckpointFolder) -> bool:
    """Whether a tag has problems; those of the file `latest` concern no tag."""
    return any(one.file.name != LATEST for one in verify(checkpoint))


def state_of_latest(folder: Path) -> str:
    """Say what DeepSpeed would load by itself."""
    named = latest_tag(folder)
    if not named:
        return "empty" if named == "" else "missing"
    found = [one for one in find(folder) if one.tag == named]
    return "complete" if found and not _broken(found[0]) else "half-written"


@dataclass(frozen=True)
class Kill:
    """What came of one kill."""

    was_saving: bool
    half_written: int
    """Checkpoints that are not complete."""
    latest: str
    resumed: int | None
    """Step of the newest complete checkpoint."""
    statuses: Sequence[int]
    is_equal: bool
    difference: float
    """Largest difference of a loss, relative."""


def one_kill(host: Host, folder: Path, case: str, reference: Path, chance: random.Random) -> Kill:
    """Kill one training, and go on."""
    step, delay = chance.randint(FIRST, LAST), chance.uniform(0, save_seconds(reference) * MARGIN)
    saves = folder / "saves"
    kill_during_save(train(host, folder, case), folder, step, delay)
    host.wait()
    ended = [
        any(one.get("save") == "ends" and one["step"] == step for one in events(folder, rank))
        for rank in (0, 1)
    ]
    latest, found = state_of_latest(saves), find(saves)
    newest = newest_complete(saves)
    half = sum(map(_broken, found))
    step_of = {one.folder: one.named_step for one in found}
    if newest is None:
        return Kill(not all(ended), half, latest, None, [], False, float("nan"))
    for rank in range(RANKS):
        (folder / f"rank{rank}.jsonl").unlink()
    train(host, folder, case, newest)
    statuses = host.wait()
    told, wanted = losses(folder), losses(reference)
    resumed = step_of[newest] or 0
    due = {(rank, one) for rank in range(RANKS) for one in range(resumed + 1, STEPS + 1)}
    away = [
        abs(float.fromhex(told[key]) - float.fromhex(wanted[key])) / abs(float.fromhex(wanted[key]))
        for key in due & told.keys()
    ]
    is_equal = all(told.get(key) == wanted[key] for key in due)
    return Kill(not all(ended), half, latest, resumed, statuses, is_equal, max(away, default=float("nan")))


def kills(case: str, count: int, chance: random.Random, base: Path, host: Host) -> Iterator[Kill]:
    """Kill trainings of one case."""
    reference = base / "reference"
    train(host, reference, case)
    assert host.wait() == [0] * RANKS, "the training that is not killed fails"
    for number in range(count):
        yield one_kill(host, base / str(number), case, reference, chance)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=4, help="of each case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(CASES), metavar="NAME")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    print("| case | kills | during a save | half-written | `latest` | none complete | resumed | equal |")
    print("|---|---|---|---|---|---|---|---|")
    for case in arguments.only:
        host = Host(*(["nvme"] if "NVMe" in case else []))
        try:
            with tempfile.TemporaryDirectory(prefix="zlaunch-kills-", ignore_cleanup_errors=True) as base:
                done = list(kills(case, arguments.kills, chance, Path(base), host))
        finally:
            host.close()
        latest = [one.latest for one in done]
        named = ", ".join(f"{latest.count(one)} {one}" for one in dict.fromkeys(latest))
        went_on = [one for one in done if one.resumed is not None and not any(one.statuses)]
        cells = (
            len(done),
            sum(one.was_saving for one in done),
            sum(bool(one.half_written) for one in done),
            named,
            sum(one.resumed is None for one in done),
            len(went_on),
            sum(one.is_equal for one in done),
        )
        print(f"| {case} | {' | '.join(map(str, cells))} |", flush=True)
        for one in done:
            if not one.is_equal:
                print(f"    {one}", flush=True)


if __name__ == "__main__":
    main()
