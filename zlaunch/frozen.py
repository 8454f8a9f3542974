"""Frozen dataclasses without the methods that Python compiles for each class, one by one.

A short command declares a hundred of them, which took a quarter of its time. The type checker sees a
dataclass of the standard library and refuses each assignment to a field; at run time, nothing does.
"""

import dataclasses
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
        made = dataclasses.dataclass(cls, repr=False, eq=False, **given)
        fields = dataclasses.fields(made)
        made.__shown__ = tuple(field.name for field in fields if field.repr)
        made.__compared__ = tuple(field.name for field in fields if field.compare)
        for name in ("__repr__", "__eq__", "__hash__"):
            if name not in own:
                setattr(made, name, vars(_Methods)[name])
        return made
