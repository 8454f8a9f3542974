"""Commands that are imported when needed: to run, to show their own help, or to complete their options."""

import json
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from zlaunch.cli.defaults import DeclaredDefaults
from zlaunch.errors import WrongUsage


class PlainCommand(DeclaredDefaults, TyperCommand):
    """A command with options alone."""


class LazyCommand(TyperCommand):
    """The name and the help line of a command, and where to import it from."""

    def __init__(
        self, path: str, help_line: str, cls: type[TyperCommand] = PlainCommand, **settings: bool
    ) -> None:
        """Take the path as `module[:function]` below `zlaunch.cli`; the command is named like its module.

        Class and context settings are those of the command itself.
        """
        module, _, function = path.partition(":")
        name = module.rpartition(".")[2].replace("_", "-")
        super().__init__(name, help=help_line, rich_markup_mode=None)
        self.module = f"zlaunch.cli.{module}"
        self._function = function or name
        self.cls = cls
        self._settings = settings

    def load(self) -> Any:
        """Import the command and build its parser."""
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        register = app.command(self.name, cls=self.cls, context_settings=self._settings)
        register(getattr(import_module(self.module), self._function))
        return get_command(app)


OTHER_NAMES = Path(__file__).with_name("other_names.json")
"""Group, empty at the top → command, or a sentence with one of the shell → what others call it."""


class LazyGroup(DeclaredDefaults, TyperGroup):
    """Lists and completes its commands without importing them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that the arguments name, and import it."""
        if args and args[0] not in self.commands and not ctx.resilient_parsing:
            hint = f"see `{ctx.command_path} --help`"
            if meant := self._meant(args, is_top=ctx.parent is None):
                hint = f"did you mean `{ctx.find_root().command_path} {meant}`?"
                if "`" in meant:  # no command of zlaunch
                    hint = meant
            raise WrongUsage(f"{ctx.command_path} has no command `{args[0]}`", hint)
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, LazyCommand):
            command = command.load()
        return name, command, rest

    def _meant(self, words: list[str], is_top: bool) -> str | None:
        """Find a command under another name, or in one of the groups of this one."""
        word, *rest = words
        own = "" if is_top else str(self.name)
        if is_top and word.endswith(".py"):
            return f"train {word}"
        from zlaunch.config.translate.programs import LAUNCHERS, PROGRAMS  # only for a wrong command

        if is_top and word in {*LAUNCHERS.values(), *(program.name for program in PROGRAMS.values())}:
            return f"config translate -- {word} …"
        groups = {name: group for name, group in self.commands.items() if isinstance(group, LazyGroup)}
        for name, group in groups.items():
            if rest and rest[0] in group.commands and name.startswith(word):
                return f"{name} {rest[0]}"
        for meant, other_names in json.loads(OTHER_NAMES.read_text("utf-8"))[own].items():
            if word in other_names.split():
                return str(meant)
        within = [f"{name} {word}" for name, group in groups.items() if word in group.commands]
        close = [f"{own} {name}".strip() for name in get_close_matches(word, self.commands, 1)]
        return next(iter([*within, *close]), None)


def group(name: str, help_line: str, *commands: LazyCommand) -> LazyGroup:
    """Build a group that shows its help when it is called without a command."""
    return LazyGroup(
        name=name, help=help_line, commands=commands, no_args_is_help=True, rich_markup_mode=None
    )
