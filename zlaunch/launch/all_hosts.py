"""Preflight: compare what a plan needs with what is free, here and on the other hosts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import which

from zlaunch.checks.remote import SharedPaths, check_remote_hosts
from zlaunch.checks.resources import check_resources
from zlaunch.checks.same import check_same
from zlaunch.errors import Finding, Unavailable
from zlaunch.files import identities, is_safe_word
from zlaunch.hosts.agent.survey import HostSurvey
from zlaunch.hosts.cluster.topology import Reach
from zlaunch.hosts.machine.probe import free_resources
from zlaunch.hosts.machine.resources import Machine, local_names
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.requirements import ResourceRequirements, requirements_of


def check_all_hosts(plan: LaunchPlan) -> list[Finding]:
    """Find everything that is short, on this machine first.

    Raises Unavailable if DeepSpeed's runner could not start ranks on other hosts.
    """
    if plan.topology.spans_hosts and not plan.on_each_host:
        _check_runner(plan)
    facts, needs_on = plan.facts, partial(requirements_of, plan)
    here = _check_this_machine(facts.here.machine, plan, needs_on, facts.here.room.missing)
    same = check_same(_to_compare(plan), facts.here.hashes)
    return [*here, *same, *_check_other_hosts(plan, needs_on, here)]


def _to_compare(plan: LaunchPlan) -> dict[str, HostSurvey]:
    """The hosts of the job; this machine first, if it is one of them. Members compare their own plans."""
    facts = plan.facts
    if plan.topology.reach is Reach.JOINED:
        return {"this machine": facts.here}
    here = {host.name: facts.here for host in plan.topology.hosts if host.name not in facts.others}
    return {**here, **facts.others} or {"this machine": facts.here}


def _check_runner(plan: LaunchPlan) -> None:
    """Raise Unavailable if DeepSpeed's runner could not start the ranks."""
    assert plan.backend.starter is not None
    starter, package = plan.backend.starter
    if which(starter, path=plan.facts.environ.get("PATH")) is None:
        raise Unavailable(
            f"DeepSpeed's launcher starts the ranks of a hostfile with {starter}, which is not installed",
            f"use `--launcher torchrun`, or install {starter} (Debian: `apt-get install {package}`)",
        )
    if odd := [word for word in plan.programs if not is_safe_word(word)]:
        raise Unavailable(
            f"DeepSpeed's launcher does not quote `{odd[0]}`, so other hosts could not start it",
            "use `--launcher torchrun`, or an environment in a directory without spaces and quotes",
        )


def _check_this_machine(
    here: Machine,
    plan: LaunchPlan,
    needs_on: Callable[[Machine], ResourceRequirements],
    missing: frozenset[str],
) -> tuple[Finding, ...]:
    named = [host.name for host in plan.topology.hosts if host.name in local_names(here.hostname)]
    needs = needs_on(replace(here, hostname=(*named, here.hostname)[0]))
    if plan.topology.spans_hosts:  # ranks are started by a login, whose limit may differ from ours
        needs = replace(needs, locked_bytes=0)
    free = free_resources([one.path for one in needs.writes])
    return check_resources(needs, replace(free, missing=missing))


def _check_other_hosts(
    plan: LaunchPlan,
    needs_on: Callable[[Machine], ResourceRequirements],
    here: Sequence[Finding],
) -> list[Finding]:
    # With a launcher on each host, hosts that do not share the run directory send their part of it.
    others, request = plan.facts.others, plan.facts.request
    run = None if plan.on_each_host else request.run
    rooms = {name: survey.room for name, survey in others.items()}
    needs = {name: needs_on(survey.machine) for name, survey in others.items()}
    own = (Path(plan.script[0]).absolute(), *(swap.parent for swap in plan.swap_dirs))
    locks = [lock for room in rooms.values() for lock in room.left_locks]
    shared = SharedPaths(
        run=run,
        own=tuple(path for path in dict.fromkeys(own) if path in request.paths),
        ops=frozenset(name for op in plan.ops for name in (op.name, *op.along)),
        files=identities([*filter(None, [run]), *locks]),
    )
    return check_remote_hosts(needs, rooms, shared, here)
