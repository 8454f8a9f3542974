"""The meaning of each key: the docstring below its field, read from the source on request.

A section is described once, by the docstring of its model.
"""

import ast
import functools
import inspect
import sys
from collections.abc import Mapping

from zlaunch.dsconfig.keys.lookup import section_in
from zlaunch.dsconfig.schema.section import Section


def meaning(section: type[Section], key: str) -> str:
    """Find the docstring of a field, in the class or its bases; else the first line about its section."""
    for owner in section.__mro__:
        if words := _words(owner.__module__).get((owner.__name__, key)):
            return words
    inner = section_in(section.model_fields[key].annotation)
    return inner.__doc__.partition("\n")[0] if inner and inner.__doc__ else ""


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
