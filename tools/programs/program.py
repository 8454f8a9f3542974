"""The types of the table: a program, its source, and the ways in which it is started."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Repository:
    """A git repository at a commit."""

    name: str
    """Owner and name on GitHub."""
    commit: str

    @property
    def folder(self) -> str:
        """Name of its checkout."""
        return self.name.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.name} {self.commit[:8]}"


@dataclass(frozen=True)
class Package:
    """A released package whose modules are the programs."""

    name: str
    version: str

    @property
    def folder(self) -> str:
        """Name of its checkout, which does not exist."""
        return self.name

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


@dataclass(frozen=True)
class Way:
    """One way to start a program: under its own launcher, and the same under zlaunch.

    Arguments and variables may contain the names of `run.Places` in braces.
    """

    launcher: str
    """`torchrun` or `deepspeed`."""
    bare: str = ""
    """Arguments that only this way has, such as `--deepspeed FILE`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the bare launcher only."""
    options: str = ""
    """Options of `zlaunch train`."""
    zlaunch: str | None = None
    """Arguments instead of `bare` under zlaunch; None: the same."""

    @property
    def is_unchanged(self) -> bool:
        """Whether zlaunch is given the program and its arguments as the bare launcher is."""
        return self.zlaunch is None and not self.options and not self.environment

    @property
    def label(self) -> str:
        """What distinguishes this way from the others of its program."""
        if self.is_unchanged:
            return f"{self.launcher}, unchanged"
        return f"{self.launcher}, {self.options or 'no options'}"


@dataclass(frozen=True)
class Program:
    """A training program of another project."""

    project: str
    source: Repository | Package
    script: str
    """Path in the repository, or a module after `-m `."""
    arguments: str
    ways: tuple[Way, ...]
    needs: str = "main"
    """Name of its environment in `gather.ENVIRONMENTS`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables under both launchers."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Links to inputs, by their path in the folder of the run."""
    packages: tuple[str, ...] = ()
    """Other folders of the repository that it imports."""
    name: str = ""
    """Name in the table, if the script's is not enough."""
    note: str = ""
    """Why it fails, or its loss does not fall, under both launchers."""

    @property
    def title(self) -> str:
        """Name of the program in the table."""
        return self.name or self.script.removeprefix("-m ").rpartition("/")[2].removesuffix(".py")

    def key(self, way: Way) -> str:
        """Name of the program and one of its ways."""
        return f"{self.project}: {self.title} ({way.label})"
