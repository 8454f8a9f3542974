"""The DeepSpeed release that a command of `zlaunch config` is about."""

from zlaunch.dsconfig.releases import Release, release
from zlaunch.hosts.probe import installed_stack


def asked_release(text: str | None) -> Release:
    """Return the release that the user names, else the installed one, else the newest."""
    return installed_stack().deepspeed if text is None else release(text)
