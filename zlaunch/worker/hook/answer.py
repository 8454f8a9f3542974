"""Answer which arguments a program trains with: let it run until it has them, then leave.

The process ends before an optimizer takes a step; a program without any of the known points may use a
device until then. Only the standard library is imported here.
"""

import contextlib
import dataclasses
import enum
import functools
import inspect
import math
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, NoReturn

from zlaunch.json_lines import plain
from zlaunch.rundir.write import write_record
from zlaunch.secrets import is_secret
from zlaunch.worker.hook.confinement import Confinement, MadeDirectories, remove_empty
from zlaunch.worker.hook.imports import ImportWatch
from zlaunch.worker.hook.program_record import FSDP, PARALLEL
from zlaunch.worker.hook.trackers import turn_off

if TYPE_CHECKING:
    import argparse

    from zlaunch.job.answer import AnswerRecord

_PARSERS = ("parse_args_into_dataclasses", "parse_dict")
"""Methods of HfArgumentParser, also of copies of it."""

_MOST_FILES = 1024
"""Files to remember; arguments are read before data."""

_INSTALLED = {"site-packages", "dist-packages", "__pycache__"}
_ELSEWHERE = (str(Path(__file__).parents[2]), sysconfig.get_path("stdlib"), "/proc", "/sys", "/dev")


def install(file: str) -> None:
    """Watch for the points at which a program has its arguments; `file` gets the answer."""
    if (written := os.environ.get("ZLAUNCH_ANSWER_WRITTEN")) is not None:
        confinement = Confinement(Path(written), "a program that is asked for its arguments", only_files=True)
        confinement.install()
        made = confinement.made
        if "WANDB_SWEEP_ID" not in os.environ:  # its configuration has the arguments
            ImportWatch(["wandb"], turn_off).install()
    else:
        made = MadeDirectories()
        made.install()
    answer = _Answer(Path(file), made)
    sys.addaudithook(answer.hear)

    def wrap(module: ModuleType) -> None:
        with _leaving():
            _wrap(module, answer)

    with _leaving():
        ImportWatch(_POINTS, wrap).install()
        ImportWatch([_GROUPS], _make_alone).install()


_GROUPS = "torch.distributed.distributed_c10d"


def _make_alone(groups: ModuleType) -> None:
    """Let the process group consist of this process: from then on, it is the only rank."""
    init = groups.init_process_group

    @functools.wraps(init)
    def alone(*args: object, **kwargs: object) -> object:
        given = inspect.signature(init).bind(*args, **kwargs)
        if "world_size" in given.arguments:
            given.arguments.update(rank=0, world_size=1)
        os.environ.update({name: "1" for name in os.environ if name.endswith("WORLD_SIZE")})
        return init(*given.args, **given.kwargs)

    groups.init_process_group = alone  # type: ignore[attr-defined]


class _Answer:
    def __init__(self, file: Path, made: MadeDirectories) -> None:
        self._file = file
        self._opened: set[str] = set()
        self._made = made

    def hear(self, event: str, args: tuple[object, ...]) -> None:
        """Note the files that the program opens for reading."""
        with contextlib.suppress(Exception):  # the program would see it
            if event == "open" and len(self._opened) < _MOST_FILES:
                path, _, flags = args
                if isinstance(path, str) and isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY:
                    file = Path(path).absolute()
                    if _is_own(file):
                        self._opened.add(str(file))

    def give(self, make: "_Make", given: Mapping[str, object]) -> NoReturn:
        """Write the answer, and leave without running anything else."""
        with _leaving():
            answer = {**plain(make(given)), "files": self._files(), "seq_len": _seq_len()}
        remove_empty(self._made.paths)
        with _leaving():
            write_record(self._file, answer, indent=None)  # this process may be killed from here on
        os._exit(0)

    def _files(self) -> list[str]:
        """List what the answer depends on: files of the program, and where packages are installed."""
        modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        sources = {file for file in modules if isinstance(file, str) and _is_own(Path(file))}
        installed = {*site.getsitepackages(), site.getusersitepackages()}
        return sorted(installed | {file for file in sources | self._opened if Path(file).is_file()})


@contextlib.contextmanager
def _leaving() -> Iterator[None]:
    """End the program if something fails here: it would train otherwise."""
    try:
        yield
    except Exception:  # noqa: BLE001 - whatever it is
        traceback.print_exc()
        os._exit(os.EX_SOFTWARE)


def _is_own(file: Path) -> bool:
    """Whether a file may belong to the program, rather than to an installed package or the system."""
    is_elsewhere = any(str(file).startswith(f"{folder}{os.sep}") for folder in _ELSEWHERE)
    return not is_elsewhere and _INSTALLED.isdisjoint(file.parts)


def _wrap(module: ModuleType, answer: _Answer) -> None:
    for path, (make, when) in _POINTS[module.__name__].items():
        *holder, name = path.split(".")
        owner: object = module
        for part in holder:  # another release may not have it
            owner = getattr(owner, part, None)
        function = getattr(owner, name, None)
        if function is not None:
            setattr(owner, name, when(function, make, answer))


_Make = Callable[[Mapping[str, object]], "AnswerRecord"]
_When = Callable[[Callable[..., object], _Make, _Answer], Callable[..., object]]


def _answer_instead(function: Callable[..., object], make: _Make, answer: _Answer) -> Callable[..., object]:
    """Answer when a function is called; it does not run."""

    @functools.wraps(function)
    def asked(*args: object, **kwargs: object) -> object:
        try:
            given = inspect.signature(function).bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # it raises a better error
        return answer.give(make, given)

    return asked


def _afterwards(function: Callable[..., object], make: _Make, answer: _Answer) -> Callable[..., object]:
    @functools.wraps(function)
    def asked(*args: object, **kwargs: object) -> object:
        function(*args, **kwargs)
        answer.give(make, {"self": args[0]})

    return asked


def _training_arguments(given: Mapping[str, object]) -> "AnswerRecord":
    arguments = given["self"]
    listed = dataclasses.fields(arguments)  # type: ignore[arg-type]
    fields = [field for field in listed if not is_secret(field.name)]  # the answer is kept in a file
    values = {field.name: _json_value(getattr(arguments, field.name, None)) for field in fields}
    answer: AnswerRecord = {
        "reached": "TrainingArguments",
        "name": type(arguments).__name__,
        "arguments": {name: value for name, value in values.items() if value is not ...},
        "changed": [field.name for field in fields if _is_changed(field, values[field.name])],
        "takes_flags": False,
        "model": None,
        "rejected": [],
        "options": [],
    }
    if getattr(arguments, "fsdp", None):
        answer["reached"] = FSDP
    parser = _frame_of(_PARSERS)
    if parser is not None:
        answer["takes_flags"] = _parses_command_line(parser)
        answer["model"] = _model_name(parser.f_locals)
        answer["rejected"] = _rejected(parser)
    if answer["rejected"]:
        answer["options"] = list(_OPTIONS)
    return answer


def _json_value(value: object) -> object:
    """Return a value as JSON has it; an ellipsis for other kinds."""
    if isinstance(value, enum.Enum):
        value = value.value
    if value is None or isinstance(value, bool | int | float | str | dict):
        return value
    return ...


def _is_changed(field: "dataclasses.Field[object]", value: object) -> bool:
    """Whether somebody chose a value; a default of None is often replaced by the class itself."""
    return _json_value(field.default) not in (None, ..., value)


def _frame_of(names: Sequence[str]) -> FrameType | None:
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - inspect.currentframe() may be None
    while frame is not None and frame.f_code.co_name not in names:
        frame = frame.f_back
    return frame


def _parses_command_line(parser: FrameType) -> bool:
    """Whether flags on the command line reach a parser, which may take `--config FILE` off it first."""
    words, args = sys.argv[1:], parser.f_locals.get("args")
    if parser.f_code.co_name != _PARSERS[0]:
        return False
    if "--config" in words and args != words:
        at = words.index("--config")
        words = [*words[:at], *words[at + 2 :]]
    return args is None or args == words


def _rejected(parser: FrameType) -> list[str]:
    rest = parser.f_locals.get("remaining_args")
    tolerant = parser.f_locals.get("return_remaining_strings", True)
    if tolerant or not isinstance(rest, list):
        return []
    words = [str(word) for word in rest]
    return [word.partition("=")[0] for word in words if word.startswith("-")] or words[:1]


def _model_name(known: Mapping[str, object]) -> str | None:
    """Find the name of the model among what a parser has read so far."""
    from zlaunch.job.model import MODEL_FLAGS

    args, outputs = known.get("args"), known.get("outputs")
    objects = [known.get("namespace")]
    if isinstance(outputs, list):
        objects += outputs
    for flag in MODEL_FLAGS:
        values = [getattr(parsed, flag, None) for parsed in objects]
        if isinstance(args, dict):
            values.append(args.get(flag))
        for value in values:
            if isinstance(value, str):
                return value
    return None


def _seq_len() -> int | None:
    """Find the sequence length among what the program's parsers have read."""
    from zlaunch.job.model import LENGTHS

    read, parser = [*_PARSED], _frame_of(_PARSERS)
    if parser is not None and isinstance(outputs := parser.f_locals.get("outputs"), list):
        read += outputs
    for name in LENGTHS:
        for parsed in reversed(read):
            value = getattr(parsed, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None


def _accelerator(given: Mapping[str, object]) -> "AnswerRecord":
    if given.get("cpu"):
        return {"reached": "Accelerator(cpu=True)"}
    if given.get("fsdp_plugin"):
        return {"reached": FSDP}
    plugin = given.get("deepspeed_plugins") or given.get("deepspeed_plugin")
    if isinstance(plugin, dict):
        plugin = next(iter(plugin.values()), None)  # the active one
    config = _dict_or_path(getattr(plugin, "deepspeed_config", None))
    if isinstance(config, dict):  # accelerate adds `steps_per_print`, with a number that JSON does not have
        config = {key: value for key, value in config.items() if value != math.inf}
    return {"reached": "Accelerator", "ds_config": config}


def _engine(given: Mapping[str, object]) -> "AnswerRecord":
    args, config = given.get("args"), given.get("config") or given.get("config_params")
    config = _dict_or_path(getattr(args, "deepspeed_config", None) or config)
    return {
        "reached": "deepspeed.initialize",
        "ds_config": config,
        "config_flags": list(_config_flags(config)),
        "local_rank_flag": _local_rank_flag(args),
    }


def _local_rank_flag(args: object) -> str:
    """Find the option for the local rank of a program that did not learn it from the environment."""
    if getattr(args, "local_rank", None) != -1:
        return ""
    return next((flag for flag in ("--local_rank", "--local-rank") if flag in _OPTIONS), "--local_rank")


def _config_flags(config: dict[str, object] | str | None) -> tuple[str, ...]:
    """Find the options before the path of a ds_config, given the one that is used without them."""
    switch, file = _OPTIONS.get("--deepspeed"), _OPTIONS.get("--deepspeed_config")
    if file is not None and _takes_path(file) and config in (None, file.default):
        if switch is not None and switch.nargs == 0:
            return ("--deepspeed", "--deepspeed_config")
        return ("--deepspeed_config",)
    if config is None:
        if file is None and switch is not None and _takes_path(switch):
            return ("--deepspeed",)
        return ()
    flags = {
        id(option): flag
        for flag, option in _OPTIONS.items()
        if option.default == config and _takes_path(option)
    }
    if len(flags) != 1:
        return ()
    return tuple(flags.values())


def _takes_path(option: "argparse.Action") -> bool:
    return option.nargs is None and option.choices is None and option.type in (None, str, Path)


def _strategy(given: Mapping[str, object]) -> "AnswerRecord":
    """Read from Lightning's DeepSpeedStrategy what is final; the rest is its own choice, not the user's."""
    config = getattr(given["self"], "config", None)
    zero = {}
    if isinstance(config, dict):
        zero = config.get("zero_optimization", {})
    final = {key: zero[key] for key in ("stage", "offload_optimizer", "offload_param") if key in zero}
    later = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    return {"reached": "DeepSpeedStrategy", "ds_config": {**later, "zero_optimization": final}}


def _other_strategy(given: Mapping[str, object]) -> "AnswerRecord":
    """Name the strategy of a Trainer or Fabric of Lightning; DeepSpeedStrategy has answered before."""
    return {"reached": f"Lightning's {type(getattr(given['self'], 'strategy', None)).__name__}"}


def _dict_or_path(config: object) -> dict[str, object] | str | None:
    if isinstance(config, dict):
        return config
    if isinstance(config, str | os.PathLike):
        return str(config)
    return None


_OPTIONS: dict[str, "argparse.Action"] = {}
"""The options of the program's parsers, by flag."""

_PARSED: list[object] = []
"""What its parsers have read, the last one at the end."""


_depth = 0
"""How many calls of a parser are running: one calls another."""


def _parsing(parse: Callable[..., object], make: _Make, answer: _Answer) -> Callable[..., object]:
    """Remember the options of a parser; if only they are in question, answer when it has read them.

    That of transformers rejects words later, and makes TrainingArguments next.
    """

    @functools.wraps(parse)
    def parsing(parser: "argparse.ArgumentParser", *args: object, **kwargs: object) -> object:
        global _depth  # noqa: PLW0603 - of the program, as its parsers
        with contextlib.suppress(AttributeError):  # it has no public name
            _OPTIONS.update(parser._option_string_actions)  # noqa: SLF001
        _depth += 1
        try:
            parsed = parse(parser, *args, **kwargs)
        finally:
            _depth -= 1
        _PARSED.append(parsed[0] if isinstance(parsed, tuple) else parsed)
        is_last = not _depth and not hasattr(parser, "parse_args_into_dataclasses")
        if is_last and os.environ.get("ZLAUNCH_ANSWER_AT") == "parser":
            answer.give(make, {})
        return parsed

    return parsing


def _without_deepspeed(name: str) -> _Make:
    return lambda _: {"reached": name}


def _first_step(register: Callable[..., object], make: _Make, answer: _Answer) -> Callable[..., object]:
    register(lambda *_: answer.give(make, {}))
    return register


_POINTS: Mapping[str, Mapping[str, tuple[_Make, _When]]] = {
    "argparse": {
        "ArgumentParser.parse_args": (_without_deepspeed(""), _parsing),
        "ArgumentParser.parse_known_args": (_without_deepspeed(""), _parsing),
    },
    "transformers.training_args": {"TrainingArguments.__post_init__": (_training_arguments, _answer_instead)},
    "accelerate.accelerator": {"Accelerator.__init__": (_accelerator, _answer_instead)},
    "deepspeed": {"initialize": (_engine, _answer_instead)},
    **{
        f"{package}.strategies.deepspeed": {"DeepSpeedStrategy.__init__": (_strategy, _afterwards)}
        for package in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric")
    },
    **{
        f"{package}.trainer.trainer": {"Trainer.__init__": (_other_strategy, _afterwards)}
        for package in ("lightning.pytorch", "pytorch_lightning")
    },
    **{
        f"{package}.fabric": {"Fabric.__init__": (_other_strategy, _afterwards)}
        for package in ("lightning.fabric", "lightning_fabric")
    },
    **{
        module: {f"{name}.__init__": (_without_deepspeed(name), _answer_instead)}
        for module, name in PARALLEL.items()
    },
    "torch.distributed.fsdp._fully_shard._fully_shard": {
        "fully_shard": (_without_deepspeed("fully_shard"), _answer_instead)
    },
    "torch.optim.optimizer": {
        "register_optimizer_step_pre_hook": (_without_deepspeed("a plain torch optimizer"), _first_step)
    },
}
"""Module → function → how to answer, and when."""
