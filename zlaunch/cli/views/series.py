"""Show several jobs that run one after the other in one line that changes."""

from collections.abc import Sequence

from zlaunch.cli.views.launch import LaunchView
from zlaunch.launch.plan import LaunchPlan


class SeriesView(LaunchView):
    """Says what the jobs have in common once, and nothing of the plan of each."""

    def __init__(self) -> None:
        """Nothing has run yet."""
        super().__init__()
        self._title = ""
        self._shown: set[str] = set()

    def show_title(self, title: str) -> None:
        """Begin with a job."""
        self._title = title
        self._line.show(title)

    def note(self, text: str, label: str | None = None) -> None:
        """Say each sentence once for all jobs."""
        if text not in self._shown:
            self._shown.add(text)
            super().note(text, label)

    def starting(self, plan: LaunchPlan, shown_ranks: Sequence[int]) -> None:
        """Show no plan."""

    def busy(self, what: str, elapsed: str) -> None:
        """Show what is done before the ranks start."""
        self._line.show(self._title, f"({what} {elapsed})")

    def differed(self, differences: Sequence[str]) -> None:
        """Say nothing: zlaunch chose the ds_configs."""

    def done(self) -> None:
        """Remove the line."""
        self._line.clear()
