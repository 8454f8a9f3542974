"""Commands about a job, which read `zlaunch.yaml` too."""

from pathlib import Path
from typing import Any

from zlaunch import console
from zlaunch.cli.defaults import errors_of
from zlaunch.cli.option_table import PanelCommand
from zlaunch.cli.passthrough import ScriptCommand
from zlaunch.job.args import ScriptArgs

NAMES = ("zlaunch.yaml", "zlaunch.yml")
"""Files of this name in the current directory are found."""

NO_FILE = "none"
"""The value of `--job` with which no file is read."""

_TOLD, _PLACES = "zlaunch.job_file", "zlaunch.job_file.args"


class JobCommand(PanelCommand, ScriptCommand):
    """Puts the words of `zlaunch.yaml` before those of the user, and says so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the file, if there is one, and parse both together."""
        args = self.with_help(ctx, args)
        cut = [*args, "--"].index("--")
        before, after = args[:cut], args[cut + 1 :]
        if ctx.resilient_parsing or "--help" in before:
            return super().parse_args(ctx, args)
        with errors_of(ctx):
            given, rest, _ = self.make_parser(ctx).parse_args(args=[*before])
        file = find_job_file()
        if (name := given.get("job")) is not None:
            file = Path(name or NO_FILE)  # an empty name is refused like that of any option
        if file is None or str(file) == NO_FILE:
            return super().parse_args(ctx, args)
        from zlaunch.cli import job_file  # what reads YAML is needed for such a file alone

        line = job_file.typed_line(self, given, [*rest, *after])
        words = job_file.translate(job_file.read_job_file(file), line, self, ctx)
        if words.about_model:
            console.say(
                *console.paragraph(
                    f"{file}: left out {', '.join(words.about_model)}, chosen for another model"
                )
            )
        if words.used:
            console.say(*console.paragraph(f"using {file}: {', '.join(words.used)}"))
        elif not words.about_model:
            console.say(*console.paragraph(f"{file}: none of its options apply to this command"))
        together = [*words.options, *before]
        if words.args or after:
            together += ["--", *words.args, *after]
        asked = ("zlaunch", str(self.name), "--job", NO_FILE, *together)
        ctx.meta[_TOLD] = {"places": words.places, "asked": asked}
        ctx.meta[_PLACES] = words.arg_places
        return super().parse_args(ctx, together)


def find_job_file() -> Path | None:
    """Find the file of the current directory; a link to nothing counts, so that its options are missed."""
    return next((file for file in map(Path, NAMES) if file.is_file() or _leads_nowhere(file)), None)


def _leads_nowhere(file: Path) -> bool:
    return file.is_symlink() and not file.exists()


def told_by_file(context: Any) -> dict[str, Any]:
    """Return what a JobSpec keeps of the file, as its members."""
    members: dict[str, Any] = context.meta.get(_TOLD, {})
    return members


def typed_args(context: Any) -> ScriptArgs:
    """Return the words for the script, of the file and of the command line."""
    return ScriptArgs(tuple(context.args), context.meta.get(_PLACES, {}))
