"""Defaults of options, which need no reading."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import typer


class DeclaredDefaults:
    """A command that keeps the defaults of its options as they are declared, and its help free of types.

    Typer would build an adapter of pydantic for each of them, which takes half the time of a short command.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse a command line; an error knows the command."""
        with errors_of(ctx):
            parsed: list[str] = super().parse_args(ctx, self.with_help(ctx, args))  # type: ignore[misc]
        return parsed

    def with_help(self, ctx: Any, words: Sequence[str]) -> list[str]:
        """Write `--help` for each `-h` that is for this command, and not for a program that it names."""
        end = self._end_of_own(ctx, words)
        return [*("--help" if word == "-h" else word for word in words[:end]), *words[end:]]

    def _end_of_own(self, ctx: Any, words: Sequence[str]) -> int:
        """Count the words that are for this command alone: of a group, those before the command in it."""
        if not ctx.allow_interspersed_args:
            return 1
        return [*words, "--"].index("--")

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments, `--help` too."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            param.process_value = partial(_value_of, param)
            _show_plainly(param)
        return params


@contextmanager
def errors_of(context: Any) -> Iterator[None]:
    """Tell an error of the parser which command it is about."""
    try:
        yield
    except Exception as error:
        if getattr(error, "ctx", context) is None:
            error.ctx = context  # type: ignore[attr-defined]
        raise


def _show_plainly(param: Any) -> None:
    """Leave types and the bounds of numbers out of the help; the error about a wrong value has them."""
    param._get_number_range_help_str = lambda: None  # noqa: SLF001 - Typer has no other switch
    if param.param_type_name == "argument":
        param.display_type_rich = lambda ctx: ""
        name = param.metavar or param.name.upper()
        if not param.required:
            name = f"[{name}]"
        param._usage_display_name = lambda: name  # noqa: SLF001


def _value_of(param: Any, context: Any, value: Any) -> Any:
    """Read a value that was given, and call its callback; refuse an empty one."""
    source = context.get_parameter_source(param.name)
    if param.required or source is None or source.name != "DEFAULT":
        if not _is_of_a_program(param) and (value == "" or (param.multiple and "" in (value or ()))):
            # an empty path would be taken for the working directory
            raise typer.BadParameter("it is empty; is a variable of the shell unset?", context, param)
        return type(param).process_value(param, context, value)
    if value is None and (param.multiple or param.nargs == -1):
        return ()
    return value


def _is_of_a_program(param: Any) -> bool:
    """Whether an argument may be a word of a program, which may be empty; `script` is one after a module."""
    return bool(param.nargs == -1 or param.name == "script")
