"""Paths in a run directory. The ranks, their guard and the hook use them too, so nothing slow is imported."""

import os
import signal
from pathlib import Path
from typing import NamedTuple

STACKS_SIGNAL = signal.SIGRTMIN + 7
"""Makes a rank's script write the stacks of all its threads."""

RUNS = Path("runs")
"""Default directory for run directories."""

RESERVE_BYTES = 64 * 1024


class _Below:
    def __init__(self, *parts: str) -> None:
        self._parts = parts

    def __get__(self, run_dir: "_Root", _owner: type) -> Path:
        return run_dir.root.joinpath(*self._parts)


class _Root(NamedTuple):
    root: Path


class RunDir(_Root):
    """Paths in the directory of one run."""

    ds_config = _Below("ds_config.json")
    """The resolved ds_config that DeepSpeed reads; strict JSON."""
    provenance = _Below("provenance.json")
    """Where each value of the ds_config comes from, and what the script fills in."""
    job = _Below("job.json")
    """Options, script, ranks and environment of the job."""
    environment = _Below("environment.json")
    """Package versions, git state, machine."""
    forecast = _Below("forecast.json")
    """Predicted memory of each rank."""
    secrets = _Below("secrets.json")
    """Salted hashes of the secrets that zlaunch knew, so that they stay hidden where they are set no more."""
    command = _Below("run.sh")
    """A script that repeats the run by hand."""
    hostfile = _Below("hostfile")
    """Hosts of the job, for DeepSpeed's runner."""
    ending = _Below("how-it-ended.json")
    """How the run ended, and why."""
    reserve = _Below(".room")
    """Disk space reserved for the ending, in case the disk is full by then."""
    report = _Below("report.html")
    """The page that `zlaunch runs report` writes."""
    resume = _Below("resume")
    """Leads to one tag of an engine, for a script that loads the one which `latest` names."""
    metrics = _Below("metrics.jsonl")
    """State of the job over time, one line each."""
    steps = _Below("steps.jsonl")
    """Loss, learning rate and phases of the first rank, one line for each step."""
    stop = _Below("stop")
    """The signal that all ranks pass on, and its sender; this also works on other hosts."""
    ask_save = _Below("ask-save")
    """Who asked the run to save and stop, from another process."""
    save_at = _Below("save-at")
    """The step after which all ranks save and end, and where an engine saves if its script has not yet."""
    ask_stacks = _Below("ask-stacks")
    """How many times the ranks were asked for their stacks."""
    logs = _Below("logs")
    """Logs of the ranks and of the launcher."""
    launcher_log = _Below("logs", "launcher.log")
    conversion_log = _Below("logs", "conversion.log")
    """Output of the programs that converted the checkpoint before the start."""
    ranks = _Below("ranks")
    """Records of the ranks."""

    @property
    def takes_records(self) -> bool:
        """Whether ranks can write their records; not if the directory is gone, moved or read-only by now."""
        return os.access(self.ranks, os.W_OK | os.X_OK)

    @property
    def first_files(self) -> tuple[Path, ...]:
        """All files that are written before the job starts."""
        known = (self.job, self.environment, self.ds_config, self.provenance, self.forecast)
        return (*known, self.secrets, self.hostfile, self.command, self.reserve)

    @property
    def order_files(self) -> tuple[Path, ...]:
        """What the ranks on a host that does not share the directory need of it."""
        return (self.job, self.ds_config)

    @property
    def control_files(self) -> tuple[Path, ...]:
        """What tells ranks something while they run."""
        return (self.stop, self.ask_stacks, self.save_at)

    def node_record(self, node: int) -> Path:
        """How the part of a job on one host ended."""
        return self.ranks / f"node-{node}.json"

    def node_records(self) -> list[Path]:
        """The records of all hosts, in their order."""
        return sorted(self.ranks.glob("node-*.json"), key=lambda file: (len(file.name), file.name))

    def node_log(self, node: int) -> Path:
        """What ssh or srun said about one host."""
        return self.logs / f"node-{node}.log"

    def build_log(self, op: str) -> Path:
        """Output of the compiler for one native op."""
        return self.logs / f"build-{op}.log"

    def build_logs(self) -> list[Path]:
        """Those of all ops that were built, also on other hosts."""
        return sorted(self.logs.glob("build-*.log"))

    def rank_log(self, rank: int) -> Path:
        """Output and errors of one rank, in their order."""
        return self.logs / f"rank-{rank}.log"

    def rank_record(self, rank: int, kind: str = "") -> Path:
        """How one rank started and ended; or a record of another kind."""
        return self.ranks / f"rank-{rank}{kind}.json"

    def rank_heartbeat(self, rank: int) -> Path:
        """Phase, step and loss of one rank, written from inside its script's process."""
        return self.rank_record(rank, ".pulse")

    def rank_sample(self, rank: int) -> Path:
        """Resources that one rank and its host use: memory, GPU, shared memory, disk."""
        return self.rank_record(rank, ".sample")

    def rank_program(self, rank: int) -> Path:
        """What the script of one rank trained with."""
        return self.rank_record(rank, ".program")

    def rank_error(self, rank: int) -> Path:
        """The exception that ended one rank."""
        return self.rank_record(rank, ".error")

    def rank_trace(self, rank: int) -> Path:
        """What torch's profiler recorded of one rank, for Perfetto."""
        return self.ranks / f"rank-{rank}.trace.json.gz"

    def rank_nsys(self, rank: int) -> Path:
        """What Nsight Systems recorded of one rank."""
        return self.ranks / f"rank-{rank}.nsys-rep"

    def rank_operations(self, rank: int) -> Path:
        """The operations that took longest in it."""
        return self.rank_record(rank, ".operations")

    def rank_stacks(self, rank: int) -> Path:
        """Stacks of one rank, each time it was asked for them and when it crashed."""
        return self.ranks / f"rank-{rank}.stacks"
