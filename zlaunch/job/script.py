"""What a training script's source says: how it takes a ds_config, and which defaults it sets.

Read with `ast`, never imported. Where the source does not tell, the Trainer's way is assumed.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from zlaunch.errors import Finding, InputMissing, Place, Refused, WrongUsage
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_args import DEFAULTS, Argument, Value, flags


class ConfigInterface(Enum):
    """How a script takes a ds_config."""

    TRAINER = "`--deepspeed FILE`, as TrainingArguments do"
    DEEPSPEED = (
        "`--deepspeed --deepspeed_config FILE`, as `deepspeed.add_config_arguments` does, or its own way"
    )
    ACCELERATE = "the environment, as Accelerator and DeepSpeedPlugin do"


@dataclass(frozen=True)
class Script:
    """A training script as far as its source tells."""

    path: Path
    source: str
    interface: ConfigInterface
    defaults: Mapping[str, Argument] = field(default_factory=dict)
    own_ds_config: int | None = None
    """Line on which the script gives TrainingArguments a ds_config of its own."""
    config_flags: tuple[str, ...] = ("--deepspeed", "--deepspeed_config")
    """Where a loop of its own takes a ds_config: the words before the path; none if it takes none."""
    wants_optimizer: Place | None = None
    """Where it makes an engine that it trains, without an optimizer, from a ds_config that it is handed."""
    own_engine_config: Place | None = None
    """Where it gives DeepSpeed's engine a ds_config of its own, and takes none from elsewhere."""
    own_output_dir: str | None = None
    """Where its TrainingArguments write by default, if it says so."""
    trusts_code: bool = False
    """Whether it lets a model run code of its own."""

    def mentions(self, word: str) -> bool:
        """Whether a word, in either spelling of a flag, stands anywhere in the source."""
        spelling = re.escape(word).replace("_", "[_-]").replace(r"\-", "[_-]")
        return re.search(rf"(?<![\w-])-{{0,2}}{spelling}(?![\w-])", self.source) is not None

    def output_dir(self, argv: Sequence[str]) -> Path:
        """Say where its Trainer writes checkpoints when it is started with a command line."""
        return Path(dict(flags(argv)).get("output_dir") or self.own_output_dir or "trainer_output")


def read_script(path: Path) -> Script:
    """Read a script; raise InputMissing if there is none."""
    try:
        source = path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise InputMissing(f"cannot read the script `{path}`: {error.strerror}") from None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise Refused([_no_python(path, error)]) from None
    if path.suffix in (".json", ".yaml", ".yml"):
        raise WrongUsage(f"`{path}` is no training script", f"give the script, and `--ds-config {path}`")
    set_by_it = list(_set_arguments(tree))
    return Script(
        path=path,
        source=source,
        interface=_interface(tree),
        defaults={
            name: Argument(value, Source(SourceKind.SCRIPT, f"`{name}` in {path.name}:{line}"))
            for name, value, line in set_by_it
            if name in DEFAULTS
        },
        own_ds_config=_own_ds_config(tree),
        config_flags=_config_flags(tree),
        wants_optimizer=_wants_optimizer(tree, path, source),
        own_engine_config=_own_engine_config(tree, path, source),
        own_output_dir=next((str(value) for name, value, _ in set_by_it[::-1] if name == "output_dir"), None),
        trusts_code=any(map(_trusts_code, ast.walk(tree))),
    )


def _no_python(path: Path, error: SyntaxError | ValueError) -> Finding:
    if not isinstance(error, SyntaxError):
        return Finding("not-python", f"this is no Python: {error}", place=Place(str(path), 1, 1))
    text = (error.text or "").rstrip("\n")
    place = Place(str(path), error.lineno or 1, error.offset or 1, text)
    return Finding("not-python", f"this is no Python: {error.msg}", place=place)


def _interface(tree: ast.Module) -> ConfigInterface:
    names, literals = _names(tree), _literals(tree)
    if "add_config_arguments" in names or "--deepspeed_config" in literals:
        return ConfigInterface.DEEPSPEED
    parses_arguments = names & {"HfArgumentParser", "TrlParser"} or "--deepspeed" in literals
    if not parses_arguments and names & {"Accelerator", "TrainingArguments", "Seq2SeqTrainingArguments"}:
        return ConfigInterface.ACCELERATE
    has_own_parser = {"ArgumentParser", "parse_args"} <= names
    is_handed_a_file = "ZLAUNCH_DS_CONFIG" in literals or _is_bare_loop(tree)
    if not parses_arguments and (has_own_parser or is_handed_a_file):
        return (
            ConfigInterface.DEEPSPEED
        )  # the one would refuse the Trainer's arguments, the other not read them
    return ConfigInterface.TRAINER


def _is_bare_loop(tree: ast.Module) -> bool:
    """Whether a loop takes nothing from a command line: another module may parse one for it."""
    calls, names = list(_engine_calls(tree)), _names(tree)
    takes_arguments = any(map(_takes_arguments, calls)) or any(_arguments(tree))
    return bool(calls) and not takes_arguments and not any(name.endswith("Trainer") for name in names)


def _takes_arguments(call: ast.Call) -> bool:
    given = call.args[:1] or [keyword.value for keyword in call.keywords if keyword.arg == "args"]
    return bool(given) and ast.unparse(given[0]) != "None"


def _arguments(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Find where the arguments that name a ds_config are read or set, as in `args.deepspeed`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("deepspeed", "deepspeed_config"):
            yield node


def _config_flags(tree: ast.Module) -> tuple[str, ...]:
    """Find which of the two flags of a ds_config a script of its own takes.

    A parser without the switch `--deepspeed` would take that for the beginning of `--deepspeed_config`.
    """
    if "add_config_arguments" in _names(tree):
        return ("--deepspeed", "--deepspeed_config")
    return tuple(flag for flag in ("--deepspeed", "--deepspeed_config") if flag in _literals(tree))


def _engine_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Find where DeepSpeed's engine is made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            made_by = node.func
            if made_by.attr == "initialize" and _last_name(made_by.value) == "deepspeed":
                yield node


def _wants_optimizer(tree: ast.Module, path: Path, source: str) -> Place | None:
    """Find an engine that trains and whose script gives it no optimizer; None if that is not sure."""
    calls = list(_engine_calls(tree))
    if not calls or not all(map(_leaves_optimizer_open, calls)) or _sets_arguments(tree):
        return None
    made = {
        target.elts[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node.value in calls
        for target in node.targets
        if isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name)
    }
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in made
    }
    if not {"backward", "step"} <= used:
        return None
    return _place(calls[0], path, source)


def _place(call: ast.Call, path: Path, source: str) -> Place:
    text = source.split("\n")[call.lineno - 1]
    return Place(str(path), call.lineno, call.col_offset + 1, text, len("deepspeed.initialize"))


def _own_engine_config(tree: ast.Module, path: Path, source: str) -> Place | None:
    """Find an engine whose ds_config the script writes or names itself; None if that is not sure."""
    calls, names = list(_engine_calls(tree)), _names(tree)
    has_other_ways = any(name.endswith(("Trainer", "Accelerator")) for name in names) or any(_arguments(tree))
    if not calls or has_other_ways or "ZLAUNCH_DS_CONFIG" in _literals(tree):
        return None
    is_own = all(_is_own(_engine_config(call), tree) for call in calls)
    return _place(calls[0], path, source) if is_own else None


def _engine_config(call: ast.Call) -> ast.expr | None:
    """Find what a call gives the engine as its ds_config: by name, or as the eleventh argument."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if not any(isinstance(arg, ast.Starred) for arg in call.args[:11]):
        given |= {
            name: call.args[at] for name, at in (("config", 10), ("config_params", 12)) if at < len(call.args)
        }
    return given.get("config") or given.get("config_params")


def _is_own(config: ast.expr | None, tree: ast.Module) -> bool:
    """Whether a ds_config is a literal, or a name that is bound once, to a literal, and never updated."""
    if isinstance(config, ast.Name):
        bound = [node for node in ast.walk(tree) if _binds(node, config.id)]
        values = [node.value for node in tree.body if isinstance(node, ast.Assign) and bound == node.targets]
        return len(values) == 1 and _is_own_literal(values[0])
    return _is_own_literal(config)


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a name gets a value here, or more in the value that it has."""
    match node:
        case ast.Name(id=bound, ctx=ast.Store()) | ast.arg(arg=bound):
            return bound == name
        case ast.Attribute(value=ast.Name(id=changed), attr="update"):
            return changed == name
    return False


def _is_own_literal(node: ast.expr | None) -> bool:
    """Whether this is a path, or an object that takes in no other."""
    if isinstance(node, ast.Dict):
        return bool(node.keys) and None not in node.keys
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""


_HANDED = re.compile(
    r"[\w.]+\.deepspeed(_config)?|os\.environ\['ZLAUNCH_DS_CONFIG'\]"
    r"|os\.(environ\.get|getenv)\('ZLAUNCH_DS_CONFIG'\)"
)
"""A ds_config that a script passes on as it got it."""


def _sets_arguments(tree: ast.Module) -> bool:
    """Whether a script may change the ds_config that its command line names."""
    is_set = any(isinstance(node.ctx, ast.Store) for node in _arguments(tree))
    return is_set or not {"set_defaults", "setattr"}.isdisjoint(_names(tree))


def _leaves_optimizer_open(call: ast.Call) -> bool:
    """Whether an engine gets its optimizer from a ds_config that comes from outside, and nowhere else."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    may_give = None in given or "optimizer" in given or len(call.args) > 2
    if may_give or any(isinstance(arg, ast.Starred) for arg in call.args):
        return False
    config = _engine_config(call)
    return "args" in given if config is None else _HANDED.fullmatch(ast.unparse(config)) is not None


def _names(tree: ast.Module) -> set[str]:
    return {_last_name(node) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)}


def _literals(tree: ast.Module) -> set[str]:
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def _own_ds_config(tree: ast.Module) -> int | None:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_arguments(node.func))
    keywords = (keyword for call in calls for keyword in call.keywords if keyword.arg == "deepspeed")
    given = (node.value for node in keywords if isinstance(node.value, ast.Constant | ast.Dict))
    return next((node.lineno for node in given if getattr(node, "value", node) is not None), None)


def _set_arguments(tree: ast.Module) -> Iterator[tuple[str, Value, int]]:
    """Find constants given to TrainingArguments, or set by a class derived from it; each with its line."""
    for node in ast.walk(tree):
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
    """Whether this loads a model, or its config, and lets it run code of its own."""
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr="from_pretrained" | "from_config"), keywords=given):
            trusts = "trust_remote_code=True" in map(ast.unparse, given)
            return trusts and _last_name(of).startswith(("AutoModel", "AutoConfig"))
    return False


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
