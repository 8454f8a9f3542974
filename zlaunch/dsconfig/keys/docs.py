"""The meaning of each key: the docstring below its field, read from the source on request."""

import ast
import functools
import inspect
import sys
from collections.abc import Mapping

from zlaunch.dsconfig.schema.section import Section


def meaning(section: type[Section], key: str) -> str:
    """Find the docstring of a field, in the class or its bases."""
    for owner in section.__mro__:
        if words := _words(owner.__module__).get((owner.__name__, key)):
            return words
    return ""


@functools.cache
def _words(module: str) -> Mapping[tuple[str, str], str]:
    if not module.startswith("zlaunch."):
        return {}
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {
        (node.name, field.target.id): inspect.cleandoc(words.value.value)
        for node in classes
        for field, words in zip(node.body, node.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(words, ast.Expr)
        and isinstance(words.value, ast.Constant)
        and isinstance(words.value.value, str)
    }
