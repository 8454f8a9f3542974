"""What was typed for a script: its words, and the flags among them."""

import re
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path

from zlaunch.errors import WrongUsage
from zlaunch.frozen import dataclass

TRUE = frozenset({"yes", "true", "t", "y", "1"})
FALSE = frozenset({"no", "false", "f", "n", "0"})

TYPED = "the command line"
"""Where an argument comes from that nothing added."""

_CONFIG_FLAGS = ("--deepspeed", "--deepspeed_config", "--deepspeed-config")
"""The flags by which a script is given a ds_config; beside one of the others, the first is a switch."""


@dataclass(frozen=True, slots=True)
class TypedFlag:
    """One flag of a command line."""

    name: str
    """Without dashes in front, and with `_` for each other one."""
    value: str | None
    """The word that follows it; None for a switch, behind which another flag follows or nothing."""
    index: int
    """The position of its word on the command line."""
    place: str = ""
    """File and line of `zlaunch.yaml`; empty if it was typed on the command line."""


@dataclass(frozen=True)
class ScriptArgs:
    """The command line of a script, as it was typed, and its flags."""

    words: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Name of a flag → file and line of the `zlaunch.yaml` that has it."""
    added: Mapping[int, str] = field(default_factory=dict, compare=False, repr=False)
    """The position of a flag that was not typed → what added it."""

    @classmethod
    def of(cls, words: Iterable[str]) -> "ScriptArgs":
        """Read words of any kind of sequence."""
        return cls(tuple(words))

    @cached_property
    def flags(self) -> tuple[TypedFlag, ...]:
        """Its flags, in the order in which they were typed."""
        found: list[TypedFlag] = []
        for index, word in enumerate(self.words):
            if not word.startswith("--") or len(word) == 2:
                continue
            spelling, equals, text = word.partition("=")
            name = flag_name(spelling)
            value: str | None = None
            following = self.words[index + 1 : index + 2]
            if equals:
                value = text
            elif following and not following[0].startswith("--"):
                value = following[0]
            found.append(TypedFlag(name, value, index, self.places.get(name, "")))
        return tuple(found)

    @cached_property
    def _last(self) -> Mapping[str, TypedFlag]:
        return {flag.name: flag for flag in self.flags}

    def flag(self, name: str) -> TypedFlag | None:
        """Look up a flag by its name in any spelling; the last one counts."""
        return self._last.get(flag_name(name))

    def has(self, name: str) -> bool:
        """Whether a flag was typed."""
        return self.flag(name) is not None

    def value(self, name: str) -> str | None:
        """Return the value of a flag; None if it is a switch, or was not typed."""
        flag = self.flag(name)
        if flag is None:
            return None
        return flag.value

    def is_on(self, *names: str) -> bool | None:
        """Whether the first of these flags that was typed is true; None if none was."""
        for name in names:
            if (flag := self.flag(name)) is not None:
                return (flag.value or "true").lower() in TRUE
        return None

    def words_of(self, name: str) -> tuple[str, ...]:
        """Return all words of a flag that takes several."""
        flag = self.flag(name)
        if flag is None:
            return ()
        words = []
        _, equals, text = self.words[flag.index].partition("=")
        if equals:
            words.append(text)
        for word in self.words[flag.index + 1 :]:
            if word.startswith("--"):
                break
            words.append(word)
        return tuple(words)

    @property
    def fsdp(self) -> str | None:
        """The words with which the Trainer uses FSDP; None if it does not."""
        for flag in self.flags:
            if flag.name == "fsdp" and (flag.value is None or flag.value.lower() not in ("", "false")):
                return f"--fsdp {flag.value or ''}".rstrip()
        return None

    @property
    def config_flags(self) -> tuple[str, ...]:
        """The flags that name a ds_config, in the order in which a file follows them."""
        typed = {word.partition("=")[0] for word in self.words}
        return tuple(flag for flag in _CONFIG_FLAGS if flag in typed)

    def take_ds_config(self, switches: Container[str] = ()) -> tuple["ScriptArgs", str | None]:
        """Split `--deepspeed FILE` or `--deepspeed_config FILE` off; return the rest and FILE.

        `switches` are flags of the script that no value follows.
        """
        is_switch = _CONFIG_FLAGS[0] in switches or not {*self.config_flags}.isdisjoint(_CONFIG_FLAGS[1:])
        rest: list[str] = []
        file: str | None = None
        words = deque(self.words)
        while words:
            name, equals, text = words[0].partition("=")
            word = words.popleft()
            if name not in _CONFIG_FLAGS:
                rest.append(word)
            elif equals:
                file = text
            elif words and not words[0].startswith("--") and not (is_switch and name == _CONFIG_FLAGS[0]):
                file = words.popleft()
        return replace(self, words=tuple(rest)), file

    def followed_by(self, words: Iterable[str], added: Mapping[str, str] | None = None) -> "ScriptArgs":
        """Return them with words at their end; `added` says of each flag among these what added it."""
        behind = ScriptArgs.of(words)
        whys = {len(self.words) + index: why for index, why in _added(behind, added or {})}
        return replace(self, words=(*self.words, *behind.words), added={**self.added, **whys})

    def preceded_by(self, words: Iterable[str], added: Mapping[str, str] | None = None) -> "ScriptArgs":
        """Return them with words in front, which count less than those that were typed."""
        before = ScriptArgs.of(words)
        shifted = {len(before.words) + index: why for index, why in self.added.items()}
        whys = dict(_added(before, added or {}))
        return replace(self, words=(*before.words, *self.words), added={**whys, **shifted})

    def sources(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """List each flag with its values, and where they come from; what stands before all flags is one."""
        starts = [flag.index for flag in self.flags]
        first, *ends = *starts, len(self.words)
        if first:
            yield self.words[:first], TYPED
        for flag, end in zip(self.flags, ends, strict=True):
            source = TYPED
            if flag.index in self.added:
                source = self.added[flag.index]
            elif flag.place:
                source = f"`args.{flag.name}` in {flag.place}"
            yield self.words[flag.index : end], source


NO_ARGS = ScriptArgs()


def _added(args: ScriptArgs, whys: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    for flag in args.flags:
        spelling = args.words[flag.index].partition("=")[0]
        if spelling in whys:
            yield flag.index, whys[spelling]


def flag_name(spelling: str) -> str:
    """Return the name of `--learning-rate` as Python writes it: `learning_rate`."""
    return spelling.removeprefix("--").replace("-", "_")


_NAME = r"(?:[A-Za-z0-9][\w-]{0,23})?"
"""What may name something other than a file; a ds_config in base64 is longer."""


def ds_config_of(
    typed: ScriptArgs, chosen: Path | None, switches: Container[str] = ()
) -> tuple[ScriptArgs, Path | None]:
    """Take the ds_config from the script's arguments, if they name one as other launchers want it.

    `switches` are flags of the script that no value follows.
    """
    rest, named = typed.take_ds_config(switches)
    if named is not None and re.fullmatch(_NAME, named) and not Path(named).exists():
        named = None  # one that the program knows by name, as in `swift sft --deepspeed zero3`
    if named is None:
        rest = typed  # with `--deepspeed` as a switch of the script
    if named is not None and chosen is not None:
        raise WrongUsage(
            f"the script's arguments name the ds_config `{named}`, but zlaunch has `--ds-config {chosen}`",
            "keep one",
        )
    if named is not None:
        chosen = Path(named)
    return rest, chosen
