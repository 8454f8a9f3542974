"""How a script is told the checkpoint to go on from, as far as its source shows."""

import ast
from dataclasses import dataclass
from enum import Enum

from zlaunch.job.script import RESUME, Script

VARIABLE = "ZLAUNCH_RESUME"
"""The directory that a script without a flag for it passes to `load_checkpoint` or `load_state`."""

TAG_VARIABLE = "ZLAUNCH_RESUME_TAG"
"""The tag below this directory, for scripts that do not load the one that `latest` names."""

_ARGUMENT = RESUME.removeprefix("--")
_LOADERS = {"load_checkpoint", "load_state", "get_last_checkpoint"}
_OWNERS_OF_LOAD = {"torch", "dcp", "checkpoint"}


class CheckpointReading(Enum):
    """Whether a script loads the checkpoint that it is told."""

    YES = "yes"
    NO = "no"
    """It certainly loads none."""
    OWN = "own"
    """It loads one that it chooses itself."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class CheckpointHandover:
    """The way of a checkpoint to a script."""

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
    own = [node.lineno for node in nodes if isinstance(node, ast.Call) and _loads(node)]
    if own:
        return CheckpointHandover(flag, CheckpointReading.OWN, f"{script.path.name}:{min(own)}")
    is_certain = script.is_sure and not script.has_other_modules
    return CheckpointHandover(flag, CheckpointReading.NO if is_certain else CheckpointReading.UNKNOWN)


def _nodes(source: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _is_argument(node: ast.AST) -> bool:
    """Whether a node is a value that the Trainer's argument may have; the name of a keyword is none."""
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
            given = [one.value for one in call.keywords if one.arg in (_ARGUMENT, None)]
            return any(not (isinstance(one, ast.Constant) and not one.value) for one in given)
    return False
