"""Where a value comes from: its kind, for code, and a text, for people."""

from dataclasses import dataclass
from enum import Enum, auto


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

    def __str__(self) -> str:
        """Write the text."""
        return self.text

    @classmethod
    def option(cls, flag: str) -> "Source":
        """Name an option of zlaunch, such as `--stage`."""
        return cls(SourceKind.OPTION, f"`{flag}`")

    @classmethod
    def argument(cls, name: str) -> "Source":
        """Name an argument of the script by its name in TrainingArguments."""
        return cls(SourceKind.ARGUMENT, f"`--{name}`")

    @classmethod
    def computed(cls, how: str) -> "Source":
        """Say how a value was derived."""
        return cls(SourceKind.COMPUTED, how)
