"""Tell which other programs a confined program may start: those that only tell something."""

import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

_VERSION: Final = r"-{0,2}version|-[vVh]|--help|-v?dump\S+( -v?dump\S+)*|-print-\S+"
"""Arguments with which any program only tells."""
_TELL: Final = frozenset(
    (
        *("arch", "basename", "cat", "clear", "cmp", "cut", "df", "diff"),
        *("dirname", "du", "echo", "egrep", "expr", "false", "fc-list", "fc-match", "ffprobe"),
        *("fgrep", "file", "free", "getconf", "grep", "groups", "head", "ibstat", "ibv_devinfo"),
        *("id", "ldd", "locale", "ls", "lsb_release", "lscpu", "lsmod", "lspci", "md5sum"),
        *("nm", "nproc", "objdump", "printenv", "printf", "ps", "pwd", "readelf", "readlink"),
        *("realpath", "rocminfo", "seq", "sha256sum", "sleep", "soxi", "stat", "tail", "test"),
        *("tput", "tr", "true", "tty", "type", "uname", "uptime", "wc", "which", "whoami"),
    )
)
"""Programs that only tell, whatever their arguments are."""
_WORD: Final = r"('[^']*'|\S+)"
_TELL_WITH: Final[Mapping[str, str]] = {
    "command": "-[vV] .*",
    "conda": "(env )?list.*|info.*",
    "date": r"(-u ?|--utc ?)?('?\+.*)?",
    "dnf": "list .*",
    "dpkg": "(-[lsLS]|--(list|status|listfiles|search|print-architecture)).*",
    "ffmpeg": "(?!.* -y ).* (pipe:1?|-)",
    "git": rf"((-C {_WORD}|--no-pager|-P|--(git-dir|work-tree)={_WORD}) )*"
    "(?!.* --(output|ext-diff|exec|unset|replace-all|add|edit))"
    "((blame|cat-file|describe|diff|for-each-ref|log|ls-files|ls-tree|merge-base|name-rev|rev-list|rev-parse"
    "|shortlog|show|show-ref|status)( .*)?"
    rf"|branch( (-[arv]+|--(all|list|remotes|show-current|verbose)))*|remote( -v| get-url .*)?"
    rf"|config( --(global|local|system|show-origin|null|bool|int|path))*( --get\S* .*| (--list|-l)| {_WORD})"
    "|(stash|worktree) list|tag( (-l|--list).*)?|symbolic-ref( -q| --short)* HEAD)",
    "hostname": "(-[-a-zA-Z]+)?",
    "ip": r"(-\S+ )*(a|addr|address|l|link|r|route)( show.*| list.*)?",
    "ldconfig": "-[NXpv ]*p[NXpv ]*",
    "ld": "-t .*-o /dev/null.*",
    "numactl": "--hardware|-H|--show|-s",
    "nvidia-smi": r"(-[Lqxadi]+|-q.*|topo -\w.*|nvlink -[sc].*|--(query|format|id|list|xml|display)\S*"
    r"|\d[\d,]*|[A-Z_,]+| )*",
    "pacman": "-Q.*",
    "pip": "(list|show|freeze|inspect)( .*)?",
    "python": "-m ?pip (list|show|freeze|inspect)( .*)?",
    "rocm-smi": r"(--show\w*|--json|--csv|-[aditu]|\d| )*",
    "rpm": "-q.*",
    "stty": "size",
    "sysctl": "(?!.*(-w|=|-p)).*",
}
"""Program → arguments with which it only tells."""
_KNOWN_TO_TELL_OR_BUILD: Final = re.compile(
    r"/(site|dist)-packages/(torch/(_inductor/|utils/cpp_extension\.py)|triton/|deepspeed/ops/op_builder/|cpuinfo/)"
    r"|/ctypes/util\.py$"
)
"""Parts of packages that compile native code, which they keep in their caches, or look at the machine."""
_SHELLS: Final = ("sh", "bash", "dash")
_OPERATORS: Final = ("|", "||", "&&", ";", "|&")
_ASSIGNMENT: Final = re.compile(r"\w+=.*", re.DOTALL)
_RESOURCE_TRACKER: Final = re.compile(r"from multiproc\w+\.resource_tracker import main")
"""A process of Python that only removes what other processes have left."""


class NotStarted(PermissionError):
    """What a program gets that would start another one."""

    def __init__(self, by: str, program: str) -> None:
        """Say who does not start which program."""
        super().__init__(f"it would start `{program}`, and {by} starts no program that does more than tell")


STARTS: Final = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")
"""Events of the audit by which a program starts."""


def program_of(event: str, args: Sequence[Any]) -> str | None:
    """Name the program that one of these events starts; None if it only tells something."""
    if event == "os.system":
        return _of_command(os.fsdecode(args[0]))
    return program_among([args[0], *list(args[1])[1:]])


def program_among(words: Sequence[Any]) -> str | None:
    """Name the program of a command line, or in the line of a shell; None if it only tells."""
    texts = [os.fsdecode(word) for word in words]
    if _is_known_to_tell_or_build():
        return None
    if len(texts) == 3 and os.path.basename(texts[0]) in _SHELLS and texts[1] == "-c":  # noqa: PTH119 - short
        return _of_command(texts[2])
    if len(texts) > 2 and _RESOURCE_TRACKER.match(texts[-1]):
        return None
    return _unless_it_tells(texts)


def _unless_it_tells(words: Sequence[str]) -> str | None:
    if not words:
        return None
    name, given = os.path.basename(words[0]), shlex.join(words[1:])  # noqa: PTH119 - short
    if name in _TELL or re.fullmatch(_VERSION, given):
        return None
    if (pattern := _TELL_WITH.get(re.sub(r"[\d.]+$", "", name))) and re.fullmatch(pattern, given):
        return None
    return name


def _of_command(line: str) -> str | None:
    """Name the first program in the line of a shell that does more than tell."""
    shell = shlex.shlex(line.replace("\n", " ; "), posix=True, punctuation_chars=True)
    shell.whitespace_split = True
    try:
        tokens = list(shell)
    except ValueError:
        return line.split(maxsplit=1)[0]
    names = [_of_part(list(part)) for is_operator, part in _parts(tokens) if not is_operator]
    if "`" in line or "$(" in line:
        names.append(next(iter(tokens), line))
    return next((name for name in names if name), None)


def _parts(tokens: Sequence[str]) -> Iterator[tuple[bool, Iterator[str]]]:
    return itertools.groupby(tokens, key=lambda token: token in _OPERATORS)


def _of_part(words: list[str]) -> str | None:
    """Name the program of one command, which may begin with assignments and write to /dev/null alone."""
    plain = list[str]()
    while words:
        word = words.pop(0)
        if not set(word) <= set("<>&()"):
            if plain or not _ASSIGNMENT.fullmatch(word):
                plain.append(word)
            continue
        target = words.pop(0) if words else ""
        if plain and plain[-1] in ("1", "2"):
            plain.pop()
        if "(" in word or (target not in ("/dev/null", "1", "2") and word != "<"):
            return plain[0] if plain else word
    return _unless_it_tells(plain)


def _is_known_to_tell_or_build() -> bool:
    """Whether what starts a program is known to do no more."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - inspect.currentframe() may be None
    while frame is not None:
        if _KNOWN_TO_TELL_OR_BUILD.search(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False
