"""Before a start: what this machine lacks for a plan, and what the other hosts lack."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from zlaunch import console
from zlaunch.errors import FATAL, Finding, Refused
from zlaunch.estimate.forecast import Forecast
from zlaunch.hosts.machine import Machine, local_names
from zlaunch.hosts.probe import free_resources
from zlaunch.hosts.ssh import HostSurveys
from zlaunch.hosts.survey import identities
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.preflight.checks import check_resources
from zlaunch.launch.preflight.remote import SharedPaths, check_remote_hosts
from zlaunch.launch.preflight.requirements import ResourceRequirements, requirements_of
from zlaunch.launch.prepare import Prepared


def run_preflight(prepared: Prepared, forecast: Forecast | None, force: bool, plan: LaunchPlan) -> None:
    """Warn of what is short; raise Refused, unless forced, if the job cannot work so."""
    demand = partial(requirements_of, plan, prepared.inputs, prepared.model, forecast)
    here = _here(prepared.hosts.here, plan, demand)
    findings = [*here, *_elsewhere(prepared.hosts, plan, demand, here)]
    wrong = [finding for finding in findings if finding.severity in FATAL and not force]
    console.say_findings(finding for finding in findings if finding not in wrong)
    if wrong:
        refusal = Refused(wrong)
        refusal.hint = "`--force` starts it all the same"
        raise refusal


def _here(
    here: Machine, plan: LaunchPlan, demand_on: Callable[[Machine], ResourceRequirements]
) -> tuple[Finding, ...]:
    named = [host.name for host in plan.topology.hosts if host.name in local_names(here.hostname)]
    demand = demand_on(replace(here, hostname=(*named, here.hostname)[0]))
    if plan.topology.over_ssh:  # the limit of a login is another one than that of this process
        demand = replace(demand, locked_bytes=0)
    return check_resources(demand, free_resources([one.path for one in demand.writes], demand.packages))


def _elsewhere(
    hosts: HostSurveys,
    plan: LaunchPlan,
    demand_on: Callable[[Machine], ResourceRequirements],
    here: Sequence[Finding],
) -> list[Finding]:
    run, rooms = hosts.inquiry.run, {name: survey.room for name, survey in hosts.others.items()}
    demands = {name: demand_on(survey.machine) for name, survey in hosts.others.items()}
    own = (Path(plan.script[0]).absolute(), *(swap.parent for swap in plan.swap_dirs))
    locks = [lock for room in rooms.values() for lock in room.left_locks]
    common = SharedPaths(
        run=run,
        own=tuple(path for path in dict.fromkeys(own) if path in hosts.inquiry.paths),
        ops=frozenset(name for op in plan.ops for name in (op.name, *op.along)),
        files=identities([*filter(None, [run]), *locks]),
    )
    return check_remote_hosts(demands, rooms, common, here)
