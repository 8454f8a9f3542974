"""The options of a job: what to run, how to monitor it, and when to restart it."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal

from zlaunch.errors import WrongUsage
from zlaunch.frozen import dataclass
from zlaunch.job.args import NO_ARGS, ScriptArgs
from zlaunch.job.source import Source
from zlaunch.other_values import hint_for_value
from zlaunch.units import narrowed

STEP_PATIENCE_SECONDS: float = 60
"""Default of `--stall-after`."""

OnStall = Literal["report", "stop"]
OnOom = Literal["stop", "retry"]
OnNan = Literal["report", "stop", "rollback"]
OnPreempt = Literal["save", "stop"]

GRACE_SECONDS = 25.0
"""How long ranks may take to save after SIGTERM: Slurm and Kubernetes kill after 30 s by default."""
SAVE_SECONDS = 300.0
"""The same after another request."""


@dataclass(frozen=True, slots=True)
class PreemptOptions:
    """What a run does before something else ends it: it saves, stops, and can be resumed later."""

    on_preempt: OnPreempt | None = None
    """What SIGTERM does; None: save if a scheduler has started zlaunch, which sends it before it kills."""
    save_within: float | None = None
    """Seconds that the ranks may take; None for a default that depends on who asks."""
    time_limit: float | None = None
    """Seconds after which the run must have ended; None for the limit of Slurm, if there is one."""

    def seconds(self, *, is_preempted: bool) -> float:
        """How long the ranks may take to save."""
        if self.save_within:
            return self.save_within
        if is_preempted:
            return GRACE_SECONDS
        return SAVE_SECONDS


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """Options for monitoring a run."""

    show_ranks: tuple[int, ...] = (0,)
    """Ranks whose output to show. Without any, a progress line is shown."""
    on_stall: OnStall = "report"
    stall_after: float = STEP_PATIENCE_SECONDS
    """Seconds without progress before a run counts as stalled."""
    debugged: int | None = None
    """A rank with a debugger, whose pauses are not stalls."""
    ends_on_nan: bool = False
    """Whether a loss that stays NaN or infinite ends the run."""
    preempt: PreemptOptions = PreemptOptions()
    """What it does when it is asked to save and stop."""
    is_plain: bool = False
    """Whether output is shown without progress bars and control characters, as in a pipe."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When to restart a failed run."""

    max_restarts: int = 0
    on_oom: OnOom = "stop"
    on_nan: OnNan = "report"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Command line options for monitoring and restarting a run."""

    show_ranks: str | None = None
    """Ranks whose output to show, as in `ranks_to_show`."""
    on_stall: OnStall = "report"
    stall_after: float = STEP_PATIENCE_SECONDS
    policy: RestartPolicy = RestartPolicy()
    preempt: PreemptOptions = PreemptOptions()

    def monitor_options(
        self, world_size: int, interactive: bool, debugged: int | None = None
    ) -> MonitorOptions:
        """Resolve the options for a world size; raise WrongUsage for a rank that does not exist."""
        ranks = ranks_to_show(self.show_ranks, world_size, interactive)
        ends_on_nan = self.policy.on_nan != "report"
        return MonitorOptions(
            *(ranks, self.on_stall, self.stall_after, debugged, ends_on_nan, self.preempt),
            is_plain=not interactive,
        )


def ranks_to_show(text: str | None, world_size: int, interactive: bool) -> tuple[int, ...]:
    """Parse `0,3`, `all` or `none`; raise WrongUsage for a rank that does not exist.

    The default is none in a terminal, which has a progress line, and rank 0 otherwise.
    """
    match text:
        case None if interactive:
            return ()
        case None:
            return (0,)
        case "all":
            return tuple(range(world_size))
        case "none":
            return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) < world_size for word in words):
        ranks = f"are ranks 0 to {world_size - 1}"
        if world_size == 1:
            ranks = "is rank 0 only"
        raise WrongUsage(f"`--show-ranks {text}`: there {ranks}", "write `--show-ranks 0`, `all` or `none`")
    return tuple(sorted({int(word) for word in words}))


Device = Literal["none", "cpu", "nvme"]
Stage = Literal[0, 1, 2, 3]
Precision = Literal["bf16", "fp16", "fp32"]
Launcher = str
"""The name of a module in `launch/backends`."""

STAGES: dict[str, Stage] = {"0": 0, "1": 1, "2": 2, "3": 3}
_DEVICES: dict[str, Device] = {"none": "none", "cpu": "cpu", "nvme": "nvme"}


@dataclass(frozen=True, slots=True)
class Offload:
    """Devices of optimizer states and parameters; None: offloaded if the stage supports it."""

    optimizer: Device | None = None
    param: Device | None = None


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """`--gpus 2` is a count, `--gpus 0,2` names devices."""

    count: int | None = None
    devices: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The devices of its hosts that a job uses; all of them by default."""

    gpus: GpuChoice | None = None
    include: str | None = None
    exclude: str | None = None


@dataclass(frozen=True, slots=True)
class Debug:
    """Which rank waits for a debugger, and on which port."""

    rank: int
    port: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Which steps are recorded, both inclusive, and of which ranks; None for all of them."""

    first: int | None
    last: int | None
    ranks: tuple[int, ...] | None = (0,)
    with_nsys: bool = False
    """By Nsight Systems instead of torch's profiler, which has to be told the steps."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The options of one job; None for everything that the user did not set."""

    script: Path
    """The file of the training script, or of the module."""
    args: ScriptArgs = NO_ARGS
    """What was typed for the script."""
    stage: Stage | None = None
    is_chosen: bool = False
    """Whether zlaunch chose stage and offload (`--stage auto`)."""
    offload: Offload | None = None
    nvme_dir: Path | None = None
    precision: Precision | None = None
    gpus: GpuChoice | None = None
    launcher: Launcher | None = None
    ds_config: Path | None = None
    overrides: tuple[tuple[str, Any], ...] = ()
    hostfile: Path | None = None
    hosts: str | None = None
    """The hosts themselves, instead of a hostfile."""
    include: str | None = None
    exclude: str | None = None
    module: str | None = None
    """The module for `python -m`, instead of a script."""
    debug: Debug | None = None
    profile: Profile | None = None
    config_flags: tuple[str, ...] = ()
    """Flags by which the user's command line named the ds_config, so the script knows them."""
    resume: str | None = None
    """The checkpoint to resume from: a directory, `latest`, or a run."""
    allow_reshard: bool = False
    """Convert this checkpoint, if that makes it fit."""
    save: str | None = None
    """The directory for the model and its checkpoints; None once the script is told it by its arguments."""
    may_ask: bool = True
    """Whether the program may be run up to the point where it has its arguments."""
    has_no_ask: bool = field(default=False, compare=False)
    """Whether the command has `--no-ask`, which a hint may name."""
    is_to_start: bool = field(default=False, compare=False)
    """Whether the program starts next; if not, it changes no files when it is asked."""
    python: Path | None = None
    """The interpreter of the ranks; None for the one that runs zlaunch."""
    env: tuple[str, ...] = ()
    """Variables for the ranks: `NAME=VALUE`, or `NAME` for the value that zlaunch itself has."""
    run_options: RunOptions = field(default_factory=RunOptions)
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where `zlaunch.yaml` has the options that it set: `stage`, `set.gradient_clipping` → file and line."""
    asked: tuple[str, ...] = field(default=(), compare=False)
    """The command line with `zlaunch.yaml` written out; empty if there was none."""

    @property
    def names_hosts(self) -> bool:
        """Whether the user said on which hosts it runs."""
        return self.hostfile is not None or self.hosts is not None

    @property
    def devices(self) -> DeviceChoice:
        """The devices that the user chose."""
        return DeviceChoice(self.gpus, self.include, self.exclude)

    @property
    def stage_source(self) -> Source:
        """The option that set the stage."""
        if self.is_chosen:
            return Source.option("--stage auto")
        return Source.option("--stage")

    @property
    def config_options(self) -> tuple[str, ...]:
        """The options about the ds_config that the user gave."""
        options: dict[str, object] = {
            "--stage": self.stage,
            "--offload": self.offload,
            "--nvme": self.nvme_dir,
            "--precision": self.precision,
        }
        if not self.config_flags:
            options["--ds-config"] = self.ds_config
        options["--set"] = self.overrides or None
        return tuple(name for name, value in options.items() if value is not None)

    @property
    def program(self) -> tuple[str, ...]:
        """What Python runs: the script, or `-m` and the module."""
        if self.module is None:
            return (str(self.script),)
        return ("-m", self.module)

    @property
    def shown_name(self) -> str:
        """The script or the module, for messages."""
        if self.module is None:
            return self.script.name
        return f"`-m {self.module}`"

    @property
    def typed_args(self) -> ScriptArgs:
        """The arguments of the script as the user typed them, with the ds_config."""
        if not self.config_flags:
            return self.args
        return self.args.followed_by((*self.config_flags, str(self.ds_config)))

    @property
    def name(self) -> str:
        """A short name of the script or module."""
        if self.module is None:
            return self.script.stem
        return self.module.rpartition(".")[2]


def script_path(word: str) -> Path:
    """Return the path of a script, which no program takes for an option: `./-s.py` would become `-s.py`."""
    path = Path(word)
    if str(path).startswith("-") and word != "-":
        return path.absolute()
    return path


def parse_offload(text: str) -> Offload:
    """Parse `cpu` or `optimizer:cpu,param:nvme`; raise WrongUsage for anything else."""
    if text == "none":
        return Offload("none", "none")
    if text in _DEVICES:
        return Offload(_DEVICES[text])
    devices: dict[str, Device] = {"optimizer": "none", "param": "none"}
    terms = [term.strip() for term in text.split(",")]
    if len(terms) > 1 and _DEVICES.keys() >= {*terms}:
        raise WrongUsage(
            f"`--offload {text}` names devices without the parts that go there",
            f"write one for both, `--offload {terms[0]}`, "
            f"or one for each: `--offload optimizer:{terms[0]},param:{terms[1]}`",
        )
    for term in terms:
        part, _, device_name = term.partition(":")
        if part not in devices or device_name not in _DEVICES:
            hint = "write `none`, `cpu` or `nvme`, or a device for each part: `optimizer:cpu,param:nvme`"
            if meant := hint_for_value("offload", text):
                hint = f"{meant} Otherwise {hint}"
            if device_name in _DEVICES and (similar := get_close_matches(part, devices, 1)):
                hint = f"did you mean `{similar[0]}:{device_name}`?"
            raise WrongUsage(f"`--offload {text}`: `{term}` is not valid", hint)
        devices[part] = _DEVICES[device_name]
    return Offload(**devices)


def parse_gpus(text: str) -> GpuChoice:
    """Parse a count, or device numbers with commas (`2,` is only device 2); raise WrongUsage otherwise."""
    numbers = [number.strip() for number in text.rstrip().removesuffix(",").split(",")]
    if not all(re.fullmatch(r"[0-9]{1,6}", number) for number in numbers):
        raise WrongUsage(
            f"`--gpus {text}` is neither a count nor a list of devices",
            "write `--gpus 2` or `--gpus 0,2`; without it, all are used",
        )
    devices = tuple(int(number) for number in numbers)
    if "," not in text:
        if devices[0] == 0:
            raise WrongUsage(
                "`--gpus 0` starts no rank",
                "write `--gpus 0,` for device 0; on a machine without a GPU, or with `DS_ACCELERATOR=cpu`, "
                "`--gpus 2` starts two ranks on the CPU",
            )
        return GpuChoice(count=devices[0])
    if len(set(devices)) != len(devices):
        raise WrongUsage(f"`--gpus {text}` names a device twice")
    return GpuChoice(devices=devices)


def parse_duration(text: str, option: str) -> float:
    """Parse `3:30:00`, `90m`, `2h` or seconds; raise WrongUsage for anything else."""
    if found := re.fullmatch(_CLOCK, text) or re.fullmatch(_DAYS, text):
        parts = found.groupdict()
        days, hours, minutes, seconds = (int(parts.get(unit) or 0) for unit in "dhms")
        total = float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    elif found := re.fullmatch(_AMOUNT, text):
        total = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]
    else:
        total = 0.0
    if total <= 0:
        raise WrongUsage(f"`{option} {text}` is not a time", f"write `{option} 3:30:00`, `90m` or `12600`")
    return total


def parse_time_limit(text: str) -> float:
    """Parse `--time-limit`."""
    return parse_duration(text, "--time-limit")


_CLOCK = r"(?:(?P<h>[0-9]{1,4}):)?(?P<m>[0-9]{1,4}):(?P<s>[0-9]{2})"
"""Without hours, `5:30` is five minutes and a half, as for Slurm."""
_DAYS = r"(?P<d>[0-9]{1,4})-(?P<h>[0-9]{1,4})(?::(?P<m>[0-9]{2}))?(?::(?P<s>[0-9]{2}))?"
"""After days, hours come first, as for Slurm: `2-12:30` is two days, twelve hours and a half."""
_AMOUNT = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd]?)"


def parse_debug(text: str) -> Debug:
    """Parse `1` or `1:5679`; raise WrongUsage for anything else."""
    found = re.fullmatch(r"([0-9]{1,6})(?::([0-9]{1,6}))?", text)
    if not found:
        raise WrongUsage(
            f"`--debug {text}` is not RANK or RANK:PORT", "write `--debug 0` or `--debug 0:5678`"
        )
    rank, port = int(found[1]), int(found[2] or 5678)
    if not 0 < port < 1 << 16:
        raise WrongUsage(f"`--debug {text}`: {port} is not a valid port", f"write `--debug {rank}:5678`")
    return Debug(rank, port)


MOST_PROFILED: Final = 100
"""More steps make a trace that no viewer opens."""


_PROFILE: Final = (
    r"(?:(?P<nsys>nsys)(?::(?=[0-9])|(?=@|$)))?(?:(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?)?"
    r"(?:@(?P<ranks>all|[0-9]{1,6}(?:,[0-9]{1,6})*))?"
)


def parse_profile(text: str) -> Profile:
    """Parse `10`, `10-12`, `10-12@0,3`, `10-12@all`, `nsys`, `nsys@0,3` or `nsys:10-12`.

    Raise WrongUsage for anything else.
    """
    found = re.fullmatch(_PROFILE, text)
    if not found or not (found["first"] or found["nsys"]):
        raise WrongUsage(
            f"`--profile {text}` is not STEPS or STEPS@RANKS",
            "write `--profile 10-12`, `--profile 10-12@0,1`, `--profile 10-12@all`, or `--profile nsys`",
        )
    ranks: tuple[int, ...] | None = None
    if found["ranks"] != "all":
        ranks = tuple(sorted({int(number) for number in (found["ranks"] or "0").split(",")}))
    if not found["first"]:
        return Profile(None, None, ranks, with_nsys=True)
    first, last = int(found["first"]), int(found["last"] or found["first"])
    wrong = ""
    if first < 1:
        wrong = "steps count from 1"
    elif last < first:
        wrong = "it ends before it begins"
    elif last >= first + MOST_PROFILED:
        wrong = f"at most {MOST_PROFILED} steps are profiled"
    if wrong:
        raise WrongUsage(f"`--profile {text}`: {wrong}", "write `--profile 10-12`")
    return Profile(first, last, ranks, with_nsys=bool(found["nsys"]))


def parse_override(text: str) -> tuple[str, Any]:
    """Parse `a.b.c=value`, where the value is JSON or a string; raise WrongUsage for anything else."""
    key, equals, raw = text.partition("=")
    if not equals or not all(key.split(".")):
        raise WrongUsage(
            f"`--set {text}` is not KEY=VALUE", "write `--set zero_optimization.sub_group_size=1e8`"
        )
    try:
        value = json.loads(raw, parse_float=_ds_config_number, parse_constant=_ds_config_number)
    except ValueError:
        value = raw
    except RecursionError:
        raise WrongUsage(f"the value of `--set {key}` is nested too deeply") from None
    return key, value


def override_text(key: str, value: object) -> str:
    """Write `a.b.c=value` so that `parse_override` reads the same; a number may be written in another way."""
    text = json.dumps(value)
    if isinstance(value, str):
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            text = value
    return f"{key}={text}"


def _ds_config_number(text: str) -> int | float:
    """Parse `1e8` as an integer, like DeepSpeed's JSON reader."""
    value = float(text)
    if not math.isfinite(value):
        raise WrongUsage(f"a ds_config cannot contain the number {text}")
    return narrowed(value)
