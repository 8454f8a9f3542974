"""Command lines that pass arguments on to a script: `[SCRIPT] [OPTIONS] [-- SCRIPT ARGS]`."""

import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from zlaunch.cli.defaults import DeclaredDefaults
from zlaunch.cli.usage_errors import no_such_option, of_other_programs
from zlaunch.errors import WrongUsage
from zlaunch.job.args import ScriptArgs


class ScriptCommand(DeclaredDefaults, TyperCommand):
    """Parses its own options anywhere before `--`; unknown options go to the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the command line at `--`; what follows is not parsed.

        A program in place of the script is reported before its options are taken for those of zlaunch.
        """
        arguments = {option.name for option in self.params if option.param_type_name == "argument"}
        if "script" in arguments and not ctx.resilient_parsing:
            self._refuse_program(args)
        ours, after = args, []
        if "--" in args:
            cut = args.index("--")
            ours, after = args[:cut], args[cut + 1 :]
        result: list[str] = super().parse_args(ctx, [*ours])
        script, module = ctx.params.get("script"), ctx.params.get("module")
        if script is not None and module is not None:
            if not _follows_module(str(script), ours):
                raise WrongUsage(
                    f"`{script}` and `-m {module}` both name a program",
                    "keep one of them; arguments of a module go after its name",
                )
            ctx.args, ctx.params["script"], script = [script, *ctx.args], None, None
        if script not in (None, "-") and str(script).startswith("-"):
            names = list(chain.from_iterable(option.opts for option in self.params))
            name = str(script).partition("=")[0]
            meant = get_close_matches(name, names, 1)
            hint = (
                f"options of the script go after `--`: `{ctx.command_path} -- {shlex.quote(str(script))} …`"
            )
            raise no_such_option(ctx.command_path, name, meant, of_other_programs(ctx, name, args), hint)
        ctx.args = [*ctx.args, *after]
        return result

    def _end_of_own(self, ctx: Any, words: Sequence[str]) -> int:
        place = self._place_of_program(words) if ctx.ignore_unknown_options else None
        return super()._end_of_own(ctx, words) if place is None else place

    def _refuse_program(self, words: Sequence[str]) -> None:
        """Raise WrongUsage for an empty name, and with the right command for a program that starts ranks."""
        if (place := self._place_of_program(words)) is None:
            return
        if not words[place]:
            raise WrongUsage("the name of the script is empty", "is a variable of the shell unset?")
        from zlaunch.config.translate import refusal  # help and completion do not need it

        program = list(words[place:])
        if program[0] in _MODULE:
            program[0] = "-m"
        if (error := refusal(words[:place], program)) is not None:
            raise error

    def _place_of_program(self, words: Sequence[str]) -> int | None:
        """Find the first word that is neither an option of zlaunch nor the value of one."""
        with_value: set[str] = set()
        for option in self.params:
            if not getattr(option, "is_flag", False):
                with_value.update(option.opts)
        place = 0
        while place < len(words) and words[place] != "--":
            if words[place] in ("-", *_MODULE) or not words[place].startswith("-"):
                return place
            place += 2 if words[place].replace("_", "-") in with_value else 1
        return None


_MODULE = ("-m", "--module")


def trainer_args(argv: Sequence[str], python: Path | None) -> tuple[ScriptArgs, str | None]:
    """Return the Trainer arguments after `--`; if a program is named there, the ones that it has.

    Also returns what reads the ds_config of that program, as `--for` names it; None if nobody knows.
    `python` is the interpreter of the program; None for the one that runs zlaunch.
    """
    if not argv or (argv[0].startswith("-") and argv[0] != "-m"):
        return ScriptArgs.of(argv), None
    from zlaunch.cli.asked_args import asked_args  # what asks a program is rarely needed

    return asked_args(argv, python)


def _follows_module(word: str, words: list[str]) -> bool:
    places = [place for place, given in enumerate(words) if given.startswith(("-m", "--module"))]
    return bool(places) and word in words[places[-1] + 1 :]
