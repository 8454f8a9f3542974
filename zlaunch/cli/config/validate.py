"""`zlaunch config validate`: every mistake in a ds_config, before anything starts."""

from pathlib import Path
from typing import Annotated

import typer


def validate(files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="ds_config files.")]) -> None:
    """Check ds_config files and name every mistake with its place."""
    from zlaunch import console
    from zlaunch.errors import ExitStatus, Severity, ZlaunchError
    from zlaunch.units import plural
    from zlaunch.validation import findings_in

    status = ExitStatus.OK
    for file in files:
        try:
            findings = findings_in(file)
        except ZlaunchError as error:
            console.show_error(error)
            status = max(status, error.status)
            continue
        serious = [finding for finding in findings if finding.severity is not Severity.ADVICE]
        for finding in findings:
            console.show_finding(finding)
        console.say(f"{file}: {plural(len(serious), 'problem')}" if serious else f"{file}: valid")
        status = max(status, ExitStatus.REFUSED if serious else ExitStatus.OK)
    raise typer.Exit(status)
