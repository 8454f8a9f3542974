"""What `--debug` needs on the machine of the rank."""

from zlaunch.errors import Unavailable
from zlaunch.hosts.machine import HostSurvey
from zlaunch.launch.plan import Listener

PACKAGE = "debugpy"


def check_debugger(listener: Listener, survey: HostSurvey, is_remote: bool) -> None:
    """Raise Unavailable if debugpy is not installed there, or its port is taken."""
    if PACKAGE in survey.room.missing:
        where = f"on {listener.host}" if is_remote else "here"
        raise Unavailable(
            f"`--debug` needs {PACKAGE}, which is not installed {where}", f"`pip install {PACKAGE}`"
        )
    if survey.debug_error is not None:
        where = f"on {listener.host}" if is_remote else "there"
        other = survey.other_debug_port
        raise Unavailable(
            f"`--debug {listener.rank}:{listener.port}`: cannot listen {where}: {survey.debug_error}",
            f"write `--debug {listener.rank}:{other}`" if other else None,
        )
