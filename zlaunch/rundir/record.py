"""The records of a run directory: the shape of each file, one way to write it and one to read it.

Ranks, their guard and the hook in the script use records too, and the script waits for all they import. So
the shapes are `TypedDict`s, which need no import beyond `typing`: pydantic takes longer to import than all
of these.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, NamedTuple, TypedDict, TypeVar, Union, cast, get_args, get_origin, is_typeddict

from zlaunch.files import write_whole
from zlaunch.rundir.layout import RunDir

VERSION = 1
"""Format of the records, in each as `version`. Records without it were written before there were versions."""

Finite = Annotated[float, "finite"]
"""A time or an amount; a loss may be NaN or infinite, and is a plain float."""


class Lineage(NamedTuple):
    """Which run a run continues or repeats."""

    attempt: int = 1
    continues: str | None = None
    """The failed run that this one continues."""
    repeats: str | None = None
    """The run that `zlaunch runs rerun` repeats."""
    why: str | None = None
    """What differs from that run."""


FIRST = Lineage()


class SlotRecord(TypedDict, total=False):
    """Where a rank runs."""

    rank: int
    host: str
    local_rank: int
    device: int


class DebugRecord(TypedDict, total=False):
    """Which rank waits for a debugger, and where it listens."""

    rank: int
    host: str
    port: int


class JobRecord(TypedDict, total=False):
    """`job.json`: what runs, where, and which zlaunch started it."""

    asked: list[str]
    started: Finite
    working_directory: str
    script: list[str]
    module: str | None
    debug: DebugRecord | None
    argv: list[str]
    launcher: str
    accelerator: str
    precision: str
    ranks: list[SlotRecord]
    environment: dict[str, str]
    swap_dirs: list[str]
    native_ops: list[str]
    stage: int
    offload: dict[str, str | None]
    micro_batch: int | None
    grad_accum: int | None
    train_batch_size: int | None
    spec: dict[str, object]
    """Members of `JobSpec`, so that the run can be planned again."""
    host: str
    zlaunch_pid: int
    zlaunch_started: Finite
    run_directory: str
    over_ssh: bool
    script_sha256: str | None
    inherited: dict[str, str]
    attempt: int
    continues: str | None
    repeats: str | None
    why: str | None


class GitRecord(TypedDict, total=False):
    """State of the repository the run was started from."""

    commit: str
    branch: str
    changed: list[str]
    diff_sha256: str | None


class GpuRecord(TypedDict, total=False):
    """One GPU of the machine."""

    name: str


class MachineRecord(TypedDict, total=False):
    """The machine that zlaunch ran on."""

    gpus: list[GpuRecord]


class EnvironmentRecord(TypedDict, total=False):
    """`environment.json`: software and hardware the run depended on."""

    zlaunch: str
    packages: dict[str, str | None]
    python: str
    machine: MachineRecord
    git: GitRecord | None


class ProvenanceRecord(TypedDict, total=False):
    """`provenance.json`: key of the ds_config → where its value comes from, or who will fill it in."""

    set: dict[str, str]
    left: dict[str, str]


class PhaseRecord(TypedDict, total=False):
    """Predicted memory of one rank in one phase: pool → bytes."""

    name: str
    peak: dict[str, int]


class ForecastRecord(TypedDict, total=False):
    """`forecast.json`: the memory forecast."""

    phases: list[PhaseRecord]


class RankRecord(TypedDict, total=False):
    """`rank-N.json`: how a rank started and ended."""

    rank: int
    local_rank: int
    host: str
    started: Finite
    pid: int
    buffer: str
    """File in shared memory that DeepSpeed leaves behind."""
    ended: Finite
    returncode: int
    stopped_by: int | None
    stopped_at: Finite | None
    peak_rss_bytes: int
    oom_kills: int | None


class HeartbeatRecord(TypedDict, total=False):
    """`rank-N.pulse.json`: what the script is doing, written from inside its process."""

    phase: str
    since: Finite
    time: Finite
    step: int
    steps: int | None
    first_step: int
    trained: bool
    loss: float | None
    first_loss: float | None
    loss_step: int
    loss_lost: int
    """The first step at which the loss was not a finite number."""
    grad_norm: float | None
    grad_norm_lost: int
    learning_rate: float | None
    loss_scale: float | None
    skipped_steps: int
    tokens: int
    gpu_allocated_bytes: int
    gpu_reserved_bytes: int


class GpuSample(TypedDict, total=False):
    """Memory of a rank's GPU."""

    used_bytes: int
    total_bytes: int
    uncorrected_errors: int


class MachineSample(TypedDict, total=False):
    """Memory and disk of a host."""

    memory_bytes: int
    memory_available_bytes: int
    cgroup_bytes: int | None
    cgroup_limit_bytes: int | None
    oom_kills: int | None
    shm_bytes: int | None
    shm_free_bytes: int | None
    disk_free_bytes: int | None


class SampleRecord(TypedDict, total=False):
    """`rank-N.sample.json`: resources that a rank and its host use."""

    time: Finite
    host: str
    rss_bytes: int
    peak_rss_bytes: int | None
    status: str
    cpu_seconds: Finite
    gpu: GpuSample | None
    machine: MachineSample | None


class FrameRecord(TypedDict, total=False):
    """One call in a traceback."""

    file: str
    line: int | None
    function: str


class ErrorRecord(TypedDict, total=False):
    """`rank-N.error.json`: the exception that ended a script."""

    type: str
    module: str
    message: str
    traceback: str
    frame: FrameRecord | None
    """The deepest frame in the user's own code."""
    phase: str
    step: int
    rank: int
    host: str
    time: Finite


class MetricsRecord(TypedDict, total=False):
    """One line of `metrics.jsonl`: the state of the job at one moment."""

    time: Finite
    step: int | None
    steps: int | None
    phase: str | None
    loss: float | None
    learning_rate: float | None
    tokens_per_second: Finite | None
    seconds_left: Finite | None
    ranks: list[dict[str, int | str | None]]
    machines: dict[str, MachineSample]


class VerdictRecord(TypedDict, total=False):
    """Why a run ended."""

    code: str
    cause: str
    rank: int | None
    host: str | None
    phase: str | None
    facts: list[str]
    advice: list[str]


class StallRecord(TypedDict, total=False):
    """Where the ranks of a stalled run were."""

    seconds: Finite
    step: int
    where: dict[str, str]
    odd: list[int]
    ended_job: bool


class EndingRecord(TypedDict, total=False):
    """`how-it-ended.json`: how a run ended, and why."""

    how: str
    exit_status: int
    returncode: int
    verdict: VerdictRecord | None
    started: Finite
    seconds: Finite
    stall: StallRecord | None
    ranks: list[RankRecord]


Record = TypeVar("Record")

_SUFFIXES: Mapping[type, str] = {
    RankRecord: "",
    HeartbeatRecord: ".pulse",
    SampleRecord: ".sample",
    ErrorRecord: ".error",
}


def record_text(members: Mapping[str, object], indent: int | None = 2) -> str:
    """Write a record as JSON."""
    return json.dumps({"version": VERSION, **members}, indent=indent) + "\n"


def write_record(file: Path, members: Mapping[str, object], indent: int | None = 2) -> None:
    """Write a record to its file; a reader sees all of it, or what was there before."""
    write_whole(file, record_text(members, indent))


def write_ending(run_dir: RunDir, members: EndingRecord) -> None:
    """Write how a run ended; on a full disk, in the space that was reserved for it."""
    run_dir.reserve.unlink(missing_ok=True)
    write_record(run_dir.ending, members)


def parse_record(text: str | bytes, kind: type[Record]) -> Record:
    """Read a record from JSON; empty if it is no object, or only half of one.

    Members of a wrong type are left out, at any depth; unknown ones are kept.
    """
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        return kind()
    if not isinstance(members, dict):
        return kind()
    if is_typeddict(kind):
        members.pop("version", None)  # all versions so far read the same
    return conform(members, kind)


def read_record(
    file: Path, kind: type[Record], troubles: list[str] | None = None, *, needed: bool = False
) -> Record:
    """Read a record from its file; empty if that is missing or damaged, which is added to the troubles."""
    trouble = None
    try:
        if members := parse_record(file.read_bytes(), kind):
            return members
        trouble = "is broken or half-written"
    except FileNotFoundError:
        trouble = "is not there" if needed else None
    except OSError as error:
        trouble = f"cannot be read: {error.strerror}"
    if troubles is not None and trouble is not None:
        troubles.append(f"`{file.name}` {trouble}")
    return kind()


def read_rank_records(
    run_dir: RunDir, kind: type[Record], troubles: list[str] | None = None
) -> dict[int, Record]:
    """Read the records of one kind that ranks have written: rank → record."""
    suffix = f"{_SUFFIXES[kind]}.json"
    names = (file.name for file in run_dir.ranks.glob(f"rank-*{suffix}"))
    numbers = (name.removeprefix("rank-").removesuffix(suffix) for name in names)
    ranks = sorted(int(number) for number in numbers if number.isdecimal())
    found = {rank: read_record(run_dir.rank_record(rank, _SUFFIXES[kind]), kind, troubles) for rank in ranks}
    return {rank: members for rank, members in found.items() if members}


def conform(members: Mapping[str, object], kind: type[Record]) -> Record:
    """Leave out the members of a JSON object that do not have the type that a record gives them."""
    return cast("Record", _fitting(members, kind))


_UNFIT = object()
_MOST = 1e18
"""A larger number is no time, count or amount of memory."""


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST < value < _MOST


_ATOMS: Mapping[object, Callable[[object], bool]] = {
    object: lambda _: True,
    str: lambda value: isinstance(value, str),
    bool: lambda value: isinstance(value, bool),
    type(None): lambda value: value is None,
    float: lambda value: isinstance(value, float) or _is_whole(value),
    Finite: lambda value: _is_whole(value) or (isinstance(value, float) and -_MOST < value < _MOST),
    int: _is_whole,
}


def _fitting(value: object, hint: object) -> object:
    """Return the part of a JSON value that has a type; `_UNFIT` if none has."""
    if is_typeddict(hint):
        hints = cast("type", hint).__annotations__
        return _fitting_members(value, lambda name: hints.get(name, object))
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return next((fit for one in args if (fit := _fitting(value, one)) is not _UNFIT), _UNFIT)
    if origin is list:
        if not isinstance(value, list):
            return _UNFIT
        return [fit for item in value if (fit := _fitting(item, args[0])) is not _UNFIT]
    if origin is dict:
        return _fitting_members(value, lambda _: args[1])
    return value if _ATOMS[hint](value) else _UNFIT


def _fitting_members(value: object, hint_of: Callable[[str], object]) -> object:
    if not isinstance(value, dict):
        return _UNFIT
    fits = {name: _fitting(member, hint_of(name)) for name, member in value.items()}
    return {name: fit for name, fit in fits.items() if fit is not _UNFIT}
