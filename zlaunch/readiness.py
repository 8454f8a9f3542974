"""Before a start: what this machine lacks for a plan."""

import socket
import sys

from zlaunch import console
from zlaunch.demand import demand_of
from zlaunch.errors import FATAL, Refused
from zlaunch.memory.forecast import Forecast
from zlaunch.plan import LaunchPlan
from zlaunch.preflight import preflight
from zlaunch.prepare import Prepared
from zlaunch.probe import look_around


def look_first(prepared: Prepared, forecast: Forecast | None, force: bool, plan: LaunchPlan) -> None:
    """Warn of what is short; raise Refused, unless forced, if the job cannot work so."""
    demand = demand_of(plan, prepared.inputs, prepared.model, forecast, socket.gethostname())
    room = look_around([writing.path for writing in demand.writes], demand.packages)
    findings = preflight(demand, room)
    wrong = [finding for finding in findings if finding.severity in FATAL and not force]
    for finding in findings:
        for line in console.finding_lines(finding, sys.stderr) if finding not in wrong else ():
            console.say(line)
    if wrong:
        refusal = Refused(wrong)
        refusal.hint = "`--force` starts it all the same"
        raise refusal
