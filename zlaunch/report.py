"""The old name of `zlaunch.worker.report`, for scripts that import it; gone with the next release."""

from zlaunch.worker.report import report

__all__ = ["report"]
