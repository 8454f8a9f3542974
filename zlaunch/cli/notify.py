"""`--notify`: tell someone that a run has ended."""

import re
import shlex
import shutil
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from zlaunch import console
from zlaunch.cli.views.achieved import achieved
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run import members
from zlaunch.errors import WrongUsage, ZlaunchError
from zlaunch.process import answer_of
from zlaunch.runs.run import Run
from zlaunch.runs.store import load_run
from zlaunch.runs.why import headline

SECONDS: Final = 15.0
"""How long a webhook or a command may take."""
_DESKTOP: Final = "notify-send"


def check_notify(how: str) -> str:
    """Return a way to notify that can work; raise WrongUsage for another."""
    if how == "desktop" and shutil.which(_DESKTOP) is None:
        raise WrongUsage(f"`--notify desktop` needs `{_DESKTOP}`, which is not installed", "`--notify bell`")
    if how in _WAYS:
        return how
    if _is_url(how):
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


def _is_url(how: str) -> bool:
    return how.startswith(("http://", "https://"))


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", url)
    except ValueError:
        is_whole = False
    if not is_whole:
        raise WrongUsage(f"`--notify {url}` is no URL", "write `https://HOST/PATH`")


def notify(root: Path, ways: Sequence[str]) -> None:
    """Tell each way that a run has ended; one that fails is noted, and changes nothing else."""
    run = load_run(root)
    for how in ways:
        send = _WAYS.get(how)
        if send is None:
            send = _post(how) if _is_url(how) else _call(how)
        try:
            send(run)
        except TimeoutError:
            console.say(*console.paragraph(f"`--notify {how}` failed: it took longer than {SECONDS:.0f} s"))
        except (OSError, ValueError, HTTPException, ZlaunchError) as error:
            console.say(*console.paragraph(f"`--notify {how}` failed: {error}"))


def _summary(run: Run) -> str:
    text = headline(run)
    if run.cause is not None:
        return f"{text}: {run.cause}"
    return ": ".join(filter(None, (text, achieved(run))))


def _json(run: Run) -> str:
    """Describe a run as `zlaunch train --json` does, with the sentence that is shown."""
    return to_json({**members(run), "verdict": run.verdict, "text": f"{run.id} {_summary(run)}"}, indent=None)


def _ring(_run: Run) -> None:
    console.ring()


def _show(run: Run) -> None:
    _start([_DESKTOP, f"zlaunch: {run.id}", _summary(run)])


def _post(url: str) -> Callable[[Run], None]:
    def post(run: Run) -> None:
        parts, headers = urlsplit(url), {"Content-Type": "application/json"}
        if parts.username is not None:  # which urllib would take for a part of the host
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        place = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        request = urllib.request.Request(place, _json(run).encode(), headers)  # noqa: S310 - checked
        urllib.request.urlopen(request, timeout=SECONDS).close()  # noqa: S310

    return post


def _call(command: str) -> Callable[[Run], None]:
    return lambda run: _start(shlex.split(command), _json(run))


def _start(argv: Sequence[str], stdin: str = "") -> None:
    ended = answer_of(argv, stdin, SECONDS)
    if ended.returncode != 0:
        raise ValueError(ended.err.strip() or f"it ended with status {ended.returncode}")


_WAYS: Final = {"bell": _ring, "desktop": _show}
