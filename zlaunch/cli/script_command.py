"""A command line that ends in another program's: `[SCRIPT] [OPTIONS] [-- SCRIPT ARGS]`."""

from typing import Any

from typer.core import TyperCommand

from zlaunch.errors import WrongUsage


class ScriptCommand(TyperCommand):
    """Takes its own options wherever they stand before `--`; what it does not know goes to the script."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Cut the command line at `--`, so that what follows is never parsed."""
        own, after = args, []
        if "--" in args:
            cut = args.index("--")
            own, after = args[:cut], args[cut + 1 :]
        result: list[str] = super().parse_args(ctx, [*own])
        script, module = ctx.params.get("script"), ctx.params.get("module")
        if script is not None and module is not None:
            if not _follows_module(str(script), own):
                raise WrongUsage(
                    f"`{script}` stands beside `-m {module}`",
                    "name one program; the arguments of a module go after it",
                )
            ctx.args, ctx.params["script"], script = [script, *ctx.args], None, None
        if script is not None and str(script).startswith("-"):
            raise WrongUsage(
                f"zlaunch train has no option `{script}`",
                "see `zlaunch train --help`; the arguments of a script go after it, or after `--`",
            )
        ctx.args = [*ctx.args, *after]
        return result


def _follows_module(word: str, words: list[str]) -> bool:
    """Whether a word stands behind a module's name, and so is for the module."""
    places = [place for place, one in enumerate(words) if one.startswith(("-m", "--module"))]
    return word in words[places[-1] + 1 :] if places else False
