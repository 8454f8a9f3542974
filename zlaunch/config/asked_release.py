"""The DeepSpeed release that a command of `zlaunch config` is about."""

from zlaunch.dsconfig.releases import Release, release
from zlaunch.hosts.machine.interpreter import installed_stack
from zlaunch.job.stack import SoftwareStack


def asked_release(text: str | None, stack: SoftwareStack | None = None) -> Release:
    """Return the release that the user names, else the installed one, else the newest.

    `stack` is that of another Python than zlaunch's own.
    """
    if text is not None:
        return release(text)
    return (stack or installed_stack()).deepspeed
