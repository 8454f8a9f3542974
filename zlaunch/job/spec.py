"""How a person wants a job to be watched, and what may be tried after a failure."""

import json
import math
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from zlaunch.errors import WrongUsage
from zlaunch.job.source import Source
from zlaunch.units import narrowed

STEP_PATIENCE_SECONDS = 60.0
"""The least time without a step that counts as a stall, unless somebody says otherwise."""

OnStall = Literal["report", "stop"]
OnOom = Literal["stop", "retry"]


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """How a person wants a job to be watched."""

    show_ranks: tuple[int, ...] = (0,)
    """Ranks whose output is shown. Where none is, there is one line that says how far the job is."""
    on_stall: OnStall = "report"
    stall_after: float = STEP_PATIENCE_SECONDS
    """The least time without a step that counts as a stall, in seconds."""
    debugged: int | None = None
    """A rank that waits for a debugger. It may stand still, and the others with it: that is no stall."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """What a person allows to be tried."""

    max_restarts: int = 0
    on_oom: OnOom = "stop"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a person said about watching a job, and about going on after a failure."""

    show_ranks: str | None = None
    """Ranks whose output is shown, as `ranks_to_show` reads them."""
    on_stall: OnStall = "report"
    stall_after: float = STEP_PATIENCE_SECONDS
    policy: RestartPolicy = RestartPolicy()

    def monitor_options(
        self, world_size: int, interactive: bool, debugged: int | None = None
    ) -> MonitorOptions:
        """Options for a job with `world_size` ranks; raise WrongUsage for a rank it does not have."""
        shown = ranks_to_show(self.show_ranks, world_size, interactive)
        return MonitorOptions(shown, self.on_stall, self.stall_after, debugged)


def ranks_to_show(text: str | None, world_size: int, interactive: bool) -> tuple[int, ...]:
    """Read `0,3`, `all` or `none`; raise WrongUsage for a rank that will not be there.

    Left out, rank 0 goes where output is kept or passed on, and nobody is shown to a person, who
    has one quiet line instead.
    """
    match text:
        case None:
            return () if interactive else (0,)
        case "all":
            return tuple(range(world_size))
        case "none":
            return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) < world_size for word in words):
        ranks = "is rank 0 only" if world_size == 1 else f"are ranks 0 to {world_size - 1}"
        raise WrongUsage(f"`--show-ranks {text}`: there {ranks}", "write `--show-ranks 0`, all or none")
    return tuple(sorted({int(word) for word in words}))


Device = Literal["none", "cpu", "nvme"]
Stage = Literal[0, 1, 2, 3]
Precision = Literal["bf16", "fp16", "fp32"]
Launcher = Literal["torchrun", "deepspeed"]

STAGES: dict[str, Stage] = {"0": 0, "1": 1, "2": 2, "3": 3}
_DEVICES: dict[str, Device] = {"none": "none", "cpu": "cpu", "nvme": "nvme"}


@dataclass(frozen=True, slots=True)
class Offload:
    """Where optimizer states and parameters go; None for a part means: as the stage allows."""

    optimizer: Device | None = None
    param: Device | None = None


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """`--gpus 2` is a count, `--gpus 0,2` names devices."""

    count: int | None = None
    devices: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Debug:
    """Which rank waits for a debugger, and on which port."""

    rank: int
    port: int = 5678


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One job. What was not said is None, so that later layers know who decided."""

    script: Path
    """The file of the training program; of a module, if one is named."""
    script_args: tuple[str, ...] = ()
    stage: Stage | None = None
    is_chosen: bool = False
    """Whether zlaunch chose the stage and the offload."""
    offload: Offload | None = None
    nvme_dir: Path | None = None
    precision: Precision | None = None
    gpus: GpuChoice | None = None
    launcher: Launcher | None = None
    ds_config: Path | None = None
    overrides: tuple[tuple[str, Any], ...] = ()
    hostfile: Path | None = None
    include: str | None = None
    exclude: str | None = None
    module: str | None = None
    """The program as `python -m` takes it."""
    debug: Debug | None = None
    wishes: RunOptions = field(default_factory=RunOptions)

    @property
    def stage_source(self) -> Source:
        """Name the option that set the stage."""
        return Source.option("--stage auto" if self.is_chosen else "--stage")

    @property
    def name(self) -> str:
        """Name the program for people, in a word."""
        return self.script.stem if self.module is None else self.module.rpartition(".")[2]


def parse_offload(text: str) -> Offload:
    """Read `cpu`, or `optimizer:cpu,param:nvme`; raise WrongUsage for anything else."""
    if text in _DEVICES:
        device = _DEVICES[text]
        return Offload(optimizer=device, param="none" if device == "none" else None)
    parts: dict[str, Device] = {"optimizer": "none", "param": "none"}
    for term in text.split(","):
        part, _, device_name = term.strip().partition(":")
        if part not in parts or device_name not in _DEVICES:
            meant = get_close_matches(part, parts, 1) if device_name in _DEVICES else []
            raise WrongUsage(
                f"`--offload {text}`: `{term.strip()}` makes no sense",
                f"did you mean `{meant[0]}:{device_name}`?"
                if meant
                else "write none, cpu or nvme, or each part: `optimizer:cpu,param:nvme`",
            )
        parts[part] = _DEVICES[device_name]
    return Offload(**parts)


def parse_gpus(text: str) -> GpuChoice:
    """Read a count, or device numbers with commas (`2,` is device 2 alone)."""
    numbers = [number.strip() for number in text.split(",")]
    if numbers and numbers[-1] == "" and len(numbers) > 1:
        numbers.pop()
    if not all(re.fullmatch(r"[0-9]{1,6}", number) for number in numbers):
        raise WrongUsage(
            f"`--gpus {text}` is neither a count nor device numbers", "write `--gpus 2` or `--gpus 0,2`"
        )
    devices = tuple(int(number) for number in numbers)
    if "," not in text:
        if devices[0] == 0:
            raise WrongUsage("`--gpus 0` leaves nothing to train on", "write `--gpus 0,` for device 0 alone")
        return GpuChoice(count=devices[0])
    if len(set(devices)) != len(devices):
        raise WrongUsage(f"`--gpus {text}` names a device twice")
    return GpuChoice(devices=devices)


def parse_debug(text: str) -> Debug:
    """Read `1`, or `1:5679`; raise WrongUsage for anything else."""
    rank, colon, port = text.partition(":")
    words = [rank, *([port] if colon else [])]
    if not all(re.fullmatch(r"[0-9]{1,6}", word) for word in words):
        raise WrongUsage(
            f"`--debug {text}` is not RANK or RANK:PORT", "write `--debug 0` or `--debug 0:5678`"
        )
    if colon and not 0 < int(port) < 1 << 16:
        raise WrongUsage(
            f"`--debug {text}`: there is no port {int(port)}", f"write `--debug {int(rank)}:5678`"
        )
    return Debug(int(rank), int(port)) if colon else Debug(int(rank))


def parse_override(text: str) -> tuple[str, Any]:
    """Read `a.b.c=value`; the value is JSON, or a word. Raises WrongUsage without a key and a value."""
    key, equals, raw = text.partition("=")
    if not equals or not all(key.split(".")):
        raise WrongUsage(
            f"`--set {text}` is not KEY=VALUE", "write `--set zero_optimization.sub_group_size=1e8`"
        )
    try:
        value = json.loads(raw, parse_float=_number, parse_constant=_number)
    except ValueError:
        value = raw
    except RecursionError:
        raise WrongUsage(f"the value of `--set {key}` is nested too deep") from None
    return key, value


def _number(text: str) -> int | float:
    """Read `1e8` as a whole number, as DeepSpeed's reader does."""
    value = float(text)
    if not math.isfinite(value):
        raise WrongUsage(f"a ds_config cannot hold the number {text}")
    return narrowed(value)
