"""Recognize scripts whose Trainer evaluates before it has trained, by their source."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_TRAINERS = ("Trainer", "Seq2SeqTrainer")
_SWITCHES = ("do_train", "do_eval", "do_predict")
_EVALUATES = ("evaluate", "predict")
_CERTAIN = (frozenset[str](), frozenset({"do_eval"}), frozenset({"do_predict"}))
_UNKNOWN = "?"
_PLAIN = (
    *(ast.Module, ast.Expr, ast.Assign, ast.Return, ast.With),
    *(ast.Call, ast.keyword, ast.Attribute),
)
"""What a call may be part of and still certainly happens."""
_MAY_TRAIN = ("hyperparameter_search", "evaluation_loop", "prediction_loop")
_ENDS = ("exit", "_exit", "quit")

Parents = Mapping[ast.AST, ast.AST]


class Evaluation(NamedTuple):
    """A call by which a Trainer certainly evaluates, without a training before if `do_train` is off."""

    line: int
    method: str
    switch: str
    """The argument without which it is not called, such as `do_eval`; empty if it always is."""


def walk(tree: ast.Module) -> tuple[list[ast.AST], Parents]:
    """List the nodes of a source in the order of `ast.walk`, and find the parent of each."""
    nodes: list[ast.AST] = [tree]
    parents: dict[ast.AST, ast.AST] = {}
    for node in nodes:  # which grows
        for child in ast.iter_child_nodes(node):
            parents[child] = node
            nodes.append(child)
    return nodes, parents


def untrained_evaluations(nodes: Sequence[ast.AST], parents: Parents) -> tuple[Evaluation, ...]:
    """Find where the only Trainer of a script evaluates; nothing if it may train without `do_train`."""
    uses = _uses_of_trainer(nodes)
    if not uses or any(map(_changes, nodes)):
        return ()
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = {last_name(call.func) for call in calls if not [*_conditions(call, parents, set())]}
    reached = [(use, frozenset(_conditions(use, parents, called))) for use in uses]
    if any(use.attr == "train" and "do_train" not in conditions for use, conditions in reached):
        return ()
    certain = [(use, "".join(conditions)) for use, conditions in reached if conditions in _CERTAIN]
    return tuple(
        Evaluation(use.lineno, use.attr, switch)
        for use, switch in certain
        if use.attr in _EVALUATES and not _may_end_before(use, nodes, parents)
    )


def _uses_of_trainer(nodes: Sequence[ast.AST]) -> list[ast.Attribute]:
    """List the attributes of the only Trainer, if it is one of transformers and stays in its variable."""
    made = [node for node in nodes if isinstance(node, ast.Call) and last_name(node.func).endswith("Trainer")]
    if len(made) != 1 or not any(_imports(node, made[0].func) for node in nodes):
        return []
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=variable)], value=value) if value is made[0]:
                attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
                uses = [use for use in attributes if _is_name(use.value, variable)]
                if sum(_is_name(node, variable) for node in nodes) == len(uses) + 1:
                    return uses
    return []


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _imports(node: ast.AST, trainer: ast.expr) -> bool:
    """Whether a node imports a Trainer of transformers by the name that is called."""
    match node, trainer:
        case ast.ImportFrom(module="transformers", names=names), ast.Name(id=name):
            return name in _TRAINERS and any((alias.name, alias.asname) == (name, None) for alias in names)
        case ast.Import(names=names), ast.Attribute(value=ast.Name(id="transformers"), attr=name):
            return name in _TRAINERS and any(alias.name == "transformers" for alias in names)
    return False


def _changes(node: ast.AST) -> bool:
    """Whether a node may train, or give a switch another value than the command line."""
    match node:
        case ast.keyword(arg=name) | ast.Constant(value=name) | ast.Name(id=name, ctx=ast.Store()):
            return name in _SWITCHES
        case ast.Attribute(attr=name, ctx=ast.Store()):
            return name in (*_SWITCHES, *_EVALUATES, "train")
        case ast.Attribute(attr=name):
            return name in _MAY_TRAIN
    return False


def _conditions(node: ast.AST, parents: Parents, called: set[str]) -> Iterator[str]:
    """List the switches that lead to a node, and `?` for anything else that decides about it."""
    while node in parents:
        child, node = node, parents[node]
        match node:
            case ast.If(test=test, body=body) if child in body:
                yield from _switches(test)
            case ast.FunctionDef(name=name) if name in called and isinstance(parents[node], ast.Module):
                pass
            case _ if not isinstance(node, _PLAIN):
                yield _UNKNOWN


def _switches(test: ast.expr) -> Iterator[str]:
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            for value in values:
                yield from _switches(value)
        case ast.Attribute(attr=name) if name in _SWITCHES:
            yield name
        case ast.Compare(left=ast.Name(id="__name__")):
            pass
        case _:
            yield _UNKNOWN


def _may_end_before(use: ast.Attribute, nodes: Sequence[ast.AST], parents: Parents) -> bool:
    """Whether the program may end before a use without an error, so that this is not reached."""
    before = [node for node in nodes if getattr(node, "lineno", use.lineno) < use.lineno]
    returns = [node for node in before if isinstance(node, ast.Return)]
    if any(_function(node, parents) is _function(use, parents) for node in returns):
        return True
    return any(isinstance(node, ast.Call) and last_name(node.func) in _ENDS for node in before)


def _function(node: ast.AST, parents: Parents) -> ast.AST:
    while node in parents and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        node = parents[node]
    return node


def last_name(node: ast.AST) -> str:
    """Return the name of a variable or an attribute; empty for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
