"""Shows what precedes a start on the terminal, or a dry run."""

from collections.abc import Sequence

from zlaunch import console
from zlaunch.cli.views.launch_plan import plan_lines
from zlaunch.errors import Finding
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.reporter import PlanReporter

_LABEL_WIDTHS = {"model": 9, "stage": 6, "resume": 6}
"""Label of a note → the width of the labels in the summary below it."""


class PlanView(PlanReporter):
    """Prints plans to stdout, everything else to stderr."""

    def __init__(self, *, as_json: bool = False, full: bool = False) -> None:
        """Prepare to show a plan: one JSON object with `as_json`, whatever its length with `full`."""
        self._as_json, self._full = as_json, full
        self._line = console.ProgressLine()

    def _say(self, *lines: str) -> None:
        self._line.clear()
        console.say(*lines)

    def note(self, text: str, label: str | None = None) -> None:
        if label is None:
            self._say(text)
        else:
            self._say(*console.table([(f"{label:<{_LABEL_WIDTHS[label]}}", text)], indent=""))

    def busy(self, what: str, elapsed: str) -> None:
        self._line.show(what, elapsed)

    def warn(self, findings: Sequence[Finding]) -> None:
        console.say_findings(findings)

    def dry_run(self, plan: LaunchPlan, unchecked: str | None) -> None:
        if self._as_json:
            from zlaunch.cli.views.launch_json import plan_json  # which needs the record of a plan

            console.data(plan_json(plan))
            return
        memory: list[str] = []
        if (estimate := plan.facts.estimate) is not None:
            from zlaunch.cli.views.estimate_text import start_lines  # often nothing is estimated

            memory += start_lines(estimate)
        elif unchecked is not None:
            memory += ["", *console.paragraph(f"memory is not checked: {unchecked}")]
        lines = [*plan_lines(plan, complete=True), *memory]
        if self._full or console.has_room(lines):
            console.data(*lines)
            return
        short = [*plan_lines(plan, complete=False), *memory]
        console.data(*short)
        about = "ds_config and arguments with the source of each value, command, environment, ranks"
        console.say("", *console.paragraph(f"`--full` adds {len(lines) - len(short)} lines: {about}"))
