"""How a script gets the checkpoint to resume from: as an argument, or in variables."""

import ast
from enum import Enum
from pathlib import Path

from zlaunch.checkpoint.disk_need import DiskNeed
from zlaunch.checkpoint.find import LATEST, LATEST_UNIVERSAL, CheckpointFolder, SavedBy, latest_tag
from zlaunch.checkpoint.summary import Summary
from zlaunch.files import typed
from zlaunch.frozen import dataclass
from zlaunch.hosts.rank_environment import Variable
from zlaunch.job.script import RESUME, Script
from zlaunch.rundir.layout import RunDir

VARIABLE = "ZLAUNCH_RESUME"
"""The directory that a script without a flag for it passes to `load_checkpoint` or `load_state`."""

TAG_VARIABLE = "ZLAUNCH_RESUME_TAG"
"""The tag below this directory, for scripts that do not load the one that `latest` names."""

_ARGUMENT = RESUME.removeprefix("--")
_LOADERS = {"load_checkpoint", "load_state", "get_last_checkpoint"}
_OWNERS_OF_LOAD = {"torch", "dcp", "checkpoint"}


class CheckpointReading(Enum):
    """Whether a script loads the checkpoint that it gets."""

    YES = "yes"
    NO = "no"
    """It certainly loads none."""
    OWN = "own"
    """It loads one that it chooses itself."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class CheckpointHandover:
    """How a checkpoint reaches a script."""

    flag: str
    """The argument before its directory; empty if the script can only read `$ZLAUNCH_RESUME`."""
    reading: CheckpointReading
    place: str = ""
    """Where it loads a checkpoint that it chooses itself."""


def checkpoint_handover(script: Script) -> CheckpointHandover:
    """Find the argument of a script for a checkpoint, and whether it is used."""
    if script.resume_flag:
        return CheckpointHandover(script.resume_flag, CheckpointReading.YES)
    nodes = _nodes(script.source)
    flag = RESUME if script.takes_trainer_args else ""
    if flag and any(map(_is_argument, nodes)):
        return CheckpointHandover(flag, CheckpointReading.YES)
    if script.mentions(VARIABLE):
        return CheckpointHandover("", CheckpointReading.YES)
    loads = [node.lineno for node in nodes if isinstance(node, ast.Call) and _loads(node)]
    if loads:
        return CheckpointHandover(flag, CheckpointReading.OWN, f"{script.path.name}:{min(loads)}")
    if script.is_sure and not script.has_other_modules:
        return CheckpointHandover(flag, CheckpointReading.NO)
    return CheckpointHandover(flag, CheckpointReading.UNKNOWN)


def passes_argument_unchanged(script: Script) -> bool:
    """Whether the value of the Trainer's argument certainly goes to `train` as it was typed."""
    nodes, given = _nodes(script.source), list[ast.expr]()
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="train"), args=positional, keywords=keywords):
                given += positional[:1]
                given += [keyword.value for keyword in keywords if keyword.arg == _ARGUMENT]
    return all(node in given for node in nodes if _is_argument(node))


def _nodes(source: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _is_argument(node: ast.AST) -> bool:
    """Whether a node is a value of the Trainer's argument; the name of a keyword is not."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)):
            return name == _ARGUMENT
    return False


def _loads(call: ast.Call) -> bool:
    match call:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in _LOADERS:
            return True
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=of) | ast.Name(id=of), attr="load")):
            return of in _OWNERS_OF_LOAD
        case ast.Call(func=ast.Attribute(attr="train")):
            given = [argument.value for argument in call.keywords if argument.arg in (_ARGUMENT, None)]
            return any(not (isinstance(argument, ast.Constant) and not argument.value) for argument in given)
    return False


@dataclass(frozen=True)
class Conversion:
    """What makes a checkpoint fit a job: it is converted before the ranks start, and they load the result."""

    folder: Path
    """Where the result will be."""
    disk: DiskNeed
    reasons: tuple[str, ...]
    int_steps: bool | None
    """As for `write_universal`."""


@dataclass(frozen=True)
class Resumption:
    """The checkpoint that a job resumes from, and how its script gets it."""

    saved: Summary
    handover: CheckpointHandover
    reads_tag: bool = False
    conversion: Conversion | None = None
    is_typed: bool = False
    """Whether the user has given it to the script, which gets nothing more."""

    @property
    def checkpoint(self) -> CheckpointFolder:
        """What the script loads: the checkpoint itself, or what it is converted to."""
        if self.conversion is None:
            return self.saved.checkpoint
        folder = self.conversion.folder
        return CheckpointFolder(folder, SavedBy.UNIVERSAL, folder)

    @property
    def option(self) -> str:
        """The option or the argument that names it."""
        return RESUME if self.is_typed else "--resume"

    @property
    def reshard_option(self) -> str:
        """What to type so that it is converted for the job."""
        if not self.is_typed:
            return "--allow-reshard"
        return f"--resume {typed(self.directory)} --allow-reshard"

    @property
    def directory(self) -> Path:
        """What the script loads: of an engine's checkpoint, the directory of its tags."""
        checkpoint = self.checkpoint
        if checkpoint.base is not None and checkpoint.engine == checkpoint.folder:
            return checkpoint.base
        return checkpoint.folder

    @property
    def is_linked(self) -> bool:
        """Whether the script gets a directory of the run, as it would load the tag that `latest` names.

        That may be another one: of a later save that was interrupted after it had written `latest`.
        """
        gets_tag = self.is_typed or (not self.handover.flag and self.reads_tag)
        return self.directory != self.checkpoint.folder and not gets_tag and not self._is_latest

    def words(self, run: RunDir) -> tuple[str, str] | tuple[()]:
        """Return the argument of the script and its value, if it has one."""
        if self.is_typed or not self.handover.flag:
            return ()
        return self.handover.flag, str(self._given(run))

    def variables(self, run: RunDir) -> dict[str, Variable]:
        """Return the variables of the ranks."""
        if self.is_typed or self.handover.flag:
            return {}
        why = f"`--resume`: {self.saved.step} steps were taken"
        variables = {VARIABLE: Variable(str(self._given(run)), why)}
        if self.checkpoint.tag is not None:
            variables[TAG_VARIABLE] = Variable(self.checkpoint.tag, why)
        return variables

    def link(self, run: RunDir) -> None:
        """Write this directory: links to all that is beside the checkpoint, and another `latest`."""
        if self.is_linked and self.checkpoint.tag is not None:
            run.resume.mkdir()
            for entry in self.directory.iterdir():
                if entry.name != self._latest:
                    (run.resume / entry.name).symlink_to(entry)
            (run.resume / self._latest).write_text(self.checkpoint.tag)

    def _given(self, run: RunDir) -> Path:
        return run.resume if self.is_linked else self.directory

    @property
    def _latest(self) -> str:
        """The file in which DeepSpeed looks for the tag to load, unless the script names one."""
        return LATEST_UNIVERSAL if self.checkpoint.saved_by is SavedBy.UNIVERSAL else LATEST

    @property
    def _is_latest(self) -> bool:
        return self.conversion is not None or latest_tag(self.directory, self._latest) == self.checkpoint.tag
