"""The page about a run: one HTML file with style, script and data, which loads nothing from elsewhere."""

import base64
import hashlib
import html
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from zlaunch.cli.views.achieved import WINDOW, current_speed, loss_fall
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run_facts import facts
from zlaunch.diagnosis.speed import PART_NAMES
from zlaunch.diagnosis.stall import stall_lines
from zlaunch.rundir import phases
from zlaunch.rundir.record import HeartbeatRecord
from zlaunch.runs.history import RunHistory
from zlaunch.runs.report import Seen, report_of
from zlaunch.runs.run import Run
from zlaunch.runs.step_time import PASSES

MARK = "<!-- zlaunch run page -->"
"""In the beginning of every such page."""

_TEMPLATE = Path(__file__).with_name("run_page.html")
_SCRIPT = Path(__file__).with_name("run_page.js")
_COLOURED: Final = (
    *(phases.BACKWARD, phases.FORWARD, phases.IMPORTING, phases.STEPPING, phases.INITIALIZING),
    *(phases.STARTING, phases.TRAINING, phases.SAVING, phases.EVALUATING, phases.LOADING),
    *(phases.BUILDING, phases.RESUMING, phases.COMMUNICATION, phases.DATA, phases.SWAPPING, phases.COPYING),
)
PHASE_COLOURS: Final = {phase: number for number, phase in enumerate(_COLOURED)} | {PASSES: 0}
"""Each phase keeps its colour while a page is live; those without one are grey."""
PHASE_NAMES: Final = {**PART_NAMES, phases.STARTING: "the script's other code"}

_PLACE = re.compile(r"@([A-Z]+)@")
_STALL_COLUMNS = 100
_ELSEWHERE = ("run", "state", "step", "differs", "problem")
"""Facts that other parts of the page show."""


def page_data(
    run: Run,
    history: RunHistory,
    seen: tuple[Seen, Seen] = ((0, 0), (0, 0)),
    known: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Describe a run for its page; of its history only what a page has not `seen`.

    `known`: its `page_facts`, if they were read before.
    """
    stall, speed = run.stall, current_speed(run)
    loss = loss_fall(run.heartbeats.get(0, HeartbeatRecord()))
    rows = page_facts(run) if known is None else known
    return {
        **report_of(run, history, seen),
        "loss": None if loss is None else asdict(loss),
        "speed": None if speed is None else {**asdict(speed), "text": speed.text},
        "window": WINDOW,
        "phase_colours": PHASE_COLOURS,
        "phase_names": PHASE_NAMES,
        "stall": None if stall is None else stall_lines(stall, None, _STALL_COLUMNS),
        "facts": [("run directory", str(run.root.absolute())), *rows.items()],
    }


def page_facts(run: Run) -> dict[str, str]:
    """List label and text of what other parts of the page do not show; this looks at checkpoints."""
    return {label: text for label, text in facts(run) if label not in _ELSEWHERE}


def page(title: str, data: Mapping[str, object] | None) -> str:
    """Write the page with its data; without data, it is live and asks for them."""
    script = _SCRIPT.read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    source = "'none'" if data is not None else "'self'"
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; connect-src {source}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    contents = {
        "LIVE": "" if data is not None else "data-live",
        "POLICY": policy,
        "TITLE": html.escape(title),
        "SCRIPT": script,
        "DATA": "null" if data is None else _in_script(to_json(data, indent=None)),
    }
    return _PLACE.sub(lambda place: contents[place[1]], _TEMPLATE.read_text("utf-8"))


def _in_script(text: str) -> str:
    """Write JSON so that nothing in it ends the element that it is in."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
