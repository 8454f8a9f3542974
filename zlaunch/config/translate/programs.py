"""Recognize programs that are given in place of a training script, and find what to give zlaunch instead.

zlaunch starts the ranks, so it needs the script or module that runs in each of them. `trl sft`, for example,
starts the module `trl.scripts.sft` with accelerate.
"""

import os
import re
import shlex
import shutil
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.frozen import dataclass
from zlaunch.job.launching_source import launcher_in, launcher_near, starts_ranks_itself
from zlaunch.job.module_files import find_module


@dataclass(frozen=True, slots=True)
class StartsRanks:
    """A program that starts ranks, with a command for each kind of training."""

    name: str
    modules: Mapping[str, str]
    """Command → module that runs in each rank; empty if it runs a script, which is its first argument."""
    own_flags: tuple[str, ...] = ()
    """Flags with a value that are for its launcher, not for the module."""
    writes_out_files: bool = False
    """Whether it turns a YAML file into flags before it starts the module."""
    reads_variables: bool = False
    """Whether `NNODES`, `NPROC_PER_NODE` and the like say how many ranks it starts."""
    starts_one: bool = False
    """Whether it starts a single process without these variables."""


_FABRIC = StartsRanks(
    "fabric",
    {"run": ""},
    own_flags=(
        *("--accelerator", "--strategy", "--devices", "--num-nodes", "--num_nodes", "--node-rank"),
        *("--node_rank", "--main-address", "--main_address", "--main-port", "--main_port", "--precision"),
    ),
)

PROGRAMS: Mapping[str, StartsRanks] = {
    "trl.cli": StartsRanks(
        "trl",
        {
            name: f"trl.scripts.{name}"
            for name in ("sft", "dpo", "grpo", "kto", "reward", "rloo", "distillation")
        },
        own_flags=("--accelerate_config", "--config_file", "--num_processes", "--num_machines"),
    ),
    "llamafactory.cli": StartsRanks(
        "llamafactory-cli", {"train": "llamafactory.launcher"}, reads_variables=True
    ),
    "axolotl.cli.main": StartsRanks("axolotl", {"train": "axolotl.cli.train"}, own_flags=("--launcher",)),
    "swift.cli.main": StartsRanks(
        "swift",
        {name: f"swift.cli.{name}" for name in ("sft", "pt", "rlhf")},
        writes_out_files=True,
        reads_variables=True,
        starts_one=True,
    ),
    "composer.cli.launcher": StartsRanks(
        "composer",
        {},
        own_flags=(
            *("-n", "--nproc", "--stdout", "--stderr", "--world_size", "--base_rank", "--node_rank"),
            *("--master_addr", "--master_port", "--run_directory"),
        ),
    ),
    "lightning.fabric.cli": _FABRIC,
    "lightning_fabric.cli": _FABRIC,
}
"""Module with the program's `main` → the program.

Read from TRL 1.16, LLaMA-Factory 0.9.5, axolotl 0.21, ms-swift 4.6, Composer 0.32 and Lightning 2.6.
"""

_ARCTIC = ("arctic_training_cli", "arctic_training.cli")
_NO_DEEPSPEED: Mapping[str, str] = {
    "torchtune._cli.tune": "`tune run` starts ranks itself, and torchtune trains with FSDP, not DeepSpeed"
}
"""Module of a program that starts ranks of which none uses DeepSpeed → why zlaunch cannot start it."""

_COUNTS_RANKS = (
    *(
        "--num_processes",
        "--num-processes",
        "--nproc_per_node",
        "--nproc-per-node",
        "--devices",
        "-n",
        "--nproc",
    ),
    "--num_gpus",
)
"""Flags of these programs that say how many ranks one host has."""

_ACCELERATE = "accelerate.commands.accelerate_cli"

LAUNCHERS: Mapping[str, str] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "deepspeed.launcher.runner": "deepspeed",
    _ACCELERATE: "accelerate",
    "accelerate.commands.launch": "accelerate-launch",
}
"""Module with the `main` of a launcher that `zlaunch config translate` knows → its name."""

_NAMES: Mapping[str, str] = {
    **{program.name: module for module, program in PROGRAMS.items()},
    **{name: module for module, name in LAUNCHERS.items()},
    "lmf": "llamafactory.cli",
    "arctic_training": _ARCTIC[0],
    "tune": "torchtune._cli.tune",
    "ds": "deepspeed.launcher.runner",
    "deepspeed.pt": "deepspeed.launcher.runner",
}
"""Name on the command line → module. DeepSpeed's are not entry points; others may be installed elsewhere."""

_PYTHON = re.compile(r"python[\d.]*")
_CONSOLE_SCRIPT = re.compile(r"#!.*?^from ([\w.]+) import \w+", re.MULTILINE | re.DOTALL)
_MAIN_GUARD = re.compile(r"""^if __name__ == ["']__main__["']:""", re.MULTILINE)
_MOST_BYTES = 4096
"""Console scripts are shorter."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What to give zlaunch instead of a program."""

    why: str
    """Why zlaunch cannot start the program."""
    hint: str = ""
    program: tuple[str, ...] = ()
    """What runs in each rank, as zlaunch takes it; empty if the hint says all that is known."""
    args: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    """What is left out or must be changed, and why."""
    launcher: tuple[str, ...] = ()
    """The command of a launcher that `zlaunch config translate` knows."""
    options: tuple[str, ...] = ()
    """Options of zlaunch."""
    starts: StartsRanks | None = None

    @property
    def line(self) -> str | None:
        """The command of zlaunch, if it is known."""
        if not self.program:
            return None
        return shlex.join(self.words(()))

    def words(self, options: Sequence[str]) -> tuple[str, ...]:
        """The command of zlaunch, with further options."""
        words = ("zlaunch", "train", *self.options, *options, *self.program)
        if self.args:
            words += ("--", *self.args)
        return words

    def error(self) -> WrongUsage:
        """Explain it in an error."""
        hint = self.hint if self.line is None else f"`{self.line}`"
        return WrongUsage(self.why, "; ".join([hint, *(f"`{what}`: {why}" for what, why in self.notes)]))


def is_program(name: str) -> bool:
    """Whether this is the name of a program that starts ranks, or of Python."""
    if _PYTHON.fullmatch(name) or name in _NAMES:
        return True
    installed = next(iter(entry_points(group="console_scripts", name=name)), None)
    return installed is not None and installed.module in {*PROGRAMS, *LAUNCHERS, *_ARCTIC, *_NO_DEEPSPEED}


def variables_of(
    program: Replacement, assigned: Mapping[str, str], environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str], list[tuple[str, str]]]:
    """Translate the variables that a program reads: those that are kept, options of zlaunch, and notes.

    `assigned` are those in front of the command, `environ` all others.
    """
    kept, options, notes = dict(assigned), list[str](), list[tuple[str, str]]()
    if program.starts is None or not program.starts.reads_variables:
        return kept, options, notes
    name, all_variables = program.starts.name, {**environ, **assigned}
    ranks, hosts = all_variables.get(_PER_NODE), all_variables.get("NNODES")
    if ranks is not None and hosts in (None, "1"):
        kept.pop(_PER_NODE, None)
        options = ["--gpus", ranks]
        notes.append((f"{_PER_NODE}={ranks}", f"`--gpus {ranks}`"))
    if program.starts.starts_one and ranks is None and hosts is None:
        notes.append((name, f"starts one process without {_PER_NODE}, for which zlaunch has `--gpus 1`"))
    if kept.pop("FORCE_TORCHRUN", None) is not None:
        notes.append(("FORCE_TORCHRUN", "left out: zlaunch always starts ranks"))
    return kept, options, notes


_PER_NODE = "NPROC_PER_NODE"


def replacement(options: Sequence[str], words: Sequence[str]) -> Replacement | None:
    """Find what to type if a command line names a program instead of a script; None if it does not.

    `words` are the program, or `-m` and a module, and everything after it; `options` are those of zlaunch
    before it.
    """
    name, *rest = words
    if "--python" not in options:
        options = [*options, *_python_of(name)]
    if name == "-m":
        if rest:
            return _of_module(rest[0], ["python", *words], options, rest[1:])
        return None
    if _PYTHON.fullmatch(Path(name).name):
        return _of_python(words, options, rest)
    module = _module_of(name)
    if module is None:
        return None
    program = _of_module(module, words, options, rest) or _of_unknown_launcher(module, name)
    return program or _of_entry_point(name, module, options, rest)


def _python_of(name: str) -> list[str]:
    """Name the Python of a program that is given by its path, unless it is that of zlaunch."""
    path = Path(name)
    is_python = bool(_PYTHON.fullmatch(path.name))
    python = path if is_python else path.parent / "python"
    folder = Path(sys.executable).parent
    if "/" not in name or path.absolute().parent in (folder, folder.resolve()) or not python.is_file():
        return []
    return ["--python", str(python)]


def _of_python(words: Sequence[str], options: Sequence[str], rest: list[str]) -> Replacement:
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        del rest[: 2 if rest[0] in ("-X", "-W") else 1]
    if len(rest) > 1 and rest[0] == "-m" and (program := _of_module(rest[1], words, options, rest[2:])):
        return program
    why = f"`{words[0]}` is not a training script; zlaunch starts Python itself"
    if not rest or rest[0] in ("-c", "-"):
        return Replacement(why, "write the code to a file, and give that to `zlaunch train`")
    cut = 2 if rest[0] == "-m" else 1
    return Replacement(why, program=tuple(rest[:cut]), args=tuple(rest[cut:]), options=tuple(options))


def _of_module(
    module: str, words: Sequence[str], options: Sequence[str], rest: Sequence[str]
) -> Replacement | None:
    if module in PROGRAMS:
        return _replacement_of(PROGRAMS[module], options, rest)
    if module in _NO_DEEPSPEED:
        return Replacement(_NO_DEEPSPEED[module], "start it without zlaunch")
    if module in _ARCTIC:
        return _of_arctic(options, [word for word in rest if word != "--"])
    if module not in LAUNCHERS:
        return None
    if module == _ACCELERATE and [word for word in rest if word != "--"][:1] != ["launch"]:
        return Replacement(
            "`accelerate` starts training only as `accelerate launch`", "name the training script"
        )
    # In `zlaunch train torchrun -- …` the dashes are for zlaunch.
    command = tuple(word for place, word in enumerate(words) if (place, word) != (1, "--"))
    return Replacement(
        f"`{LAUNCHERS[module]}` starts ranks, and so does zlaunch",
        f"see `zlaunch config translate -- {shlex.join(command)}`",
        launcher=command,
        options=tuple(options),
    )


def _of_arctic(options: Sequence[str], words: Sequence[str]) -> Replacement:
    """Write the command of DeepSpeed's launcher that ArcticTraining runs."""
    why = "`arctic_training` starts ranks, and so does zlaunch"
    mode = next((word for word in words[:1] if word in ("train", "process-data")), "")
    rest = list(words[bool(mode) :])
    if not rest or rest[0].startswith("-"):
        return Replacement(
            why, "name its config: see `zlaunch config translate -- arctic_training train CONFIG`"
        )
    script = _file_of("arctic_training_run")
    command = ("deepspeed", *rest[1:], script, "--mode", mode or "train", "--config", rest[0])
    hint = f"see `zlaunch config translate -- {shlex.join(command)}`"
    return Replacement(why, hint, launcher=command, options=tuple(options))


def _of_unknown_launcher(module: str, name: str) -> Replacement | None:
    """Explain that a program starts ranks itself, if the source of its module says so."""
    try:
        launcher = launcher_in(find_module(module, os.environ))
    except InputMissing:
        return None
    if launcher is None:
        return None
    return Replacement(*starts_ranks_itself(f"`{name}`", launcher))


def _replacement_of(program: StartsRanks, options: Sequence[str], rest: Sequence[str]) -> Replacement:
    place = next((place for place, word in enumerate(rest) if word in program.modules), None)
    if not program.modules:
        place = -1
    if place is None:
        command = shlex.join([program.name, *(word for word in rest[:1] if word != "--")])
        known = ", ".join(f"`{program.name} {command}`" for command in program.modules)
        return Replacement(f"`{command}` does not train a model", f"zlaunch can replace {known}")
    verb = list(rest[place : place + 1])
    before = [word for word in rest[: place + 1][:-1] if word != "--"]
    given = [word for number, word in enumerate(rest[place + 1 :]) if (number, word) != (0, "--")]
    if program.modules:
        args, left_out = _split_arguments(program.own_flags, given)
    else:
        args, left_out = _split_at_script(program.own_flags, given)
    ranks, left_out = _take_ranks(left_out)
    notes: list[tuple[str, str]] = []
    if ranks is not None:
        written, number = ranks
        before += ["--gpus", number]
        notes.append((written, f"`--gpus {number}`"))
    if left_out:
        why = "dropped, because it configures the program's own launcher (see `zlaunch train --help`)"
        notes.append((shlex.join(left_out), why))
    if program.writes_out_files and args and args[0].endswith((".yaml", ".yml", ".json")):
        notes.append((args[0], "write its settings as `--key value` arguments"))
    module = program.modules.get(verb[0]) if verb else None
    cut = 1
    if args[:1] == ["-m"]:
        cut = 2
    each = tuple(args[:cut])
    if module:
        each, cut = ("-m", module), 0
    return Replacement(
        f"`{shlex.join([program.name, *verb])}` starts ranks, and so does zlaunch",
        program=each,
        args=tuple(args[cut:]),
        notes=tuple(notes),
        options=(*options, *before),
        starts=program,
    )


def _split_at_script(flags: Sequence[str], given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split off the flags in front of a script, or of `-m` and a module."""
    words, left_out = deque(given), list[str]()
    while words and words[0].startswith("-") and words[0] not in ("-m", "--module_mode"):
        word = words.popleft()
        left_out.append(word)
        if word in flags and words:
            left_out.append(words.popleft())
    if words and words[0] == "--module_mode":
        words[0] = "-m"
    return list(words), left_out


def _take_ranks(flags: Sequence[str]) -> tuple[tuple[str, str] | None, list[str]]:
    """Take the flag that says how many ranks there are: as it is written, and its number."""
    for place, word in enumerate(flags):
        name, equals, value = word.partition("=")
        length = 1
        if not equals:
            value, length = "".join(flags[place + 1 : place + 2]), 2
        if name in _COUNTS_RANKS and value.isdigit():
            written = shlex.join(flags[place : place + length])
            return (written, value), [*flags[:place], *flags[place + length :]]
    return None, list(flags)


def _split_arguments(flags: Sequence[str], given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into those of the training module, and those of the program's launcher."""
    cut = given.index("--") if flags and "--" in given else len(given)
    args: list[str] = []
    left_out = list(given[cut + 1 :])
    words = iter(given[:cut])
    for word in words:
        if word in flags:
            left_out += [word, next(words, "")]
        elif word.partition("=")[0] in flags:
            left_out.append(word)
        else:
            args.append(word)
    return args, left_out


def _module_of(name: str) -> str | None:
    """Find the module of a program: in its file, among the packages installed here, or by its name."""
    path = Path(name)
    if path.suffix == ".py":
        return None
    if path.is_file():
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("utf-8", "replace")
        match = _CONSOLE_SCRIPT.match(text)
        known = {*PROGRAMS, *LAUNCHERS, *_ARCTIC, *_NO_DEEPSPEED}
        if match and (match[1] in known or _of_unknown_launcher(match[1], name) is not None):
            return match[1]
        return None
    if name != path.name:
        return None
    installed = next(iter(entry_points(group="console_scripts", name=name)), None)
    if installed is None:
        return _NAMES.get(name)
    return installed.module


def _of_entry_point(name: str, module: str, options: Sequence[str], rest: Sequence[str]) -> Replacement:
    """Name the module of an installed program, or its file if the module is not made to run."""
    args = rest[1:] if rest[:1] == ["--"] else rest
    program = ["-m", module]
    if not _can_run(module):
        program = [_file_of(name)]
    notes: tuple[tuple[str, str], ...] = ()
    if (launcher := launcher_near(module, os.environ)) is not None:
        can = f"can start ranks itself, with {launcher}: if it does, name what runs in each rank instead"
        notes = ((name, can),)
    return Replacement(
        f"`{name}` is an installed program, not a training script",
        program=tuple(program),
        args=tuple(args),
        options=tuple(options),
        notes=notes,
    )


def _file_of(name: str) -> str:
    """Find the file of a program; its name if it is not installed here."""
    scripts = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return shutil.which(name, path=scripts) or name


def _can_run(module: str) -> bool:
    """Whether `python -m` does more with a module than import it."""
    try:
        file = find_module(module, os.environ)
    except InputMissing:
        return False
    return file.name == "__main__.py" or bool(_MAIN_GUARD.search(file.read_text("utf-8", "replace")))
