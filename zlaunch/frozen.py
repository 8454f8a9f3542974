"""Frozen dataclasses without the methods that Python compiles for each class, one by one.

A short command declares a hundred of them, which took a quarter of its time. Only `__init__` is compiled,
when the first instance is made. The type checker sees a dataclass of the standard library and refuses each
assignment to a field; at run time, nothing does.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING
from functools import partial
from typing import TYPE_CHECKING, Any


class _Methods:
    """What all frozen dataclasses share."""

    __shown__: tuple[str, ...]
    __compared__: tuple[str, ...]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__shown__)
        return f"{type(self).__qualname__}({shown})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _compared(self) == _compared(other)

    def __hash__(self) -> int:
        return hash(_compared(self))


def _compared(value: Any) -> tuple[object, ...]:
    return tuple([getattr(value, name) for name in value.__compared__])


def _compiled_when_called(cls: type) -> Callable[..., None]:
    """Make an `__init__` that replaces itself with the compiled one."""

    def __init__(self: Any, *args: Any, **given: Any) -> None:  # noqa: N807 - as it is called in a traceback
        compiled = _init(cls)
        setattr(cls, "__init__", compiled)  # noqa: B010 - mypy forbids the assignment
        compiled(self, *args, **given)

    return __init__


def _init(cls: Any) -> Callable[..., None]:
    """Compile the `__init__` of a dataclass."""
    arguments, lines, defaults = ["self"], ["pass"], list[object]()
    scope: dict[str, Any] = {"MISSING": MISSING}
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        has_default = field.default is not MISSING
        if field.default_factory is not MISSING:
            scope[f"new_{name}"], has_default = field.default_factory, True
            value = f"new_{name}() if {name} is MISSING else {name}"
        if field.init:
            arguments.append(name)
            defaults += [field.default] * has_default
        scope[name] = field.default  # which a field that is no argument takes
        if field.init or has_default:
            lines.append(f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    body = "\n ".join(lines)
    exec(f"def __init__({', '.join(arguments)}):\n {body}", scope)  # noqa: S102 - as dataclasses do
    made: Any = scope["__init__"]
    made.__defaults__ = tuple(defaults)
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made  # type: ignore[no-any-return]


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - for the modules that import it here
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, **given: bool) -> Any:
        """Declare a dataclass, as the decorator of the standard library does."""
        if cls is None:
            return partial(dataclass, frozen=frozen, **given)
        if not frozen:
            return dataclasses.dataclass(cls, **given)
        own = {name for name, member in vars(cls).items() if member is not None}
        made = dataclasses.dataclass(cls, init=False, repr=False, eq=False, **given)
        if "__init__" not in own:
            made.__init__ = _compiled_when_called(made)
        fields = dataclasses.fields(made)
        made.__shown__ = tuple(field.name for field in fields if field.repr)
        made.__compared__ = tuple(field.name for field in fields if field.compare)
        for name in ("__repr__", "__eq__", "__hash__"):
            if name not in own:
                setattr(made, name, vars(_Methods)[name])
        return made
