"""Options of a command that are declared in tables: a table is a dataclass whose fields are its options."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import fields
from inspect import Parameter, signature
from typing import Annotated, Any, TypeVar, get_args

from typer.core import TyperCommand
from typer.models import ParameterInfo

from zlaunch.frozen import dataclass

Table = TypeVar("Table")

MOST_USED = "Most used"


@dataclass(frozen=True)
class OptionPanel:
    """A part of the help: its title, and the fields of a table that are its options."""

    title: str
    table: type[Any]
    names: Sequence[str]

    @classmethod
    def of(cls, title: str, table: type[Any]) -> "OptionPanel":
        """Show all fields of a table."""
        return cls(title, table, [field.name for field in fields(table)])


class PanelCommand(TyperCommand):
    """Shows its options in panels, those that are used most first."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections of the help; without panels, as any other command."""
        panels: dict[str, list[tuple[str, str]]] = {MOST_USED: []}
        rest: list[tuple[str, str]] = []
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                title = getattr(option, "rich_help_panel", None)
                if title is None:
                    rest.append(record)
                else:
                    panels.setdefault(title, []).append(record)
        if not panels[MOST_USED]:
            super().format_options(ctx, formatter)
            return
        *_, last = panels
        panels[last] += rest  # `--help`
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)


def with_options(
    panels: Iterable[OptionPanel], most_used: Sequence[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these panels as keyword arguments; the most used are shown first."""
    added: dict[str, Parameter] = {}
    for panel in panels:
        for field in fields(panel.table):
            if field.name in panel.names and field.name not in added:
                title = panel.title
                if field.name in most_used:
                    title = MOST_USED
                annotation = _in_panel(field.type, title)
                added[field.name] = Parameter(
                    field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=annotation
                )

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        declared = signature(command)
        kept = [
            parameter
            for parameter in declared.parameters.values()
            if parameter.kind is not Parameter.VAR_KEYWORD
        ]
        command.__signature__ = declared.replace(parameters=[*kept, *added.values()])  # type: ignore[attr-defined]
        return command

    return decorate


def _in_panel(annotation: Any, title: str) -> Any:
    kind, info = get_args(annotation)
    assert isinstance(info, ParameterInfo)
    info = copy(info)
    info.rich_help_panel = title
    return Annotated[kind, info]


def read(table: type[Table], given: Mapping[str, Any]) -> Table:
    """Take the options of one table from those of a command."""
    return table(**members(table, given))


def members(table: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of a dataclass, without those that were not given."""
    names = {field.name for field in fields(table)}
    return {name: value for name, value in given.items() if name in names and value is not None}
