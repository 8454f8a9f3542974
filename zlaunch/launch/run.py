"""Launch a job. If its members are several zlaunch processes, one leads; the others start what it orders."""

import os
import tempfile
from collections.abc import Callable
from functools import partial

from zlaunch.diagnosis.outcome import Outcome
from zlaunch.diagnosis.render import verdict_lines
from zlaunch.errors import ZlaunchError
from zlaunch.hosts.cluster.rendezvous import Ending, Rendezvous, Start
from zlaunch.hosts.cluster.started_by import without_cluster_variables
from zlaunch.launch.attempts import run_attempts
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.node_start import NODE_PROGRAM
from zlaunch.launch.ops_on_hosts import build_as_member
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.preflight import Preflight
from zlaunch.launch.reporter import Reporter
from zlaunch.launch.rundir_writer import file_sha256
from zlaunch.process import Foreground, heed_signals, ours, signals_told
from zlaunch.worker.grace import LEADER_SECONDS
from zlaunch.worker.node import NUMBER, TOKEN

_COLUMNS = 80


def run(facts: JobFacts, options: LaunchOptions, reporter: Reporter) -> int:
    """Check a job, launch it or take part in it, and return the exit status of the last attempt.

    Raises a ZlaunchError if the job cannot work or cannot be started.
    """
    preflight, rendezvous = Preflight(options, reporter), facts.surroundings.rendezvous
    try:
        facts = preflight.complete(facts)
        if rendezvous is None:
            return run_attempts(facts, preflight, reporter).exit_status
        return _take_part(facts, preflight, reporter, rendezvous)
    except ZlaunchError as error:
        if rendezvous is not None:
            rendezvous.end_with(error)
        raise


def _take_part(facts: JobFacts, preflight: Preflight, reporter: Reporter, rendezvous: Rendezvous) -> int:
    """Compare the plans of all members, run the job, and return its exit status.

    Raises MemberFailed if another member has another plan, cannot take part, or is lost.
    """
    plan = preflight.plan(facts)
    rendezvous.compare_plans(_compared_parts(plan, rendezvous))
    if rendezvous.leads:
        outcome = run_attempts(facts, preflight, reporter)
        rendezvous.finish(Ending(outcome.exit_status, tuple(_outcome_lines(outcome))))
        return outcome.exit_status
    build_as_member(plan, rendezvous.member.number, reporter)
    rendezvous.report_ready()
    ending = _follow(rendezvous, reporter.note)
    reporter.note("\n".join(ending.lines))
    return ending.status


def _compared_parts(plan: LaunchPlan, rendezvous: Rendezvous) -> dict[str, object]:
    """List what must be exactly the same everywhere, by its name in messages; `checks` judge versions."""
    script = plan.facts.job.script
    return {
        "hosts": rendezvous.member.hosts,
        "script": f"{plan.module or script.name} {file_sha256(script)}",
        "arguments of the script": list(plan.facts.job.args.words),
        "ds_config": plan.values.config(),
        "launcher": plan.launcher,
    }


def _outcome_lines(outcome: Outcome) -> list[str]:
    if outcome.verdict is None:
        return [outcome.how]
    return verdict_lines(outcome.verdict, outcome.how, _COLUMNS)


def _follow(rendezvous: Rendezvous, note: Callable[[str], None]) -> Ending:
    """Start the node program for every attempt, and return how the job ended.

    Signals are left to the leader, who knows what they mean for the job. Raises MemberFailed if the leader is
    gone.
    """
    last: Start | None = None
    with signals_told(rendezvous.forward):
        while True:
            word = rendezvous.next_order(last)
            if isinstance(word, Ending):
                return word
            member, where = rendezvous.member, f"{rendezvous.member.kind} 0 ({rendezvous.names[0]})"
            own = f"{member.kind} {member.number} of {member.count}"
            note(f"{own}: the run is {word.run_directory} of {where}")
            _carry_out(rendezvous, word)
            last = word


def _carry_out(rendezvous: Rendezvous, start: Start) -> None:
    environment = {
        **without_cluster_variables(os.environ),
        TOKEN: rendezvous.key(start.token),
        NUMBER: str(rendezvous.member.number),
    }
    argv = ours(NODE_PROGRAM, rendezvous.member.address, str(start.port))
    with tempfile.TemporaryFile() as log:
        node = Foreground(argv, environment, log, LEADER_SECONDS, tell=rendezvous.forward, shielded=True)
        node.save_first = partial(_forward, rendezvous)
        node.wait(rendezvous.keep)
    heed_signals()


def _forward(rendezvous: Rendezvous, number: int) -> bool:
    rendezvous.forward(number)
    return True
