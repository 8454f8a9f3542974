"""Recognize what DeepSpeed does not do as a script expects, by the script's source.

Only what is certain from the source is a trap; `config/script_traps` says with which ds_configs it is one.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain
from typing import Final, NamedTuple

from zlaunch.errors import Place
from zlaunch.job.evaluating_source import Parents, last_name


class TrapKind(Enum):
    """What a script does; the value is the code of its finding."""

    DEVICE_MAP = "device-map"
    """It loads a model with `device_map`."""
    LOW_MEMORY = "low-cpu-mem-usage"
    """It loads a model with `low_cpu_mem_usage=True`."""
    FOUR_BITS = "four-bit-weights"
    """It loads a model in 4 bits, and stores them as integers."""
    EARLY_MODEL = "model-before-arguments"
    """It loads a model before its TrainingArguments exist."""
    LONE_SAVE = "save-on-one-rank"
    """One rank alone saves, which all of them must."""
    LONE_GATHERING_SAVE = "gathering-save-on-one-rank"
    """One rank alone saves with a method that only gathers weights at stage 3."""
    LONE_GENERATION = "generate-on-one-rank"
    PARTIAL_WEIGHTS = "partial-weights-saved"
    """It saves the state of a model that the engine holds, without gathering it."""
    OWN_ACCUMULATION = "own-accumulation"
    """It steps an engine only after some micro-batches, which the engine does itself."""
    LOSS_DIVIDED = "loss-divided-by-script"
    """It divides the loss by the number of micro-batches, which DeepSpeed does itself."""
    UNMARKED_MUON = "unmarked-muon"
    """It creates DeepSpeed's Muon itself, and marks no parameters for it."""


class Trap(NamedTuple):
    """One place of a script."""

    kind: TrapKind
    place: Place
    call: str
    """The name of what is called."""
    is_reached: bool = False
    """Whether it certainly comes after the TrainingArguments."""


_LOADERS: Final = ("from_pretrained",)
_ARGUMENT_CALLS: Final = ("parse_args_into_dataclasses", "parse_args_and_config", "TrainingArguments")
_ARGUMENT_CLASSES: Final = ("TrainingArguments", "SFTConfig", "DPOConfig", "GRPOConfig")
_TELL_STAGE: Final = ("HfDeepSpeedConfig", "Accelerator")
"""What tells transformers the stage, besides TrainingArguments."""
_RANKS: Final = ("rank", "global_rank", "local_rank", "get_rank", "process_index", "local_process_index")
_IS_MAIN: Final = (
    *("is_main_process", "is_local_main_process", "is_world_process_zero", "is_local_process_zero"),
    *("is_global_zero", "is_rank_0", "is_main_rank"),
)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_PLAIN: Final = (
    *(ast.Expr, ast.Assign, ast.AnnAssign, ast.Return, ast.Module, ast.With, ast.Try, ast.withitem),
    *(ast.Call, ast.Attribute, ast.Subscript, ast.keyword, ast.Tuple, ast.List, ast.Dict),
)
"""What evaluates all its parts."""
_ENGINE: Final = "(?i)deepspeed|zero|stage|engine|framework|backend|fsdp|ddp"
"""What may tell DeepSpeed from other engines."""
_ARGUMENTS: Final = "(?i)train(ing)?_?arg|(SFT|DPO|GRPO)Config"
Locate = Callable[[ast.Call], Place]


def traps(
    nodes: Sequence[ast.AST], parents: Parents, engine_calls: Sequence[ast.Call], locate: Locate
) -> tuple[Trap, ...]:
    """Find the traps of a parsed script; `engine_calls` are those of `deepspeed.initialize`."""
    source = _Source(nodes, parents, engine_calls)
    found: list[Trap] = []
    for find in (_loading, _on_one_rank, _partial_weights, _accumulation, _muon):
        for kind, call, is_reached in find(source):
            found.append(Trap(kind, locate(call), last_name(call.func), is_reached))
    once = dict.fromkeys(found)  # a call in nested loops is in each of them
    return tuple(sorted(once, key=lambda trap: (trap.place.line, trap.kind.value)))


_Found = Iterator[tuple[TrapKind, ast.Call, bool]]


class _Source:
    """A parsed script, with what several traps need."""

    def __init__(self, nodes: Sequence[ast.AST], parents: Parents, engine_calls: Sequence[ast.Call]) -> None:
        self.nodes, self.parents = nodes, parents
        self.calls = [node for node in nodes if isinstance(node, ast.Call)]
        self.names = {last_name(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
        self.engines = {*chain.from_iterable(map(self._targets, engine_calls))}
        """What engines are assigned to, as they are written."""
        self.held = set(self.engines)
        """The same, and the models that engines hold."""
        for call in engine_calls:
            self.held.update(_model_of(call))
        self.entered = self._entered()
        """The module, and its functions that are certainly called."""
        prepared = [call for call in self.calls if last_name(call.func) == "prepare"]
        self.prepared = {*chain.from_iterable(map(self._targets, prepared))}
        """What accelerate has prepared; its models are among them."""

    def _targets(self, call: ast.Call) -> Iterator[str]:
        """List what the result of a call is assigned to; of `deepspeed.initialize`, only the engine."""
        assign = self.parents.get(call)
        if isinstance(assign, ast.Subscript):
            assign = self.parents.get(assign)
        if not isinstance(assign, ast.Assign):
            return
        is_engine = last_name(call.func) == "initialize"
        for target in assign.targets:
            parts: Sequence[ast.expr] = [target]
            if isinstance(target, ast.Tuple | ast.List):
                parts = target.elts
            if is_engine:
                parts = parts[:1]
            yield from (ast.unparse(part) for part in parts)

    def around(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Walk outwards: each node around, and its child on the way."""
        while node in self.parents:
            yield self.parents[node], node
            node = self.parents[node]

    def scope(self, node: ast.AST) -> ast.AST:
        """Return the function around a node, or the module."""
        outer = node
        for outer, _ in self.around(node):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                return outer
        return outer

    def _entered(self) -> set[ast.AST]:
        functions = {node.name: node for node in self.nodes if isinstance(node, _FUNCTIONS)}
        plain = [call for call in self.calls if not self.is_conditional(call)]
        entered: set[ast.AST] = {node for node in self.nodes if isinstance(node, ast.Module)}
        size = 0
        while len(entered) > size:
            size = len(entered)
            for call in plain:
                if self.scope(call) in entered:
                    named = [part for part in (call.func, *call.args) if isinstance(part, ast.Name)]
                    entered.update(functions[name.id] for name in named if name.id in functions)
        return entered

    def is_certain(self, call: ast.Call) -> bool:
        """Whether a run certainly gets to a call, unless it ends before."""
        return self.scope(call) in self.entered and not self.is_conditional(call)

    def is_conditional(self, call: ast.Call) -> bool:
        """Whether something in its function decides if a call happens."""
        for outer, child in self.around(call):
            match outer:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    return child not in outer.body
                case ast.If(test=test) if "__name__" in ast.unparse(test):
                    continue
                case ast.Try(handlers=[_, *_]):
                    return True
            if not isinstance(outer, _PLAIN):
                return True
        return False

    def is_used(self, call: ast.Call) -> bool:
        """Whether something reads what the result of a call is assigned to."""
        assign = self.parents[call]
        if not isinstance(assign, ast.Assign):
            return True
        read = {
            node.id for node in self.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        return not all(isinstance(name, ast.Name) and name.id not in read for name in assign.targets)

    def is_for_deepspeed(self, node: ast.AST) -> bool:
        """Whether no `if` around a node may tell DeepSpeed from other engines."""
        tests = chain.from_iterable(
            _operands(outer.test) for outer, _ in self.around(node) if isinstance(outer, ast.If)
        )
        return not any(re.search(_ENGINE, ast.unparse(test)) for test in tests if not _is_rank_0(test))

    def on_one_rank(self, node: ast.AST) -> bool:
        """Whether only one rank gets here, by an `if` in the same function."""
        for outer, child in self.around(node):
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return False
            if isinstance(outer, ast.If) and child in outer.body and _is_rank_0(outer.test):
                return True
        return False


def _model_of(call: ast.Call) -> Iterator[str]:
    """Name the model that an engine is created for."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "model"]
    if len(call.args) > 1:
        given.append(call.args[1])
    yield from (ast.unparse(model) for model in given if isinstance(model, ast.Name | ast.Attribute))


def _operands(test: ast.expr) -> Sequence[ast.expr]:
    match test:
        case ast.BoolOp(values=values):
            return values
    return (test,)


def _is_rank_0(test: ast.expr) -> bool:
    """Whether a condition holds on one rank only."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return any(map(_is_rank_0, values))
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=0)]):
            return _called(left) in _RANKS
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _called(operand) in _RANKS
    return _called(test) in _IS_MAIN


def _called(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return last_name(node)


def _loading(source: _Source) -> _Found:
    """Find models that are loaded in a way that stage 3 does not support."""
    arguments = [call for call in source.calls if _creates_arguments(call)]
    if not arguments and source.names.isdisjoint(_TELL_STAGE):
        return  # transformers does not know of a stage
    for call in filter(source.is_certain, source.calls):
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        is_loader = last_name(call.func) in ("BitsAndBytesConfig", *_LOADERS)
        is_four_bits = is_loader and _is_true(given.get("load_in_4bit"))
        if is_four_bits and "bnb_4bit_quant_storage" not in given and source.is_used(call):
            yield TrapKind.FOUR_BITS, call, False
        if last_name(call.func) not in _LOADERS or not _is_model(call):
            continue
        here = [other for other in arguments if source.scope(other) is source.scope(call)]
        is_reached = len(arguments) == 1 and bool(here) and here[0].lineno < call.lineno
        is_told = is_reached or _may_have_arguments(call, source)
        if here and len(arguments) == 1 and not is_told:
            yield TrapKind.EARLY_MODEL, call, False
        if is_told and _is_literal(given.get("device_map")):
            yield TrapKind.DEVICE_MAP, call, is_reached
        if is_told and _is_true(given.get("low_cpu_mem_usage")):
            yield TrapKind.LOW_MEMORY, call, is_reached


def _may_have_arguments(call: ast.Call, source: _Source) -> bool:
    """Whether something before a call in its function tells transformers the stage."""
    scope = source.scope(call)
    tells = [other for other in source.calls if last_name(other.func) in _TELL_STAGE]
    if any(other.lineno < call.lineno and source.scope(other) is scope for other in tells):
        return True
    given: list[ast.AST] = []
    if isinstance(scope, _FUNCTIONS):
        given = [scope.args]
    return any(re.search(_ARGUMENTS, ast.unparse(node)) for node in (*given, *call.args))


def _creates_arguments(call: ast.Call) -> bool:
    name = last_name(call.func)
    return name in _ARGUMENT_CALLS or name.endswith(_ARGUMENT_CLASSES)


def _is_model(call: ast.Call) -> bool:
    """Whether a call loads weights of a model by a class of transformers."""
    if not isinstance(call.func, ast.Attribute):
        return False
    name = last_name(call.func.value)
    return name.startswith("AutoModel") or (
        "For" in name and name[0].isupper() and not name.endswith("Config")
    )


def _is_literal(node: ast.expr | None) -> bool:
    """Whether a value is written out, and not None."""
    if isinstance(node, ast.Constant):
        return node.value is not None
    return isinstance(node, ast.Dict)


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _on_one_rank(source: _Source) -> _Found:
    """Find collective calls that one rank makes alone."""
    for call in source.calls:
        if not isinstance(call.func, ast.Attribute) or not source.on_one_rank(call):
            continue
        kind = _lone_call(call.func, source)
        if kind is not None and source.is_for_deepspeed(call):
            yield kind, call, False


def _lone_call(method: ast.Attribute, source: _Source) -> TrapKind | None:
    """Tell what it means if one rank alone calls a method."""
    owner = ast.unparse(method.value)
    is_engine, is_accelerator = owner in source.engines, last_name(method.value) == "accelerator"
    match method.attr:
        case "save_checkpoint" if is_engine:
            return TrapKind.LONE_SAVE
        case "save_state" if is_accelerator:
            return TrapKind.LONE_SAVE
        case "save_16bit_model" | "save_fp16_model" if is_engine:
            return TrapKind.LONE_GATHERING_SAVE
        case "get_state_dict" if is_accelerator:
            return TrapKind.LONE_GATHERING_SAVE
        case "save_model" if owner == "trainer":
            return TrapKind.LONE_GATHERING_SAVE
        case "generate" if _is_held(method.value, source):
            return TrapKind.LONE_GENERATION
    return None


def _is_held(model: ast.expr, source: _Source) -> bool:
    """Whether an expression is certainly a model of an engine."""
    if isinstance(model, ast.Call) and last_name(model.func) == "unwrap_model":
        return True
    text = ast.unparse(model)
    if text in source.held or text == "trainer.model":
        return True
    if text in source.prepared:
        return "model" in text
    return isinstance(model, ast.Attribute) and model.attr == "module" and _is_held(model.value, source)


def _partial_weights(source: _Source) -> _Found:
    """Find `torch.save` of a state that each rank has only a part of at stage 3."""
    for call in source.calls:
        if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func) != "torch.save":
            continue
        states = [node for node in _walk(call.args[:1]) if _is_state(node, source)]
        gathers = any(map(_gathers, (outer for outer, _ in source.around(call))))
        if states and not gathers and source.is_for_deepspeed(call):
            yield TrapKind.PARTIAL_WEIGHTS, call, False


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    return chain.from_iterable(map(ast.walk, nodes))


def _is_state(node: ast.AST, source: _Source) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=model, attr="state_dict")):
            return _is_held(model, source)
    return False


def _gathers(node: ast.AST) -> bool:
    return isinstance(node, ast.With) and any("GatheredParameters" in ast.unparse(it) for it in node.items)


def _accumulation(source: _Source) -> _Found:
    """Find micro-batches that the script counts itself, although DeepSpeed does."""
    if not source.names.isdisjoint(("set_gradient_accumulation_boundary", "no_sync")):
        return
    for loop in source.nodes:
        if not isinstance(loop, ast.For | ast.While):
            continue
        inside = [node for node in _walk(loop.body) if isinstance(node, ast.Call)]
        backward = [call for call in inside if _is_method(call, "backward", source)]
        for call in inside:
            if _is_method(call, "step", source) and ast.unparse(call.func) in _stepped(backward):
                test = _counting_test(call, loop, source)
                if test is not None and not any(_is_below(found, test, source) for found in backward):
                    yield TrapKind.OWN_ACCUMULATION, call, False
        for call in backward:
            if call.args and _is_divided(call.args[0], loop, source) and source.is_for_deepspeed(call):
                yield TrapKind.LOSS_DIVIDED, call, False


def _is_method(call: ast.Call, name: str, source: _Source) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != name:
        return False
    owner = ast.unparse(call.func.value)
    return owner in source.engines or (name == "backward" and owner == "accelerator")


def _stepped(backward: Iterable[ast.Call]) -> set[str]:
    """Name the steps of the engines whose backward passes these are."""
    return {f"{ast.unparse(call.func).rpartition('.')[0]}.step" for call in backward}


def _counting_test(call: ast.Call, loop: ast.AST, source: _Source) -> ast.If | None:
    """Return the `if` between a call and its loop that lets only some of the micro-batches through."""
    for outer, child in source.around(call):
        if outer is loop or isinstance(outer, ast.For | ast.While):
            return None
        match outer:
            case ast.If(test=test, body=body) if child in body and _has_modulo(test):
                return outer
    return None


def _has_modulo(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Mod) for node in ast.walk(test))


def _is_below(node: ast.AST, outer: ast.AST, source: _Source) -> bool:
    return any(around is outer for around, _ in source.around(node))


def _is_divided(loss: ast.expr, loop: ast.For | ast.While, source: _Source) -> bool:
    """Whether a loss was divided by a number of accumulated micro-batches, in this loop."""
    return any(_counts_micro_batches(number, source) for number in _divisors(loss, loop, source))


def _divisors(loss: ast.expr, loop: ast.For | ast.While, source: _Source) -> Iterator[ast.expr]:
    """List what a loss was divided by before its backward pass."""
    values = [loss]
    if isinstance(loss, ast.Name):
        for node in filter(source.is_for_deepspeed, _walk(loop.body)):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == loss.id:
                    values.append(value)
                case ast.AugAssign(target=ast.Name(id=name), op=ast.Div(), value=value) if name == loss.id:
                    yield value
    for value in values:
        match value:
            case ast.BinOp(op=ast.Div(), right=right):
                yield right


def _counts_micro_batches(number: ast.expr, source: _Source) -> bool:
    """Whether a number is one of accumulated micro-batches, and the script does not set it to 1."""
    text = ast.unparse(number)
    for node in source.nodes:
        match node:
            case ast.Assign(targets=[target], value=ast.Constant(value=1)) if ast.unparse(target) == text:
                return False
    return "accum" in text


def _muon(source: _Source) -> _Found:
    """Find Muon of DeepSpeed with parameters that are not marked for it."""
    marks = any(_marks_muon(node) for node in source.nodes)
    from_deepspeed = any(
        isinstance(node, ast.ImportFrom) and (node.module or "").startswith("deepspeed.")
        for node in source.nodes
    )
    for call in source.calls:
        if last_name(call.func) == "MuonWithAuxAdam" and from_deepspeed and not marks:
            yield TrapKind.UNMARKED_MUON, call, False


def _marks_muon(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="use_muon", ctx=ast.Store()):
            return True
        case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Constant(value="use_muon"), *_]):
            return True
    return last_name(node) == "set_optimizer_flags"
