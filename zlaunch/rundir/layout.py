"""The shape of a run directory: which file holds what. `rundir` writes it, `rank` fills it.

It is read before the script's first line too, where importing `dataclasses` would take as long as the rest.
"""

import signal
from pathlib import Path
from typing import NamedTuple

from zlaunch.files import write_whole

STACKS_SIGNAL = signal.SIGRTMIN + 7
"""Makes a rank's script write the stacks of all its threads."""


class RunDir(NamedTuple):
    """Paths below one run's directory."""

    root: Path

    @property
    def ds_config(self) -> Path:
        """The resolved ds_config, strict JSON: what DeepSpeed reads."""
        return self.root / "ds_config.json"

    @property
    def provenance(self) -> Path:
        """Who set each value of it, and what is left for the script to fill in."""
        return self.root / "provenance.json"

    @property
    def job(self) -> Path:
        """What was asked, where it runs, and how the environment of the ranks differs."""
        return self.root / "job.json"

    @property
    def environment(self) -> Path:
        """Versions of packages, the state of git, the machine."""
        return self.root / "environment.json"

    @property
    def forecast(self) -> Path:
        """How much memory each rank was predicted to take."""
        return self.root / "forecast.json"

    @property
    def command(self) -> Path:
        """A script that repeats the run by hand."""
        return self.root / "run.sh"

    @property
    def hostfile(self) -> Path:
        """The hosts of the job, for DeepSpeed's runner."""
        return self.root / "hostfile"

    @property
    def ending(self) -> Path:
        """How the run ended, and why."""
        return self.root / "how-it-ended.json"

    @property
    def room(self) -> Path:
        """Holds the room that the ending will need, should the disk be full by then."""
        return self.root / ".room"

    @property
    def metrics(self) -> Path:
        """What the watch saw while the job ran, a line per look."""
        return self.root / "metrics.jsonl"

    @property
    def stop(self) -> Path:
        """Number of the signal that all ranks are to pass on, and who says so; how other hosts are told."""
        return self.root / "stop"

    @property
    def ask_stacks(self) -> Path:
        """How often the ranks were asked for their stacks."""
        return self.root / "ask-stacks"

    @property
    def logs(self) -> Path:
        """One log per rank, and the launcher's own."""
        return self.root / "logs"

    @property
    def launcher_log(self) -> Path:
        """What the launcher itself printed."""
        return self.logs / "launcher.log"

    @property
    def ranks(self) -> Path:
        """One record per rank: process id, host, start, end, exit status."""
        return self.root / "ranks"

    @property
    def first_files(self) -> tuple[Path, ...]:
        """All files that are written before the job starts."""
        known = (self.job, self.environment, self.ds_config, self.provenance, self.forecast)
        return (*known, self.hostfile, self.command, self.room)

    def build_log(self, op: str) -> Path:
        """What the compiler said about one native op."""
        return self.logs / f"build-{op}.log"

    def rank_log(self, rank: int) -> Path:
        """What one rank printed, output and errors in their order."""
        return self.logs / f"rank-{rank}.log"

    def rank_record(self, rank: int) -> Path:
        """How one rank started and ended."""
        return self.ranks / f"rank-{rank}.json"

    def rank_pulse(self, rank: int) -> Path:
        """What one rank is doing: phase, step, loss; written from inside its script's process."""
        return self.ranks / f"rank-{rank}.pulse.json"

    def rank_sample(self, rank: int) -> Path:
        """What one rank and its host use: memory, GPU, shared memory, disk."""
        return self.ranks / f"rank-{rank}.sample.json"

    def rank_error(self, rank: int) -> Path:
        """The exception that ended one rank."""
        return self.ranks / f"rank-{rank}.error.json"

    def rank_stacks(self, rank: int) -> Path:
        """Where one rank was, whenever it was asked, and when it crashed."""
        return self.ranks / f"rank-{rank}.stacks"


ROOM_BYTES = 64 * 1024


def write_ending(layout: RunDir, text: str) -> None:
    """Write how a run ended, in the room that was kept for it."""
    layout.room.unlink(missing_ok=True)
    write_whole(layout.ending, text)


RUNS = Path("runs")
"""Where runs are recorded if nobody says otherwise."""
