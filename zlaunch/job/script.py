"""Read the source of a training script: how it takes a ds_config, and which defaults it sets.

The source is parsed with `ast`, and never imported. In doubt, it counts as a Trainer script.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from zlaunch.errors import Finding, InputMissing, Place, Refused, WrongUsage
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_args import Argument, flags
from zlaunch.job.trainer_releases import DEFAULTS, Value


class ConfigInterface(Enum):
    """How a script takes a ds_config."""

    TRAINER = "`--deepspeed FILE`, as TrainingArguments do"
    DEEPSPEED = (
        "`--deepspeed --deepspeed_config FILE`, as `deepspeed.add_config_arguments` does, or its own code"
    )
    ACCELERATE = "the environment, as Accelerator and DeepSpeedPlugin do"


@dataclass(frozen=True)
class Script:
    """A training script, as read from its source."""

    path: Path
    source: str
    interface: ConfigInterface
    defaults: Mapping[str, Argument] = field(default_factory=dict)
    own_ds_config: int | None = None
    """Line where it passes its own ds_config to TrainingArguments."""
    config_flags: tuple[str, ...] = ("--deepspeed", "--deepspeed_config")
    """Arguments before the path of the ds_config, for a script without a Trainer; empty if it takes none."""
    wants_optimizer: Place | None = None
    """Where it creates and trains an engine without an optimizer, from a ds_config that it receives."""
    own_engine_config: Place | None = None
    """Where it passes its own ds_config to DeepSpeed's engine, and takes no other."""
    own_output_dir: str | None = None
    """Default of `output_dir`, if it sets one."""
    trusts_code: bool = False
    """Whether it passes `trust_remote_code=True` for models."""

    def mentions(self, word: str) -> bool:
        """Whether the source contains a word or flag, with `-` and `_` as the same."""
        spelling = re.escape(word).replace("_", "[_-]").replace(r"\-", "[_-]")
        return re.search(rf"(?<![\w-])-{{0,2}}{spelling}(?![\w-])", self.source) is not None

    def output_dir(self, argv: Sequence[str]) -> Path:
        """Return where its Trainer writes checkpoints, given its command line."""
        return Path(dict(flags(argv)).get("output_dir") or self.own_output_dir or "trainer_output")


def read_script(path: Path) -> Script:
    """Parse a script.

    Raise InputMissing if it cannot be read, Refused if it is not Python, WrongUsage if it is a config file.
    """
    try:
        source = path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise InputMissing(f"cannot read the script `{path}`: {error.strerror}") from None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise Refused([_no_python(path, error)]) from None
    if path.suffix in (".json", ".yaml", ".yml"):
        raise WrongUsage(
            f"`{path}` is not a training script", f"pass the script, and add `--ds-config {path}`"
        )
    code = _Code(path, source, tree)
    arguments = list(_set_arguments(code))
    return Script(
        path=path,
        source=source,
        interface=_interface(code),
        defaults={
            name: Argument(value, Source(SourceKind.SCRIPT, f"`{name}` in {path.name}:{line}"))
            for name, value, line in arguments
            if name in DEFAULTS
        },
        own_ds_config=_own_ds_config(code),
        config_flags=_config_flags(code),
        wants_optimizer=_wants_optimizer(code),
        own_engine_config=_own_engine_config(code),
        own_output_dir=next((str(value) for name, value, _ in arguments[::-1] if name == "output_dir"), None),
        trusts_code=any(map(_trusts_code, code.nodes)),
    )


_ENGINE = ("deepspeed", "initialize")


class _Code:
    """The parsed source, with facts that several checks use."""

    def __init__(self, path: Path, source: str, tree: ast.Module) -> None:
        self.path, self.source, self.body = path, source, tree.body
        self.nodes = list(ast.walk(tree))
        self.names = {_last_name(node) for node in self.nodes if isinstance(node, ast.Name | ast.Attribute)}
        constants = (node.value for node in self.nodes if isinstance(node, ast.Constant))
        self.literals = {value for value in constants if isinstance(value, str)}
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        attributes = [node for node in self.nodes if isinstance(node, ast.Attribute)]
        engines = [each for each in attributes if (_last_name(each.value), each.attr) == _ENGINE]
        self.engine_calls = [call for call in self.calls if call.func in engines]
        self.arguments = [node for node in attributes if node.attr in ("deepspeed", "deepspeed_config")]
        """Uses of the arguments that name a ds_config, such as `args.deepspeed`."""

    def place(self, call: ast.Call) -> Place:
        """Locate a call of `deepspeed.initialize`."""
        text = self.source.split("\n")[call.lineno - 1]
        return Place(str(self.path), call.lineno, call.col_offset + 1, text, len("deepspeed.initialize"))


def _no_python(path: Path, error: SyntaxError | ValueError) -> Finding:
    if not isinstance(error, SyntaxError):
        return Finding("not-python", f"not valid Python: {error}", place=Place(str(path), 1, 1))
    text = (error.text or "").rstrip("\n")
    place = Place(str(path), error.lineno or 1, error.offset or 1, text)
    return Finding("not-python", f"not valid Python: {error.msg}", place=place)


def _interface(code: _Code) -> ConfigInterface:
    names, literals = code.names, code.literals
    if "add_config_arguments" in names or "--deepspeed_config" in literals:
        return ConfigInterface.DEEPSPEED
    parses_arguments = names & {"HfArgumentParser", "TrlParser"} or "--deepspeed" in literals
    if not parses_arguments and names & {"Accelerator", "TrainingArguments", "Seq2SeqTrainingArguments"}:
        return ConfigInterface.ACCELERATE
    has_own_parser = {"ArgumentParser", "parse_args"} <= names
    receives_config = "ZLAUNCH_DS_CONFIG" in literals or _is_bare_loop(code)
    if not parses_arguments and (has_own_parser or receives_config):
        # A parser would reject the Trainer's arguments, and a loop without one would ignore them.
        return ConfigInterface.DEEPSPEED
    return ConfigInterface.TRAINER


def _is_bare_loop(code: _Code) -> bool:
    """Whether a training loop takes no arguments; another module may parse them."""
    takes_arguments = any(map(_takes_arguments, code.engine_calls)) or bool(code.arguments)
    has_trainer = any(name.endswith("Trainer") for name in code.names)
    return bool(code.engine_calls) and not takes_arguments and not has_trainer


def _takes_arguments(call: ast.Call) -> bool:
    given = call.args[:1] or [keyword.value for keyword in call.keywords if keyword.arg == "args"]
    return bool(given) and ast.unparse(given[0]) != "None"


def _config_flags(code: _Code) -> tuple[str, ...]:
    """Return which of the two flags for a ds_config the script defines.

    A parser without `--deepspeed` would take it as an abbreviation of `--deepspeed_config`.
    """
    if "add_config_arguments" in code.names:
        return ("--deepspeed", "--deepspeed_config")
    return tuple(flag for flag in ("--deepspeed", "--deepspeed_config") if flag in code.literals)


def _wants_optimizer(code: _Code) -> Place | None:
    """Find an engine that the script trains without giving it an optimizer; None unless that is certain."""
    calls = code.engine_calls
    may_override = any(isinstance(node.ctx, ast.Store) for node in code.arguments)
    may_override |= not {"set_defaults", "setattr"}.isdisjoint(code.names)
    if not calls or not all(map(_leaves_optimizer_open, calls)) or may_override:
        return None
    engines = {
        target.elts[0].id
        for node in code.nodes
        if isinstance(node, ast.Assign) and node.value in calls
        for target in node.targets
        if isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name)
    }
    used = {
        node.attr
        for node in code.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in engines
    }
    return code.place(calls[0]) if {"backward", "step"} <= used else None


def _own_engine_config(code: _Code) -> Place | None:
    """Find an engine whose ds_config is part of the script; None unless that is certain."""
    calls = code.engine_calls
    has_trainer = any(name.endswith(("Trainer", "Accelerator")) for name in code.names)
    if not calls or has_trainer or code.arguments or "ZLAUNCH_DS_CONFIG" in code.literals:
        return None
    is_own = all(_is_own(_engine_config(call), code) for call in calls)
    return code.place(calls[0]) if is_own else None


def _engine_config(call: ast.Call) -> ast.expr | None:
    """Return the ds_config argument of `deepspeed.initialize`: by name or by position."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if not any(isinstance(arg, ast.Starred) for arg in call.args[:11]):
        given |= {
            name: call.args[at] for name, at in (("config", 10), ("config_params", 12)) if at < len(call.args)
        }
    return given.get("config") or given.get("config_params")


def _is_own(config: ast.expr | None, code: _Code) -> bool:
    """Whether a ds_config is a literal, or a name that is bound once to a literal and never updated."""
    if isinstance(config, ast.Name):
        bound = [node for node in code.nodes if _binds(node, config.id)]
        values = [node.value for node in code.body if isinstance(node, ast.Assign) and bound == node.targets]
        return len(values) == 1 and _is_own_literal(values[0])
    return _is_own_literal(config)


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a node binds a name, or calls `update` on it."""
    match node:
        case ast.Name(id=bound, ctx=ast.Store()) | ast.arg(arg=bound):
            return bound == name
        case ast.Attribute(value=ast.Name(id=changed), attr="update"):
            return changed == name
    return False


def _is_own_literal(node: ast.expr | None) -> bool:
    """Whether a node is a path, or a dict without `**`."""
    if isinstance(node, ast.Dict):
        return bool(node.keys) and None not in node.keys
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""


_RECEIVED = re.compile(
    r"[\w.]+\.deepspeed(_config)?|os\.environ\['ZLAUNCH_DS_CONFIG'\]"
    r"|os\.(environ\.get|getenv)\('ZLAUNCH_DS_CONFIG'\)"
)
"""An expression for the ds_config that a script receives."""


def _leaves_optimizer_open(call: ast.Call) -> bool:
    """Whether an engine can get its optimizer only from the ds_config that the script receives."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    may_give = None in given or "optimizer" in given or len(call.args) > 2
    if may_give or any(isinstance(arg, ast.Starred) for arg in call.args):
        return False
    config = _engine_config(call)
    return "args" in given if config is None else _RECEIVED.fullmatch(ast.unparse(config)) is not None


def _own_ds_config(code: _Code) -> int | None:
    calls = (call for call in code.calls if _is_arguments(call.func))
    keywords = (keyword for call in calls for keyword in call.keywords if keyword.arg == "deepspeed")
    given = (node.value for node in keywords if isinstance(node.value, ast.Constant | ast.Dict))
    return next((node.lineno for node in given if getattr(node, "value", node) is not None), None)


def _set_arguments(code: _Code) -> Iterator[tuple[str, Value, int]]:
    """Find constant arguments of TrainingArguments, and defaults in subclasses; each with its line."""
    for node in code.nodes:
        if isinstance(node, ast.ClassDef) and any(_is_arguments(base) for base in node.bases):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield from _constant(statement.target.id, statement.value)
        elif isinstance(node, ast.Call) and _is_arguments(node.func):
            for keyword in node.keywords:
                yield from _constant(keyword.arg or "", keyword.value)


def _constant(name: str, node: ast.expr | None) -> Iterator[tuple[str, Value, int]]:
    if node is None:
        return
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return
    if isinstance(value, bool | int | float | str):
        yield name, value, node.lineno


def _is_arguments(node: ast.expr) -> bool:
    return _last_name(node).endswith(("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig"))


def _trusts_code(node: ast.AST) -> bool:
    """Whether a node loads a model or config with `trust_remote_code=True`."""
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr="from_pretrained" | "from_config"), keywords=given):
            trusts = "trust_remote_code=True" in map(ast.unparse, given)
            return trusts and _last_name(of).startswith(("AutoModel", "AutoConfig"))
    return False


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
