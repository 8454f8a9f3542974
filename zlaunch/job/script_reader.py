"""Read the source of a training script.

The source is parsed with `ast`, and never imported. Where it does not settle how the script takes a
ds_config, the script itself can be asked (`launch/ask`).
"""

import ast
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from zlaunch.errors import Finding, InputMissing, Place, Refused
from zlaunch.job.args import flag_name
from zlaunch.job.evaluating_source import last_name, untrained_evaluations, walk
from zlaunch.job.file_kinds import refuse_other_files, refuse_other_languages, similar_scripts
from zlaunch.job.launching_source import launcher_of
from zlaunch.job.model import LENGTHS
from zlaunch.job.script import (
    DS_CONFIG_VARIABLE,
    LOCAL_RANK_FLAGS,
    RESUME,
    ConfigInterface,
    OwnConfig,
    OwnOptimizer,
    OwnSetting,
    Script,
    num_mentions,
)
from zlaunch.job.script_traps import traps
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_args import MATCHED, Argument
from zlaunch.job.trainer_releases import DEFAULTS, Value


def read_script(path: Path) -> Script:
    """Parse a script.

    Raise InputMissing if it cannot be read, WrongUsage if it is another kind of file, Refused if it is not
    valid Python.
    """
    refuse_other_files(path)
    if path.suffix == ".pyc" or zipfile.is_zipfile(path):
        return Script(path, "", ConfigInterface.ACCELERATE, is_sure=False, has_other_modules=True)
    try:
        source = path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise InputMissing(
            f"cannot read the script `{path}`: {error.strerror}", similar_scripts(path)
        ) from None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        refuse_other_languages(path)
        raise Refused([_no_python(path, error)]) from None
    except (RecursionError, MemoryError):
        raise Refused([_no_python(path, ValueError("nested too deeply"))]) from None
    code = _Code(path, source, tree)
    interface, is_sure, config_flags = _interface(code)
    defaults: dict[str, Argument] = {}
    constants: dict[str, Value] = {}
    output_dir = None
    for name, value, line in _set_arguments(code):
        if name in DEFAULTS:
            defaults[name] = Argument(value, Source(SourceKind.SCRIPT, f"`{name}` in {path.name}:{line}"))
        if num_mentions(name, source) == 1:
            constants[name] = value
        if name == "output_dir":
            output_dir = str(value)
    return Script(
        path=path,
        source=source,
        interface=interface,
        is_sure=is_sure,
        defaults=defaults,
        constants=constants,
        settings=tuple(_own_settings(code)),
        own_config=_own_ds_config(code) or _own_engine_config(code),
        has_own_plugin=any(_is_own_literal(_plugin_config(call)) for call in code.calls),
        config_flags=config_flags,
        default_config=_default_config(code, config_flags),
        wants_optimizer=_wants_optimizer(code),
        ignores_arguments=_ignores_arguments(code),
        wants_config=_wants_config(code),
        own_optimizer=_own_optimizer(code),
        without_deepspeed=next((name for name in _PARALLEL if name in code.names), ""),
        own_output_dir=output_dir,
        imported=frozenset(_imported(code)),
        has_other_modules=_has_other_modules(code),
        loads=frozenset(_loaded(code)),
        trusts_code=any(map(_trusts_code, code.nodes)),
        launcher=launcher_of(code.nodes),
        switches=frozenset(flag for flag, option in code.options.items() if _is_switch(option)),
        resume_flag=_path_option(_RESUME_FLAGS, code),
        save_flag=_path_option(_SAVE_FLAGS, code),
        adapts_by_option=any(map(_is_adapter_switch, code.nodes)),
        seq_len=_seq_len(code),
        evaluations=untrained_evaluations(code.nodes, code.parents),
        local_rank_flag=_local_rank_flag(code),
        traps=traps(code.nodes, code.parents, code.engine_calls, code.place),
    )


_ENGINE = ("deepspeed", "initialize")


class _Code:
    """The parsed source, with facts that several checks use."""

    def __init__(self, path: Path, source: str, tree: ast.Module) -> None:
        self.path, self.source, self.body = path, source, tree.body
        self.nodes, self.parents = walk(tree)
        self.names = {last_name(node) for node in self.nodes if isinstance(node, ast.Name | ast.Attribute)}
        self.sets_by_name = not {"set_defaults", "setattr"}.isdisjoint(self.names)
        """Whether it may set an argument that the source does not show as an assignment."""
        constants = (node.value for node in self.nodes if isinstance(node, ast.Constant))
        self.literals = {value for value in constants if isinstance(value, str)}
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        attributes = [node for node in self.nodes if isinstance(node, ast.Attribute)]
        engines = [node for node in attributes if (last_name(node.value), node.attr) == _ENGINE]
        self.engine_calls = [call for call in self.calls if call.func in engines]
        self.arguments = [node for node in attributes if node.attr in ("deepspeed", "deepspeed_config")]
        """Uses of the arguments that name a ds_config, such as `args.deepspeed`."""
        self.options: dict[str, ast.Call] = {}
        """Flags that a parser of the script defines, with the call that does."""
        for call in self.calls:
            if last_name(call.func) in _DEFINES_OPTION:
                words = (word.value for word in call.args if isinstance(word, ast.Constant))
                self.options |= dict.fromkeys((word for word in words if isinstance(word, str)), call)

    def place(self, call: ast.Call) -> Place:
        """Locate a call: the name of what is called."""
        text = self.source.split("\n")[call.lineno - 1]
        return Place(str(self.path), call.lineno, call.col_offset + 1, text, len(ast.unparse(call.func)))


def _no_python(path: Path, error: SyntaxError | ValueError) -> Finding:
    if not isinstance(error, SyntaxError):
        return Finding("not-python", f"not valid Python: {error}", place=Place(str(path), 1, 1))
    text = (error.text or "").rstrip("\n")
    place = Place(str(path), error.lineno or 1, error.offset or 1, text)
    return Finding("not-python", f"not valid Python: {error.msg}", place=place)


def _interface(code: _Code) -> tuple[ConfigInterface, bool, tuple[str, ...]]:
    """Tell what reads the ds_config, whether that is certain, and which arguments certainly take its path."""
    flags = _engine_flags(code)
    creates_arguments = any(name == "Accelerator" or name.endswith(_ARGUMENTS) for name in code.names)
    if "add_config_arguments" in code.names or (_CONFIG_FLAGS[1] in flags and not creates_arguments):
        return ConfigInterface.DEEPSPEED, True, flags
    if _parses_trainer_args(code):
        return ConfigInterface.TRAINER, True, _CONFIG_FLAGS[:1]
    if not any(name in _PARSERS or name.endswith(("Trainer", *_ARGUMENTS)) for name in code.names):
        takes_arguments = any(map(_takes_arguments, code.engine_calls)) or bool(code.arguments)
        if (flags and code.engine_calls and takes_arguments) or DS_CONFIG_VARIABLE in code.literals:
            return ConfigInterface.DEEPSPEED, True, flags
        if code.engine_calls:
            return ConfigInterface.DEEPSPEED, False, ()
        if "Accelerator" in code.names:
            is_sure = not any(map(_chooses_backend, code.calls))
            return ConfigInterface.ACCELERATE, is_sure, _flags_of_plugin(code, flags)
        if _is_plain(code):
            return ConfigInterface.NONE, True, ()
    # The Trainer reads the same variables.
    return ConfigInterface.ACCELERATE, False, _flags_of_plugin(code, flags)


def _flags_of_plugin(code: _Code, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flags for a ds_config if the script certainly reads that file for accelerate."""
    if code.arguments and not code.names.isdisjoint(_READS_FILE) and code.names.isdisjoint(_PARSERS):
        return flags
    return ()


_READS_FILE = ("HfDeepSpeedConfig", "HfTrainerDeepSpeedConfig", "DeepSpeedPlugin")


def _chooses_backend(call: ast.Call) -> bool:
    """Whether a call of Accelerator may rule out DeepSpeed, or bring its own ds_config."""
    named = {keyword.arg for keyword in call.keywords}
    chosen = named & {None, "cpu", "deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin"}
    return last_name(call.func) == "Accelerator" and bool(chosen)


_CONFIG_FLAGS = ("--deepspeed", "--deepspeed_config")
_RESUME_FLAGS = (RESUME, RESUME.replace("_", "-"))
_SAVE_FLAGS = ("--save", "--output_dir", "--output-dir")
_DEFINES_OPTION = ("add_argument", "option", "Option")
_NOT_A_PATH = (None, "nargs", "choices", "const", "is_flag", "dest")
"""Keywords of an option that may not store a path under its own name."""
_PARSERS = ("HfArgumentParser", "TrlParser")
_ARGUMENTS = ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig")
_PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel", "fully_shard")
_OF_TRANSFORMERS = ("TrainingArguments", "Seq2SeqTrainingArguments")

_PLAIN_PACKAGES = (
    *("torch", "torchvision", "torchaudio", "numpy", "scipy", "pandas", "sklearn", "PIL", "yaml"),
    *("tqdm", "matplotlib", "tensorboard", "wandb", "tiktoken", "requests", "zlaunch"),
)
"""Packages that do not start DeepSpeed."""

_HUGGING_FACE = ("deepspeed", "transformers", "accelerate", "datasets", "evaluate", "peft", "tokenizers")
"""Packages that define no arguments of a script, except those that `TrainingArguments` has."""

_READS_ARGUMENTS = re.compile(r"argv|cmdline|getopt|fileinput|[Pp]arse", re.ASCII)
"""What a script mentions that reads its arguments, with any parser."""

_RUNS_OTHERS = (
    *("exec", "eval", "import_module", "__import__", "run_path", "run_module"),
    *("subprocess", "system", "execv", "execvp"),
)
"""Names in scripts that may run code which is not in their source."""


def _is_plain(code: _Code) -> bool:
    """Whether a script certainly does not use DeepSpeed: it imports nothing that could."""
    known = {*sys.stdlib_module_names, *_PLAIN_PACKAGES}
    return _imported(code) <= known and code.names.isdisjoint(_RUNS_OTHERS)


def _has_other_modules(code: _Code) -> bool:
    """Whether a script imports anything that may define arguments."""
    return not _imported(code) <= {*sys.stdlib_module_names, *_PLAIN_PACKAGES, *_HUGGING_FACE}


def _imported(code: _Code) -> set[str]:
    """Return the top-level packages that a script imports; `.` for its own."""
    imported: set[str] = set()
    for node in code.nodes:
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            imported.add(".")
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    return imported


def _parses_trainer_args(code: _Code) -> bool:
    """Whether a script parses TrainingArguments, its own or those of transformers, from its command line."""
    calls = [call for call in code.calls if last_name(call.func) == "HfArgumentParser"]
    parsed = [call for call in code.calls if last_name(call.func) == "parse_args_into_dataclasses"]
    if not calls or not parsed or any(call.args or call.keywords for call in parsed) or _computes(code):
        return False
    classes = {node.name: node for node in code.nodes if isinstance(node, ast.ClassDef)}
    names = [last_name(node) for node in chain.from_iterable(map(_parsed_classes, calls))]
    bases = [*chain.from_iterable(classes[name].bases for name in names if name in classes)]
    names += map(last_name, bases)
    elsewhere = [name for name in names if name not in classes and name not in _OF_TRANSFORMERS]
    has_them = any(name in _OF_TRANSFORMERS for name in names)
    return has_them and not elsewhere


def _computes(code: _Code) -> bool:
    """Whether a script may itself change Trainer arguments that the ds_config has to agree with."""
    decisive = {*chain(*(match.names for match in MATCHED.values()))}
    for node in code.nodes:
        targets: Sequence[ast.expr] = ()
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Attribute) and target.attr in decisive:
                value = ast.unparse(node.value)  # type: ignore[attr-defined]
                if value != f"int({ast.unparse(target)})":
                    return True
    return code.sets_by_name


def _parsed_classes(call: ast.Call) -> list[ast.expr]:
    """Return the classes that a parser is created for."""
    types = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "dataclass_types")]
    if not types:
        return []
    if isinstance(types[0], ast.Tuple | ast.List):
        return types[0].elts
    return types[:1]


def _takes_arguments(call: ast.Call) -> bool:
    args = call.args[:1] or [keyword.value for keyword in call.keywords if keyword.arg == "args"]
    return bool(args) and ast.unparse(args[0]) != "None"


def _engine_flags(code: _Code) -> tuple[str, ...]:
    """Return the arguments before the path of a ds_config, as the parser of the script defines them.

    A parser without `--deepspeed` would take it as an abbreviation of `--deepspeed_config`.
    """
    if "add_config_arguments" in code.names:
        return _CONFIG_FLAGS
    switch, file = code.options.get(_CONFIG_FLAGS[0]), code.options.get(_CONFIG_FLAGS[1])
    if file is not None and _takes_path(file):
        if switch is not None and _keywords(switch).get("action") == "'store_true'":
            return _CONFIG_FLAGS
        return _CONFIG_FLAGS[1:]
    if switch is not None and file is None and _takes_path(switch):
        return _CONFIG_FLAGS[:1]
    return ()


def _default_config(code: _Code, flags: tuple[str, ...]) -> OwnConfig | None:
    """Find the ds_config that the parser of the script names itself."""
    if not flags or flags[-1] not in code.options:
        return None
    for keyword in code.options[flags[-1]].keywords:
        if keyword.arg == "default" and isinstance(value := _literal(keyword.value, code), str):
            return OwnConfig(f"default of `{flags[-1]}`", value)
    return None


def _local_rank_flag(code: _Code) -> str:
    if "LOCAL_RANK" in code.literals:
        return ""
    return next((flag for flag in LOCAL_RANK_FLAGS if flag in code.literals), "")


def _is_switch(option: ast.Call) -> bool:
    return "is_flag" in _keywords(option) or _keywords(option).get("action", "").startswith("'store_")


def _takes_path(option: ast.Call) -> bool:
    """Whether an option certainly takes a path: it is neither a switch nor one of several words."""
    given = _keywords(option)
    is_text = given.get("type", "str") in ("str", "Path", "pathlib.Path")
    plain = given.get("action", "'store'") == "'store'" and given.keys().isdisjoint(_NOT_A_PATH)
    return is_text and plain


def _path_option(flags: Iterable[str], code: _Code) -> str:
    """Find the first of these flags that a parser of the script defines, and that takes a path."""
    return next((flag for flag in flags if flag in code.options and _takes_path(code.options[flag])), "")


def _is_adapter_switch(node: ast.AST) -> bool:
    """Whether a field of a dataclass, or an option of a parser, turns adapters on and is off by default."""
    name, default = _defined(node)
    is_off = isinstance(default, ast.Constant) and not default.value
    return is_off and any(word in name for word in ("lora", "peft"))


def _defined(node: ast.AST) -> tuple[str, ast.expr | None]:
    """Return the name and the default of a field of a dataclass, or of an option of a parser."""
    match node:
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(keywords=keywords)):
            return name, _default(keywords, ast.Constant(...))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant() as default):
            return name, default
        case ast.Call(func=ast.Attribute(attr="add_argument"), args=[ast.Constant(value=str(name)), *_]):
            return name, _default(node.keywords, ast.Constant(None))
    return "", None


def _seq_len(code: _Code) -> int | None:
    """Read the length of its sequences from the default of an argument that sets it."""
    for name, default in map(_defined, code.nodes):
        if flag_name(name) in LENGTHS and isinstance(default, ast.Constant):
            value = default.value
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _default(keywords: Iterable[ast.keyword], otherwise: ast.expr) -> ast.expr:
    return next((keyword.value for keyword in keywords if keyword.arg == "default"), otherwise)


def _keywords(call: ast.Call) -> dict[str | None, str]:
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}


def _wants_optimizer(code: _Code) -> Place | None:
    """Find an engine that the script trains without giving it an optimizer; None unless that is certain."""
    calls = code.engine_calls
    may_override = any(isinstance(node.ctx, ast.Store) for node in code.arguments)
    may_override |= code.sets_by_name
    if not calls or not all(map(_leaves_optimizer_open, calls)) or may_override:
        return None
    engines: set[str] = set()
    for node in code.nodes:
        if isinstance(node, ast.Assign) and node.value in calls:
            tuples = (target for target in node.targets if isinstance(target, ast.Tuple))
            firsts = (target.elts[0] for target in tuples)
            engines.update(first.id for first in firsts if isinstance(first, ast.Name))
    used = {
        node.attr
        for node in code.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in engines
    }
    if {"backward", "step"} <= used:
        return code.place(calls[0])
    return None


def _ignores_arguments(code: _Code) -> bool:
    if _has_other_modules(code) or not code.names.isdisjoint(_RUNS_OTHERS):
        return False
    return _READS_ARGUMENTS.search(code.source) is None


def _wants_config(code: _Code) -> Place | None:
    """Find an engine that gets no ds_config, neither itself nor by the arguments of the script."""
    calls = code.engine_calls
    if not calls or not all(map(_gets_no_config, calls)):
        return None
    return code.place(calls[0])


def _gets_no_config(call: ast.Call) -> bool:
    names = {keyword.arg for keyword in call.keywords}
    return not call.args and names.isdisjoint({"args", "config", "config_params", None})


def _own_optimizer(code: _Code) -> OwnOptimizer | None:
    """Find the optimizer of torch that the script gives all its engines; None unless that is certain."""
    created: list[ast.Call] = []
    assignments = [node for node in code.nodes if isinstance(node, ast.Assign)]
    engines = chain.from_iterable(node.targets for node in assignments if node.value in code.engine_calls)
    wrapped = {id(name) for name in chain.from_iterable(map(ast.walk, engines))}
    for call in code.engine_calls:
        given = _engine_optimizer(call)
        if isinstance(given, ast.Name):
            bound = [node for node in code.nodes if id(node) not in wrapped and _binds(node, given.id)]
            given = next((node.value for node in assignments if node.targets == bound), None)
        if not isinstance(given, ast.Call) or not _is_of_torch(given.func, code):
            return None
        created.append(given)
    if len({last_name(call.func) for call in created}) != 1:
        return None
    return OwnOptimizer(last_name(created[0].func), code.place(created[0]))


def _engine_optimizer(call: ast.Call) -> ast.expr | None:
    """Return the optimizer argument of `deepspeed.initialize`: by name or by position."""
    if any(isinstance(arg, ast.Starred) for arg in call.args[:3]):
        return None
    if len(call.args) > 2:
        return call.args[2]
    return next((keyword.value for keyword in call.keywords if keyword.arg == "optimizer"), None)


def _is_of_torch(function: ast.expr, code: _Code) -> bool:
    """Whether a class is one of torch.optim, by the way it is named or imported."""
    if isinstance(function, ast.Attribute):
        return ast.unparse(function.value) in ("torch.optim", "optim")
    imports = [
        node for node in code.nodes if isinstance(node, ast.ImportFrom) and node.module == "torch.optim"
    ]
    names = {alias.name for alias in chain.from_iterable(node.names for node in imports) if not alias.asname}
    return isinstance(function, ast.Name) and function.id in names


def _own_engine_config(code: _Code) -> OwnConfig | None:
    """Find an engine whose ds_config is part of the script; None unless that is certain."""
    calls = code.engine_calls
    has_trainer = any(name.endswith(("Trainer", "Accelerator")) for name in code.names)
    if not calls or has_trainer or DS_CONFIG_VARIABLE in code.literals:
        return None
    if not all(_is_own(_engine_config(call), code) or _excludes_flags(call, code) for call in calls):
        return None
    place = code.place(calls[0])
    return OwnConfig(f"{code.path.name}:{place.line}", _literal(_engine_config(calls[0]), code), place)


def _excludes_flags(call: ast.Call, code: _Code) -> bool:
    """Whether DeepSpeed would refuse a ds_config on the command line, because this call has another one."""
    config = _engine_config(call)
    has_flags = "add_config_arguments" in code.names or _CONFIG_FLAGS[1] in code.options
    if config is None or not has_flags or not _takes_arguments(call):
        return False
    sources = [config]
    for name in _variable_names(config):
        sources += _bound(name, code)
    used = {id(node) for node in chain.from_iterable(map(ast.walk, sources))}
    return not any(id(node) in used for node in code.arguments)


def _variable_names(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def _bound(name: str, code: _Code) -> list[ast.expr]:
    """Return everything that is assigned to a name."""
    assigned = (node for node in code.nodes if isinstance(node, ast.Assign))
    return [
        node.value for node in assigned if any(name in _variable_names(target) for target in node.targets)
    ]


def _literal(config: ast.expr | None, code: _Code) -> dict[str, Any] | str | None:
    """Evaluate a ds_config that is written in the source; None if it is computed."""
    if isinstance(config, ast.Name):
        bound = _bound(config.id, code)
        if len(bound) != 1:
            return None
        config = bound[0]
    if config is None:
        return None
    try:
        value = ast.literal_eval(config)
    except (ValueError, TypeError):
        return None
    if isinstance(value, dict | str):
        return value
    return None


def _engine_config(call: ast.Call) -> ast.expr | None:
    """Return the ds_config argument of `deepspeed.initialize`: by name or by position."""
    arguments = {keyword.arg: keyword.value for keyword in call.keywords}
    if not any(isinstance(arg, ast.Starred) for arg in call.args[:11]):
        for name, position in (("config", 10), ("config_params", 12)):
            if position < len(call.args):
                arguments[name] = call.args[position]
    return arguments.get("config") or arguments.get("config_params")


def _plugin_config(call: ast.Call) -> ast.expr | None:
    """Return the ds_config argument of `DeepSpeedPlugin`: by name or by position."""
    if last_name(call.func) != "DeepSpeedPlugin":
        return None
    named = (keyword.value for keyword in call.keywords if keyword.arg == "hf_ds_config")
    return next(named, next(iter(call.args), None))


def _is_own(config: ast.expr | None, code: _Code) -> bool:
    """Whether a ds_config is a literal, or a name that is bound once to a literal and never updated."""
    if code.arguments:
        return False
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


_RECEIVED = (
    r"[\w.]+\.deepspeed(_config)?|os\.environ\['ZLAUNCH_DS_CONFIG'\]"
    r"|os\.(environ\.get|getenv)\('ZLAUNCH_DS_CONFIG'\)"
)
"""An expression for the ds_config that a script receives."""


def _leaves_optimizer_open(call: ast.Call) -> bool:
    """Whether an engine can get its optimizer only from the ds_config that the script receives."""
    names = {keyword.arg for keyword in call.keywords}
    may_give = None in names or "optimizer" in names or len(call.args) > 2
    if may_give or any(isinstance(arg, ast.Starred) for arg in call.args):
        return False
    config = _engine_config(call)
    if config is None:
        return "args" in names
    return re.fullmatch(_RECEIVED, ast.unparse(config)) is not None


def _own_ds_config(code: _Code) -> OwnConfig | None:
    """Find a ds_config that is written in the source and passed to TrainingArguments."""
    keywords = chain(*(call.keywords for call in code.calls if _is_arguments(call.func)))
    for node in (keyword.value for keyword in keywords if keyword.arg == "deepspeed"):
        if isinstance(node, ast.Constant | ast.Dict) and getattr(node, "value", node) is not None:
            text = code.source.split("\n")[node.lineno - 1]
            place = Place(str(code.path), node.lineno, node.col_offset + 1, text)
            return OwnConfig(f"{code.path.name}:{node.lineno}", _literal(node, code), place)
    return None


def _set_arguments(code: _Code) -> Iterator[tuple[str, Value, int]]:
    """Find constant arguments of TrainingArguments, and defaults in subclasses; each with its line."""
    for node in code.nodes:
        if isinstance(node, ast.ClassDef) and any(_is_arguments(base) for base in node.bases):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield from _constant_argument(statement.target.id, statement.value)
        elif isinstance(node, ast.Call) and _is_arguments(node.func):
            for keyword in node.keywords:
                yield from _constant_argument(keyword.arg or "", keyword.value)


_ZERO = ("zero_optimization",)
_OPTIMIZER, _SCHEDULER = ("optimizer", "params"), ("scheduler", "params")
_ACCUMULATION, _CLIPPING = ("gradient_accumulation_steps",), ("gradient_clipping",)
_SETTINGS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("Accelerator", "gradient_accumulation_steps"): _ACCUMULATION,
    ("Accelerator", "mixed_precision"): ("mixed_precision",),
    ("GradientAccumulationPlugin", "num_steps"): _ACCUMULATION,
    ("DeepSpeedPlugin", "gradient_accumulation_steps"): _ACCUMULATION,
    ("DeepSpeedPlugin", "gradient_clipping"): _CLIPPING,
    ("DeepSpeedPlugin", "zero_stage"): (*_ZERO, "stage"),
    ("DeepSpeedPlugin", "offload_optimizer_device"): (*_ZERO, "offload_optimizer", "device"),
    ("DeepSpeedPlugin", "offload_param_device"): (*_ZERO, "offload_param", "device"),
    ("DeepSpeedPlugin", "zero3_save_16bit_model"): (*_ZERO, "stage3_gather_16bit_weights_on_model_save"),
    ("DummyOptim", "lr"): (*_OPTIMIZER, "lr"),
    ("DummyOptim", "weight_decay"): (*_OPTIMIZER, "weight_decay"),
    ("DummyScheduler", "warmup_num_steps"): (*_SCHEDULER, "warmup_num_steps"),
    ("DummyScheduler", "total_num_steps"): (*_SCHEDULER, "total_num_steps"),
    ("clip_grad_norm_", "max_norm"): _CLIPPING,
}
"""Class or method of accelerate, and its argument → the key of a ds_config that accelerate prefers to it."""


def _own_settings(code: _Code) -> Iterator[OwnSetting]:
    for call in code.calls:
        name = last_name(call.func)
        given = {keyword.arg or "": keyword.value for keyword in call.keywords}
        if name == "clip_grad_norm_" and len(call.args) > 1:
            given["max_norm"] = call.args[1]
        if name == "clip_grad_norm_" and "accelerator" not in ast.unparse(call.func):
            continue  # that of torch
        for argument, node in given.items():
            if (path := _SETTINGS.get((name, argument))) is not None and ast.unparse(node) != "None":
                values = [value for _, value, _ in _constant_argument(argument, node)]
                where = f"{code.path.name}:{node.lineno}"
                yield OwnSetting(name, argument, next(iter(values), None), path, where)


def _constant_argument(name: str, node: ast.expr | None) -> Iterator[tuple[str, Value, int]]:
    if node is None:
        return
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return
    if isinstance(value, bool | int | float | str):
        yield name, value, node.lineno


def _is_arguments(node: ast.expr) -> bool:
    return last_name(node).endswith(_ARGUMENTS)


def _loaded(code: _Code) -> Iterator[str]:
    """Find the arguments, such as `args.model`, that are models of transformers."""
    for call in code.calls:
        match call:
            case ast.Call(
                func=ast.Attribute(value=of, attr="from_pretrained"), args=[ast.Attribute() as name]
            ):
                if last_name(of).startswith(("AutoModel", "AutoConfig")):
                    yield name.attr


def _trusts_code(node: ast.AST) -> bool:
    """Whether a node loads a model or config with `trust_remote_code=True`."""
    match node:
        case ast.Call(func=ast.Attribute(value=of, attr="from_pretrained" | "from_config"), keywords=given):
            trusts = "trust_remote_code=True" in map(ast.unparse, given)
            return trusts and last_name(of).startswith(("AutoModel", "AutoConfig"))
    return False
