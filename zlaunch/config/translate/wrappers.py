"""What stands in front of a command: variables, and programs that run it, such as `uv run` or `srun`."""

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from zlaunch.frozen import dataclass

STARTS_TASKS = ("srun", "mpirun", "mpiexec", "mpiexec.hydra")
"""Wrappers that run the command several times, with variables that number the processes."""

ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)

SHELLS = ("bash", "dash", "sh", "zsh")
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


Front = tuple[tuple[str, ...], ...]
"""What stands in front of a command: programs, each with its options."""

_ON_MANY = ("ansible", "clush", "dsh", "parallel-ssh", "pdsh", "pssh")
"""Programs that run the same command on each host that they are told."""

ELSEWHERE = (*_ON_MANY, "docker", "kubectl", "nerdctl", "oc", "podman", "ssh")
"""Programs that run a command without the variables of this machine."""


_READ_AGAIN: Mapping[str, _Wrapper] = {
    "clush": _Wrapper("-w -x -g -X -l -f -t -u -o -m -O"),
    "pdsh": _Wrapper("-w -x -g -X -l -f -t -u -R -M"),
    "ssh": _Wrapper("-B -b -c -D -E -e -F -I -i -J -L -l -m -O -o -p -Q -R -S -W -w", operands=1),
}
"""Programs that join the words of a command to a text, which a shell on another host reads again."""


def text_for_shell(words: Sequence[str]) -> tuple[int, str] | None:
    """Find what a shell on another host reads, and at which word it begins; None if there is none."""
    wrapper = _READ_AGAIN.get(program_name(words[0])) if words else None
    if wrapper is None:
        return None
    length = _words_of(words, wrapper, lambda _: False)
    return (length, " ".join(words[length:])) if length else None


def words_of(front: Front) -> tuple[str, ...]:
    """The words of all programs in front."""
    return tuple(chain.from_iterable(front))


def task_starter(front: Front) -> str | None:
    """The program that starts a command once for each of several tasks, and numbers them; None without one.

    What runs it without the variables of the tasks, as a container does, leaves none.
    """
    starter = None
    for part in front:
        if program_name(part[0]) in STARTS_TASKS:
            starter = program_name(part[0])
        elif _hides_variables(part):
            starter = None
    return starter


def num_tasks(front: Front) -> int | None:
    """How many tasks the last starter is told to start; None if it is not, or only the shell knows."""
    parts = [part for part in front if program_name(part[0]) in STARTS_TASKS]
    if not parts:
        return None
    name, *options = parts[-1]
    if program_name(name) == "srun":
        tasks, nodes = _number(options, "-n", "--ntasks"), _number(options, "-N", "--nodes")
        each = _number(options, "--ntasks-per-node") or 1
        if tasks is None and nodes is not None:
            return nodes * each
        return tasks
    tasks = _number(options, "-n", "-np", "--n", "--np")
    hosts = _option_value(options, "-H", "-host", "--host", "-hosts")
    if tasks is None and hosts and not re.search(r"[^\w.-]", hosts, re.ASCII):
        return 1
    return tasks


def starter_on_many(front: Front) -> tuple[str, bool] | None:
    """The program that runs the same command on several hosts, and whether it is told a single one."""
    for part in front:
        if (name := program_name(part[0])) in _ON_MANY:
            hosts = _option_value(part, "-w", "-H", "-m", "--host") or ""
            return name, bool(re.fullmatch(r"[\w.@-]+", hosts, re.ASCII))
    return None


def ends_in_env(front: Front) -> bool:
    """Whether variables may follow the last of these programs."""
    return bool(front) and program_name(front[-1][0]) == "env"


def hides_variables(front: Front) -> bool:
    """Whether something in front runs the command without the variables of this machine, or of a task."""
    return any(map(_hides_variables, front))


def hands_on_variables(front: Front) -> bool:
    """Whether variables in front of all these programs certainly reach the command behind them."""
    return all(map(_hands_on_variables, front))


def _hands_on_variables(part: Sequence[str]) -> bool:
    name = program_name(part[0])
    if name == "srun":
        return (_option_value(part, "--export") or "ALL").split(",")[0] == "ALL"
    return name in WRAPPERS and name not in STARTS_TASKS and not _hides_variables(part)


def _hides_variables(part: Sequence[str]) -> bool:
    name = program_name(part[0])
    if name == "sudo":
        return not any(word == "-E" or word.startswith("--preserve-env") for word in part)
    if name == "env":
        return not {"-", "-i", "--ignore-environment"}.isdisjoint(part)
    if WRAPPERS.get(name) is _CONTAINER:
        return not {"-e", "--cleanenv", "-C", "--containall"}.isdisjoint(part)
    return name in ELSEWHERE


def _number(options: Sequence[str], *names: str) -> int | None:
    """The number that an option has; of a range, the largest."""
    number = (_option_value(options, *names) or "").rpartition("-")[2]
    if number.isdecimal():
        return int(number)
    return None


def _option_value(options: Sequence[str], *names: str) -> str | None:
    """The value of an option, which may be attached to its name."""
    value = None
    for place, word in enumerate(options):
        name, equals, text = word.partition("=")
        if word in names:
            value = next(iter(options[place + 1 :]), None)
        elif equals and name in names:
            value = text
        elif not word.startswith("--") and word[:2] in names and len(word) > 2 and "-np" not in word:
            value = word[2:]
    return value


@dataclass(frozen=True)
class Wrapped:
    """A command, and what stands in front of it."""

    words: tuple[str, ...]
    """The program and its arguments; empty if a shell reads a text."""
    environment: Mapping[str, str] = field(default_factory=dict)
    front: Front = ()
    behind: frozenset[str] = frozenset()
    """Names of variables that are set behind a program that does not hand them on."""
    text: str | None = None
    """What a shell reads, as in `bash -c TEXT`."""
    after: tuple[str, ...] = ()
    """What follows the text."""

    @property
    def is_bare(self) -> bool:
        """Whether nothing stands in front."""
        return not self.environment and not self.front

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words in front."""
        return words_of(self.front)


def program_name(word: str) -> str:
    """Return the name of a program that may be given by its path."""
    return word.rpartition("/")[2]


def unwrap(words: Sequence[str], is_program: Callable[[str], bool]) -> Wrapped:
    """Take off what stands in front of a command; `is_program` tells the names of known programs.

    `env` without options only sets variables, and is dropped.
    """
    behind = set[str]()
    rest, environment, front = deque(words), dict[str, str](), list[tuple[str, ...]]()
    while rest:
        name = program_name(rest[0])
        if assignment := ASSIGNMENT.fullmatch(rest[0]):
            environment[assignment["name"]] = assignment["value"]
            rest.popleft()
            if ends_in_env(tuple(front)) or not hands_on_variables(tuple(front)):
                behind.add(assignment["name"])
            continue
        if name in (*SHELLS, _EVAL):
            place = _place_of_text(rest)
            if place is not None:
                whole = (*front, tuple(rest)[:place])
                after = tuple(rest)[place + 1 :]
                return Wrapped((), environment, whole, frozenset(behind), rest[place], after)
            break
        taken = 0
        if name in WRAPPERS and ("/" in rest[0] or not Path(rest[0]).is_file()):
            taken = _words_of([*rest], WRAPPERS[name], is_program)
        if taken == 0:
            break
        part = [rest.popleft() for _ in range(taken)]
        if name != "env" or taken > 1:
            front.append(tuple(part))
        if rest and rest[0] in _MODULE:  # `uv run -m NAME`
            rest[0] = "-m"
            rest.appendleft("python")
    return Wrapped(tuple(rest), environment, tuple(front), frozenset(behind))


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


def _words_of(words: Sequence[str], wrapper: _Wrapper, is_program: Callable[[str], bool]) -> int:
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
    is_command = name in WRAPPERS or name in SHELLS or word.endswith(".py")
    return is_command or is_program(name) or ASSIGNMENT.fullmatch(word) is not None
