"""`zlaunch runs watch`: live pages about runs, for a browser on this machine."""

import os
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, RunsDir
from zlaunch.cli.views.achieved import TOKENS, current_speed, end_of_loss
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run import steps, zero
from zlaunch.cli.views.run_comparison import comparison_data
from zlaunch.cli.views.run_page import page, page_data, page_facts
from zlaunch.errors import Unavailable, ZlaunchError
from zlaunch.rundir.layout import RUNS
from zlaunch.rundir.record import HeartbeatRecord
from zlaunch.runs.page_server import Answer, PageServer
from zlaunch.runs.report import Seen
from zlaunch.runs.run import Run, State
from zlaunch.runs.store import all_runs, find_run
from zlaunch.runs.watched import WatchedRun, WatchedRuns
from zlaunch.units import plural

MOST_RUNS = 100
"""Runs in the overview, the newest first."""

FACTS_SECONDS = 30.0
"""How often the checkpoints of a run are looked for, whose files may be many and far away."""

LAST_LOOK_SECONDS = 5.0
"""How long pages are served after the end of the last run, so that they show it."""


def watch(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="ID…", help="Runs to watch (default: all).")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, metavar="N", help="Port on 127.0.0.1 (default: a free one)."),
    ] = None,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop when all of these runs are over.")
    ] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Show live pages about runs in a browser on this machine.

    Only someone with the printed address can open them. Ctrl-C ends the pages, not the runs.
    """
    chosen = [find_run(name, runs_dir) for name in runs or ()]
    watched = WatchedRuns(lambda: chosen or [root.absolute() for root in all_runs(runs_dir)[:MOST_RUNS]])
    pages = _Pages(watched, is_one=len(chosen) == 1, directory=RUNS if runs_dir is None else runs_dir)
    num_runs = len(watched.all())
    try:
        server = PageServer(port or 0, pages)
    except OSError as error:
        reason = f"port {port} of 127.0.0.1 cannot be used: {error.strerror}"
        raise Unavailable(reason, "choose another with `--port`, or leave it out") from None
    with server:
        if as_json:
            console.data(
                to_json({"url": server.url, "port": server.server_port, "runs": num_runs}, indent=None)
            )
        else:
            console.data(server.url)
            end = "the last of them is over, or Ctrl-C" if until_end else "Ctrl-C"
            console.say(f"shows {plural(num_runs, 'run')} until {end}; the runs keep running")
            _say_tunnel(server.server_port)
        _serve(server, pages, until_end)


def _say_tunnel(port: int) -> None:
    if os.environ.get("SSH_CONNECTION"):
        host = socket.gethostname()
        console.say(f"from your machine: `ssh -N -L {port}:127.0.0.1:{port} {host}`, then open the address")


def _serve(server: PageServer, pages: "_Pages", until_end: bool) -> None:
    ended_at: float | None = None
    try:
        while ended_at is None or time.monotonic() < ended_at + LAST_LOOK_SECONDS:
            server.handle_request()
            if until_end and ended_at is None and pages.are_over():
                ended_at = time.monotonic()
    except KeyboardInterrupt:
        raise typer.Exit(128 + signal.SIGINT) from None


class _Pages:
    """Answers what the pages ask for, one request at a time."""

    def __init__(self, watched: WatchedRuns, is_one: bool, directory: Path) -> None:
        self._watched = watched
        self._is_one = is_one
        self._directory = directory
        self._lock = threading.Lock()
        self._facts: dict[Path, tuple[float, State, dict[str, str]]] = {}

    def __call__(self, parts: Sequence[str], query: Mapping[str, str]) -> Answer | None:
        """Answer `/`, `/data`, `/run/NAME/` and `/compare/NAME/NAME/` with their `data` below the token."""
        with self._lock:
            try:
                return self._answer(parts, query)
            except (ZlaunchError, OSError):  # the directory of the runs is gone
                return None

    def are_over(self) -> bool:
        """Whether no run can be seen to run any more."""
        with self._lock:
            return all(watched.run.state.is_over for watched in self._watched.all().values())

    def _answer(self, parts: Sequence[str], query: Mapping[str, str]) -> Answer | None:
        if parts in ([""], ["data"]):
            runs = self._watched.all()
            if parts == [""]:
                return Answer(page("zlaunch runs", None))
            if self._is_one:
                return self._data(next(iter(runs.values())), query)
            rows = [_run_members(name, watched.run) for name, watched in runs.items()]
            return _json({"directory": str(self._directory.absolute()), "runs": rows})
        if len(parts) == 3 and parts[0] == "run":
            return self._of_run(parts, query)
        if len(parts) == 4 and parts[0] == "compare":
            return self._compared(parts, query)
        return None

    def _compared(self, parts: Sequence[str], query: Mapping[str, str]) -> Answer | None:
        _, first, second, last = parts
        runs = self._watched.all()
        if first not in runs or second not in runs or last not in ("", "data"):
            return None
        if last:
            one, other = runs[first], runs[second]
            seen = (_seen(query.get("first", "")), _seen(query.get("second", "")))
            return _json(comparison_data(one.run, other.run, (one.history, other.history), seen))
        return Answer(page(f"{first} and {second}", None))

    def _of_run(self, parts: Sequence[str], query: Mapping[str, str]) -> Answer | None:
        _, name, last = parts
        watched = self._watched.all().get(name)
        if watched is None or last not in ("", "data"):
            return None
        if last:
            return self._data(watched, query)
        return Answer(page(name, None))

    def _data(self, watched: WatchedRun, query: Mapping[str, str]) -> Answer:
        watched.history.update()
        seen = (_seen(query.get("steps", "")), _seen(query.get("samples", "")))
        data = page_data(watched.run, watched.history, seen, self._facts_of(watched.run))
        return _json({**data, "many": not self._is_one})

    def _facts_of(self, run: Run) -> dict[str, str]:
        """Look for checkpoints now and then, and when a run has ended."""
        now = time.monotonic()
        read_at, state, facts = self._facts.get(run.root, (-FACTS_SECONDS, None, {}))
        if state is not run.state or now >= read_at + FACTS_SECONDS:
            facts = page_facts(run)
            self._facts[run.root] = (now, run.state, facts)
        return facts


def _json(value: object) -> Answer:
    return Answer(to_json(value, indent=None), "application/json")


def _seen(text: str) -> Seen:
    """Read what a page has: how often its lines were joined, and how many they are."""
    epoch, _, count = text.partition(".")
    if epoch.isdecimal() and count.isdecimal() and len(text) < 20:
        return int(epoch), int(count)
    return 0, 0


def _run_members(name: str, run: Run) -> dict[str, object]:
    first, metrics = run.heartbeats.get(0, HeartbeatRecord()), run.last_metrics
    left = None if run.state.is_over else metrics.get("seconds_left")
    speed = current_speed(run)
    if speed is not None and speed.unit != TOKENS:
        speed = None
    return {
        "id": run.id,
        "name": quote(name, safe=""),
        "state": run.state,
        "cause": run.cause,
        "zero": zero(run),
        "ranks": run.world_size,
        "progress": steps(run),
        "step": run.step,
        "loss": end_of_loss(first)[0],
        "speed": None if speed is None else {**asdict(speed), "text": speed.text},
        "started": run.started,
        "seconds": run.seconds,
        "left": left,
    }
