"""What stands in front of a command: variables, and programs that run it, such as `uv run` or `srun`."""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

STARTS_TASKS = ("srun", "mpirun", "mpiexec", "mpiexec.hydra")
"""Wrappers that run the command several times, with variables that number the processes."""

ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)

_SHELLS = ("bash", "dash", "sh", "zsh")
_TEXT = re.compile(r"-[a-z]*c")
_EVAL = "eval"
_MODULE = ("-m", "--module")


class _Wrapper(NamedTuple):
    """How the command line of a program ends in another one."""

    with_value: str = ""
    """Its options that a word follows; `OPTION:2` for two words."""
    verb: str = ""
    """Its command that runs another one."""
    operands: int = 0
    """Words that are no options, before the command."""


_CONDA = _Wrapper("-n --name -p --prefix --cwd", "run")
_CONTAINER = _Wrapper(
    "-B --bind --env --env-file -H --home -o --overlay --pwd --cwd -W --workdir -S --scratch --mount",
    "exec",
    1,
)
_MPI = _Wrapper(
    "-n -np -c -N -H -host --host -hosts -hostfile --hostfile -machinefile --machinefile -f -npernode "
    "--npernode -ppn -map-by --map-by -bind-to --bind-to -rank-by --rank-by -x -wdir --wdir -wd "
    "-launcher -iface --mca:2 -mca:2 -genv:2 -env:2 --prefix -output-filename --output-filename"
)
_SRUN = _Wrapper(
    "-A -B -c -d -D -e -E -G -i -J -L -m -M -N -n -o -p -q -r -S -t -T -w -W -x -Z --nodes --ntasks "
    "--ntasks-per-node --cpus-per-task --gpus --gpus-per-node --gpus-per-task --gres --partition "
    "--account --time --job-name --output --error --input --nodelist --exclude --export --cpu-bind "
    "--gpu-bind --mem --mem-per-cpu --mpi --jobid --chdir --container-image --container-mounts "
    "--container-workdir --container-name --het-group --qos --constraint --reservation --distribution "
    "--network --threads-per-core --kill-on-bad-exit --wait"
)
_UV = _Wrapper(
    "--with --with-editable --with-requirements --extra --no-extra --group --no-group --only-group "
    "--env-file --index --default-index --index-url -i --extra-index-url --find-links -f -p --python -P "
    "--upgrade-package --project --directory --package --cache-dir --config-file -C --config-setting "
    "--refresh-package --python-platform --prerelease --resolution --link-mode --color",
    "run",
)

WRAPPERS: Mapping[str, _Wrapper] = {
    "apptainer": _CONTAINER,
    "chrt": _Wrapper("-T -P -D", operands=1),
    "command": _Wrapper(),
    "conda": _CONDA,
    "env": _Wrapper("-u --unset -C --chdir"),
    "exec": _Wrapper("-a"),
    "hatch": _Wrapper("-e --env -p --project", "run"),
    "ionice": _Wrapper("-c -n --class --classdata"),
    "mamba": _CONDA,
    "micromamba": _CONDA,
    **dict.fromkeys(STARTS_TASKS, _MPI),
    "nice": _Wrapper("-n --adjustment"),
    "nohup": _Wrapper(),
    "nsys": _Wrapper(
        "-o --output -t --trace -s --sample -c --capture-range -y --delay -d --duration", "profile"
    ),
    "numactl": _Wrapper(
        "-N -m -C -i -p --cpunodebind --membind --physcpubind --interleave --preferred --localalloc"
    ),
    "pdm": _Wrapper("-p --project", "run"),
    "pipenv": _Wrapper("--python", "run"),
    "pixi": _Wrapper("-e --environment --manifest-path", "run"),
    "poetry": _Wrapper("-C --directory -P --project", "run"),
    "rye": _Wrapper("--pyproject", "run"),
    "setsid": _Wrapper(),
    "singularity": _CONTAINER,
    "srun": _SRUN,
    "stdbuf": _Wrapper("-i -o -e --input --output --error"),
    "strace": _Wrapper("-o -e -p -s -E -O"),
    "sudo": _Wrapper("-u -g -C -D -h -p -R -T -U --user --group"),
    "taskset": _Wrapper(operands=1),
    "time": _Wrapper("-f -o --format --output"),
    "timeout": _Wrapper("-s -k --signal --kill-after", operands=1),
    "unbuffer": _Wrapper(),
    "uv": _UV,
    "xvfb-run": _Wrapper("-e -f -n -p -s -w --server-args"),
}
"""Name of a program → how it ends in another command line, which it runs."""

OTHER_ENVIRONMENTS = frozenset(name for name, wrapper in WRAPPERS.items() if wrapper.verb in ("run", "exec"))
"""Wrappers in whose environment zlaunch must be installed, too."""


@dataclass(frozen=True)
class Wrapped:
    """A command, and what stands in front of it."""

    words: tuple[str, ...]
    """The program and its arguments; empty if a shell reads a text."""
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    text: str | None = None
    """What a shell reads, as in `bash -c TEXT`."""
    after: tuple[str, ...] = ()
    """What follows the text."""

    @property
    def is_bare(self) -> bool:
        """Whether nothing stands in front."""
        return not self.environment and not self.prefix

    @property
    def wrappers(self) -> tuple[str, ...]:
        """The programs in front."""
        names = (program_name(word) for word in self.prefix)
        return tuple(name for name in names if name in WRAPPERS)


def program_name(word: str) -> str:
    """Return the name of a program that may be given by its path."""
    return word.rpartition("/")[2]


def unwrap(words: Sequence[str], is_program: Callable[[str], bool]) -> Wrapped:
    """Take off what stands in front of a command; `is_program` tells the names of known programs.

    `env` without options only sets variables, and is dropped.
    """
    rest, environment, prefix = deque(words), dict[str, str](), list[str]()
    is_empty = False
    """Whether an `env` in front of it drops all other variables, so that its own stay behind it."""
    while rest:
        name = program_name(rest[0])
        if assignment := ASSIGNMENT.fullmatch(rest[0]):
            environment[assignment["name"]] = assignment["value"]
            word = rest.popleft()
            if is_empty:
                prefix.append(word)
            continue
        if name in (*_SHELLS, _EVAL):
            place = _place_of_text(rest)
            if place is not None:
                whole = (*prefix, *list(rest)[:place])
                return Wrapped((), environment, whole, rest[place], tuple(rest)[place + 1 :])
            break
        taken = 0
        if name in WRAPPERS and ("/" in rest[0] or not Path(rest[0]).is_file()):
            taken = _length([*rest], WRAPPERS[name], is_program)
        if taken == 0:
            break
        part = [rest.popleft() for _ in range(taken)]
        is_empty = name == "env" and taken > 1
        if name != "env" or is_empty:
            prefix += part
        if rest and rest[0] in _MODULE:  # `uv run -m NAME`
            rest[0] = "-m"
            rest.appendleft("python")
    return Wrapped(tuple(rest), environment, tuple(prefix))


def _place_of_text(words: Sequence[str]) -> int | None:
    """Find the text that a shell reads by `-c`."""
    if words[0] == _EVAL and len(words) == 2:
        return 1
    for place, word in enumerate(words):
        if place and not word.startswith("-"):
            return None
        if place and _TEXT.fullmatch(word) and place + 1 < len(words):
            return place + 1
    return None


def _length(words: Sequence[str], wrapper: _Wrapper, is_program: Callable[[str], bool]) -> int:
    """Count the words of a wrapper; 0 if it runs no other command."""
    lengths = {}
    for option in wrapper.with_value.split():
        name, _, count = option.partition(":")
        lengths[name] = int(count or 1)
    at, is_verb_missing, operands = 1, bool(wrapper.verb), wrapper.operands
    while at < len(words):
        word = words[at]
        if word == "--" and not is_verb_missing:
            return at + 1
        if word in _MODULE and wrapper is _UV and not is_verb_missing:
            return at
        if word.startswith("-"):
            at += 1 + lengths.get(word, 0)
        elif is_verb_missing:
            if word not in (wrapper.verb, "run"):
                return 0
            is_verb_missing = False
            at += 1
        elif operands:
            operands -= 1
            at += 1
        elif _is_value(words, at, is_program):
            at += 1
        else:
            return at
    return 0


def _is_value(words: Sequence[str], at: int, is_program: Callable[[str], bool]) -> bool:
    """Whether a word is rather the value of an unknown option than a command."""
    word, before = words[at], words[at - 1]
    may_be = before.startswith("-") and before != "--" and "=" not in before and not _starts(word, is_program)
    return may_be and any(_starts(other, is_program) for other in words[at + 1 :])


def _starts(word: str, is_program: Callable[[str], bool]) -> bool:
    name = program_name(word)
    is_command = name in WRAPPERS or name in _SHELLS or word.endswith(".py")
    return is_command or is_program(name) or ASSIGNMENT.fullmatch(word) is not None
