"""The values of `--notify`."""

import re
import shlex
import shutil
from typing import Final
from urllib.parse import urlsplit

from zlaunch.errors import WrongUsage

BELL: Final = "bell"
DESKTOP: Final = "desktop"
NOTIFIER: Final = "notify-send"
"""The program that shows a message on a desktop."""


def check_notify(how: str) -> str:
    """Return a way to notify that can work; raise WrongUsage for another."""
    if how == DESKTOP and shutil.which(NOTIFIER) is None:
        raise WrongUsage(f"`--notify desktop` needs `{NOTIFIER}`, which is not installed", "`--notify bell`")
    if how in (BELL, DESKTOP):
        return how
    if is_url(how):
        _check_url(how)
        return how
    try:
        program = next(iter(shlex.split(how)), "")
    except ValueError as error:
        raise WrongUsage(f"`--notify {how}`: {error}", "quote the command") from None
    if shutil.which(program) is None:
        raise WrongUsage(
            f"`--notify {how}`: there is no command `{program}`",
            "write `bell`, `desktop`, a URL, or a command; for more than one, `sh -c '…'`",
        )
    return how


def is_url(how: str) -> bool:
    """Whether it is a webhook."""
    return how.startswith(("http://", "https://"))


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:
        is_whole = False
    if not is_whole:
        raise WrongUsage(f"`--notify {url}` is no URL", "write `https://HOST/PATH`")
