"""Defaults of options, which need no reading."""

from functools import partial
from typing import Any


class DeclaredDefaults:
    """A command that keeps the defaults of its options as they are declared.

    Typer would build an adapter of pydantic for each of them, which takes half the time of a short command.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments, `--help` too."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            param.process_value = partial(_value_of, param)
        return params


def _value_of(param: Any, context: Any, value: Any) -> Any:
    """Read a value that was given; callbacks are for these too."""
    source = context.get_parameter_source(param.name)
    if param.required or source is None or source.name != "DEFAULT":
        return type(param).process_value(param, context, value)
    if value is None and (param.multiple or param.nargs == -1):
        return ()
    return value
