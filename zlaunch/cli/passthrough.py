"""Command lines that pass arguments on to a script: `[SCRIPT] [OPTIONS] [-- SCRIPT ARGS]`."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from zlaunch.errors import WrongUsage


class ScriptCommand(TyperCommand):
    """Parses its own options anywhere before `--`; unknown options go to the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the command line at `--`; what follows is not parsed."""
        own, after = args, []
        if "--" in args:
            cut = args.index("--")
            own, after = args[:cut], args[cut + 1 :]
        result: list[str] = super().parse_args(ctx, [*own])
        script, module = ctx.params.get("script"), ctx.params.get("module")
        if script is not None and module is not None:
            if not _follows_module(str(script), own):
                raise WrongUsage(
                    f"`{script}` and `-m {module}` both name a program",
                    "keep one of them; arguments of a module go after its name",
                )
            ctx.args, ctx.params["script"], script = [script, *ctx.args], None, None
        if script is not None and str(script).startswith("-"):
            own_options = [name for option in self.params for name in option.opts]
            name = str(script).partition("=")[0]
            meant = get_close_matches(name, own_options, 1)
            raise no_such_option(
                ctx.command_path, name, meant, "options of the script go after it, or after `--`; "
            )
        ctx.args = [*ctx.args, *after]
        return result


def trainer_args(argv: Sequence[str], python: Path | None) -> list[str]:
    """Return the Trainer arguments after `--`; if a program is named there, the ones that it has.

    `python` is the interpreter of the program; None for the one that runs zlaunch.
    """
    if not argv or not (argv[0] == "-m" or argv[0].endswith(".py")):
        return list(argv)
    from zlaunch.cli.views.launch import LaunchView  # what asks a program is rarely needed
    from zlaunch.launch.ask import ask_command

    return ask_command(argv, python, LaunchView())


def no_such_option(command: str, name: str, meant: Sequence[str] | None, besides: str = "") -> WrongUsage:
    """Report an unknown option, with a similar one if there is any."""
    hint = f"did you mean `{meant[0]}`?" if meant else f"{besides}see `{command} --help`"
    return WrongUsage(f"{command} has no option `{name}`", hint)


def _follows_module(word: str, words: list[str]) -> bool:
    """Whether a word follows the name of a module, and so belongs to the module."""
    places = [place for place, one in enumerate(words) if one.startswith(("-m", "--module"))]
    return word in words[places[-1] + 1 :] if places else False
