"""Where a value comes from: its kind, for code, and a text, for people."""

from collections.abc import Mapping
from dataclasses import field, replace
from enum import Enum, auto

from zlaunch.frozen import dataclass


class SourceKind(Enum):
    """What decided a value."""

    PRESET = auto()
    """zlaunch's preset, so it may be changed to fit the model."""
    CONFIG_FILE = auto()
    """The user's ds_config."""
    OPTION = auto()
    """An option of zlaunch."""
    ARGUMENT = auto()
    """An argument on the script's command line."""
    SCRIPT = auto()
    """A default that the script sets."""
    TRAINER_DEFAULT = auto()
    ACCELERATE_DEFAULT = auto()
    DEEPSPEED_DEFAULT = auto()
    ZLAUNCH_DEFAULT = auto()
    COMPUTED = auto()
    """Derived from other values or from the model."""
    MACHINE = auto()
    EARLIER_RUN = auto()
    """The record of the run that is repeated."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value comes from. Only `kind` steers code; `text` is shown and recorded."""

    kind: SourceKind
    text: str
    flag: str = field(default="", compare=False)
    """The option or argument, with its dashes."""
    place: str = field(default="", compare=False)
    """File and line of `zlaunch.yaml` where this argument is."""

    def __str__(self) -> str:
        """Write the text."""
        return self.text

    @classmethod
    def option(cls, flag: str) -> "Source":
        """Name an option of zlaunch, such as `--stage`."""
        return cls(SourceKind.OPTION, f"`{flag}`", flag)

    @classmethod
    def argument(cls, name: str, place: str = "") -> "Source":
        """Name an argument of the script by its name in TrainingArguments."""
        return cls(SourceKind.ARGUMENT, f"`--{name}`", f"--{name}", place)

    @classmethod
    def computed(cls, how: str) -> "Source":
        """Say how a value was derived."""
        return cls(SourceKind.COMPUTED, how)

    def placed(self, places: Mapping[str, str], path: str) -> "Source":
        """Name the line of `zlaunch.yaml` that set the value of a ds_config key, if one did."""
        name = self.flag.partition(" ")[0].removeprefix("--").replace("-", "_")
        if self.kind is SourceKind.ARGUMENT:
            return replace(self, text=f"`args.{name}` in {self.place}") if self.place else self
        parts = [name]
        if name == "set":  # which may have set the key, or a section around it
            parts += path.split(".")
        for end in range(len(parts), 0, -1):
            key = ".".join(parts[:end])
            if key in places:
                return replace(self, text=f"`{key}` in {places[key]}")
        return self
