"""How to launch a job, whatever the job is."""

from pathlib import Path

from zlaunch.frozen import dataclass
from zlaunch.rundir.layout import RUNS
from zlaunch.rundir.record import FIRST, Lineage


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """How to launch a job."""

    interactive: bool = False
    """Whether the output goes to a terminal."""
    run_dir: Path | None = None
    """The run directory that the user names."""
    beside: Path = RUNS
    """Parent of the run directory, unless the user names one."""
    rehearse: bool = False
    seq_len: int | None = None
    """Tokens in each sequence, for the memory check."""
    force: bool = False
    dry_run: bool = False
    share: bool = False
    """Leave the permissions of the run directory to the umask, instead of making it private."""
    auto_stage: bool = False
    """Choose the stage and the offload."""
    origin: Lineage = FIRST
