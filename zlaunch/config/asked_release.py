"""The DeepSpeed release that a command of `zlaunch config` is about."""

from collections.abc import Mapping

from zlaunch import console
from zlaunch.dsconfig.releases import Release, last_patch, newer_than_known, release
from zlaunch.hosts.machine.interpreter import installed_stack
from zlaunch.job.stack import SoftwareStack


def asked_release(text: str | None, stack: SoftwareStack | None = None) -> Release:
    """Return the release that the user names, else the installed one, else the newest.

    `stack` is that of another Python than zlaunch's own.
    """
    if text is not None:
        if (remark := newer_than_known(text)) is not None:
            console.say(remark)
        return release(text)
    return (stack or installed_stack()).deepspeed


def packages_of(text: str | None, stack: SoftwareStack) -> Mapping[str, str | None]:
    """Return the installed packages, with the DeepSpeed that the user names; `0.18` means its last patch."""
    if text is None:
        return stack.versions
    named = text.strip().removeprefix("v")
    if named.count(".") == 1:
        named = last_patch(named)
    return {**stack.versions, "deepspeed": named}
