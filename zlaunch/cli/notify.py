"""`--notify`: tell someone that a run has ended."""

import shlex
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from typing import Final
from urllib.parse import unquote, urlsplit

from zlaunch import console
from zlaunch.cli.views.achieved import achieved
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run import members
from zlaunch.cli.ways_to_notify import BELL, DESKTOP, NOTIFIER, is_url
from zlaunch.errors import ZlaunchError
from zlaunch.process import answer_of
from zlaunch.runs.run import Run
from zlaunch.runs.store import load_run
from zlaunch.runs.why import headline

SECONDS: Final = 15.0
"""How long a webhook or a command may take."""


def notify(root: Path, ways: Sequence[str]) -> None:
    """Tell each way that a run has ended; one that fails is noted, and changes nothing else."""
    run = load_run(root)
    for how in ways:
        send = _WAYS.get(how)
        if send is None:
            send = _post(how) if is_url(how) else _call(how)
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
    _start([NOTIFIER, f"zlaunch: {run.id}", _summary(run)])


def _post(url: str) -> Callable[[Run], None]:
    def post(run: Run) -> None:
        parts, headers = urlsplit(url), {"Content-Type": "application/json"}
        if parts.username is not None:  # which urllib would take for a part of the host
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        place = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        request = urllib.request.Request(place, _json(run).encode(), headers)  # noqa: S310 - checked
        _in_time(lambda: urllib.request.urlopen(request, timeout=SECONDS).close())  # noqa: S310

    return post


def _in_time(send: Callable[[], None]) -> None:
    """Limit the time of all of it: that of `urlopen` is for each byte of a slow answer."""
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            send()
        except Exception as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if thread.is_alive():
        raise TimeoutError
    for error in errors:
        raise error


def _call(command: str) -> Callable[[Run], None]:
    return lambda run: _start(shlex.split(command), _json(run))


def _start(argv: Sequence[str], stdin: str = "") -> None:
    ended = answer_of(argv, stdin, SECONDS)
    if ended.returncode != 0:
        raise ValueError(ended.err.strip() or f"it ended with status {ended.returncode}")


_WAYS: Final = {BELL: _ring, DESKTOP: _show}
