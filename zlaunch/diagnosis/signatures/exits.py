"""Stalls, signals and exit statuses without a more specific cause."""

import math
import re
import signal

from zlaunch.diagnosis.advice import named_in
from zlaunch.diagnosis.case import Case, Reading, signal_name
from zlaunch.diagnosis.evidence import Evidence, SaveEvidence
from zlaunch.diagnosis.log_text import MOST_OF_A_LOG, clip, last_line, matching_line
from zlaunch.diagnosis.root_cause import RankRole, precedes_stop, role_of, roles
from zlaunch.diagnosis.signature import signature
from zlaunch.diagnosis.signatures.memory import memory_left
from zlaunch.diagnosis.stacks import last_stack, place
from zlaunch.diagnosis.stall import StallEvidence
from zlaunch.diagnosis.uneven import unevenness
from zlaunch.process import TICK_SECONDS
from zlaunch.units import duration, plural
from zlaunch.worker.lost import SHOW_OOM_KILLS

_CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS}
)
_NONE_FAILED = frozenset({RankRole.STOPPED, RankRole.DRAGGED, RankRole.CUT_OFF, RankRole.NONE})
"""Roles of ranks that did not fail by themselves, and are not lost."""


@signature("stalled", "no progress for longer than `--stall-after`, and no rank that failed by itself")
def stalled(case: Case) -> Reading | None:
    """No rank made progress any more, and none failed."""
    stall = case.evidence.stall
    if stall is None or not stall.ended_job or not {*roles(case.evidence).values()} <= _NONE_FAILED:
        return None
    odd = [rank for rank in case.evidence.ranks if rank.rank in stall.odd]
    cause = f"no progress for {duration(stall.seconds)} after step {stall.step}"
    if (uneven := unevenness(case.evidence)) is not None:
        return Reading(f"{cause}: {uneven.cause}", _places(stall), (uneven.advice,), rank=uneven.rank)
    if not odd:
        return Reading(cause, _places(stall), is_local=False)
    cause += f"; rank {', '.join(str(rank.rank) for rank in odd)} differs from the others"
    advice = []
    if case.evidence.job.stage == 3:  # whose layers are gathered by all ranks together
        advice.append(
            "at stage 3, have all ranks run the same layers in the same order, and load and generate together"
        )
    return Reading(cause, _places(stall), advice, rank=odd[0])


def _places(stall: StallEvidence) -> tuple[str, ...]:
    shown = [number for number in stall.odd if number in stall.where] or sorted(stall.where)
    others = sorted(set(stall.where) - set(shown))[:1]
    return tuple(f"rank {number}: {clip(stall.where[number], 100)}" for number in (*shown[:2], *others))


@signature("preempted", "a request to save and stop, and a complete checkpoint of the step that it named")
def preempted(case: Case) -> Reading | None:
    """A scheduler, a time limit or a user asked the job to save and stop, and it can be resumed later."""
    save = case.evidence.save
    if save is None or not case.evidence.is_preempted:
        return None
    cause = f"{save.by} asked to save and stop: step {save.step} is saved in {save.checkpoint}"
    if not save.is_no_progress:
        return Reading(cause, is_local=False)
    cause += f", but the run resumed from step {save.resumed_step} and saved nothing newer"
    return Reading(
        cause,
        ("its exit status is not that of a saved run: a scheduler would restart it forever",),
        ("check that the script loads the checkpoint at the start, or give each start more time",),
        is_local=False,
    )


def _not_saved(save: SaveEvidence) -> str:
    if save.step is None:
        return f"{save.by} stopped the job: {save.why_not}"
    late = f"there was no complete checkpoint of step {save.step} after {duration(save.within)}"
    return f"{save.by} asked to save and stop, and {late}"


@signature("stopped", "zlaunch received a signal, and no rank had failed by itself")
def stopped(case: Case) -> Reading | None:
    """A user or the system stopped the job."""
    number = case.evidence.stopped_by
    if number is None or _failed_before_stop(case):
        return None
    step = max((rank.step for rank in case.evidence.ranks), default=0)
    who = "a user" if number == signal.SIGINT else "a user or the system"
    cause, advice, save = f"{who} stopped the job with {signal_name(number)}", [], case.evidence.save
    if case.evidence.command is not None:
        cause = f"`{case.evidence.command}` ended the job"
    elif save is not None and number != signal.SIGINT:
        cause = _not_saved(save)
    if save is not None:
        advice.append(save.advice)
    facts = []
    if step:
        facts.append(f"at step {step}")
    if (stall := case.evidence.stall) is not None:
        facts += [f"no progress for {duration(stall.seconds)} before", *_places(stall)]
    return Reading(cause, facts[:3], advice, is_local=False)


def _failed_before_stop(case: Case) -> bool:
    if case.rank is None:
        return case.evidence.launcher_returncode < 0 and _was_ending_before_stop(case.evidence)
    role = role_of(case.rank, case.evidence)
    if role is RankRole.LOST:
        return _was_ending_before_stop(case.evidence)
    return role is RankRole.FAILED or (role is RankRole.DRAGGED and precedes_stop(case.rank, case.evidence))


def _was_ending_before_stop(evidence: Evidence) -> bool:
    """Whether ranks on the same host had been told to stop for a while when somebody stopped the job."""
    since = [rank.stopped_at for rank in evidence.ranks if rank.host == evidence.stopped_on]
    first = min((moment for moment in since if moment is not None), default=math.inf)
    return first < (evidence.stopped_at or 0.0) - TICK_SECONDS


@signature("stumbled", "every rank was `exiting`, none raised an exception, and a signal ended one")
def stumbled(case: Case) -> Reading | None:
    """The script finished, then Python or a library crashed while exiting."""
    ended_well = all(rank.ran_to_its_end for rank in case.evidence.ranks)
    is_ended = case.evidence.is_diverged  # by zlaunch, which took a moment to see it
    if case.signal is None or case.rank is None or not ended_well or is_ended:
        return None
    cause = f"the job finished training, then {case.who} died with {signal_name(case.signal)} while exiting"
    return Reading(cause, (_top_of_stack(case), f"at step {case.rank.step}"))


@signature("crashed", "SIGSEGV, SIGABRT, SIGBUS, SIGILL or SIGFPE, with the stack that faulthandler wrote")
def crashed(case: Case) -> Reading | None:
    """Native code crashed: an op, a library, a driver."""
    number = case.signal
    if number is None or number not in _CRASHES or case.rank is None:
        return None
    last_words = matching_line(
        r"terminate called after|[Aa]ssertion .{1,200} failed|CHECK failed|\*\*\* Error in",
        case.words,
    )
    fault = matching_line("Fatal Python error", f"{case.rank.stacks}\n{case.rank.log[-8192:]}")
    facts = (_top_of_stack(case), last_words or fault, named_in(case.words, r"what\(\):\s+([^\n]{1,200})"))
    advice = []
    if number == signal.SIGBUS:  # what filled /dev/shm may have left it with its process
        advice.append(
            "watch /dev/shm while it trains: SIGBUS mostly means that it was full "
            "(`--shm-size` of the container), or that a mapped file was cut off"
        )
    return Reading(f"{case.who} crashed with {signal_name(number)}", facts, advice)


def _top_of_stack(case: Case) -> str | None:
    if case.rank is None:
        return None
    for text in (case.rank.stacks, case.log[-MOST_OF_A_LOG:]):
        _, mark, after = text.rpartition("Fatal Python error")
        current = after.partition("Current thread")[2] or after
        if mark and (stack := last_stack(current.partition("\nThread ")[0])):
            return place(stack)
    return None


@signature("killed", "SIGKILL, and no out-of-memory kill that the kernel counted")
def killed(case: Case) -> Reading | None:
    """A rank was killed from outside; the sender of the signal is unknown."""
    if case.signal != signal.SIGKILL:
        return None
    cause = f"{case.who} was killed from outside (SIGKILL); by whom is unknown"
    own, of_host = case.oom_kills
    advice = []
    kills = "the kernel's `oom_kill` counters could not be read"
    if own == 0 or of_host == 0:
        kills = "the kernel counted no out-of-memory kill of this job"
    elif of_host:
        kills = f"out-of-memory kills on its host during the job, whoever was killed: {of_host}"
        advice.append(f"{SHOW_OOM_KILLS} may say whom the kernel killed")
    return Reading(cause, (kills, memory_left(case), _last_line(case)), advice)


@signature("ended-by-signal", "any other signal")
def ended_by_signal(case: Case) -> Reading | None:
    """A rank was ended by a signal from outside."""
    if case.signal is None:
        return None
    cause = f"{case.who} was ended from outside ({signal_name(case.signal)}); by whom is unknown"
    return Reading(cause, (_last_line(case),))


@signature("rank-lost", "no exit status was recorded: the wrapper process of the script is gone too")
def rank_lost(case: Case) -> Reading | None:
    """A rank and its wrapper process are gone: the host or container ended, or both were killed."""
    if case.rank is None or case.rank.returncode is not None:
        return None
    lost = [rank.rank for rank in case.evidence.ranks if rank.returncode is None]
    facts = []
    if len(lost) > 1:
        facts.append(f"{plural(len(lost), 'rank')} without an exit status")
    if number := case.evidence.launcher_returncode:
        how = f"was killed by {signal_name(-number)}" if number < 0 else f"exited with status {number}"
        facts.append(f"the launcher {how}")
    return Reading(f"{case.who} and its wrapper process are gone", (*facts, _last_line(case)))


@signature("ended-by-status", "a nonzero exit status without an exception")
def ended_by_status(case: Case) -> Reading | None:
    """The script exited with a nonzero status."""
    if case.rank is None or not case.rank.returncode:
        return None
    return Reading(f"the script exited with status {case.rank.returncode} on {case.who}", (_last_line(case),))


@signature("launcher-killed", "a signal ended the launcher, and no rank failed by itself")
def launcher_killed(case: Case) -> Reading | None:
    """The launcher was killed; the ranks were then stopped."""
    number = case.evidence.launcher_returncode
    if case.rank is not None or number >= 0:
        return None
    by = signal_name(-number)
    if case.job.launcher == "deepspeed":  # its runner does not say which signal killed its node launcher
        by += " or a signal that it does not handle"
    return Reading(f"the launcher was killed from outside ({by}); by whom is unknown", is_local=False)


@signature("launcher-failed", "a nonzero exit status of the launcher, and no failed rank")
def launcher_failed(case: Case) -> Reading | None:
    """The launcher failed, but no rank did."""
    number = case.evidence.launcher_returncode
    if case.rank is not None or number == 0:
        return None
    line = matching_line(r"(?m)^[\w.]*(?:Error|Exception): [^\n]*", case.words) or last_line(case.words)
    cause = f"the launcher {case.job.launcher} failed"
    facts = [line, f"exit status {number}"]
    if not case.evidence.takes_records:
        facts.insert(0, "the run directory is gone or read-only, so ranks could not record their ends")
    return Reading(cause, facts, is_local=False)


@signature("finished", "every rank returned 0")
def finished(case: Case) -> Reading | None:
    """The job succeeded."""
    evidence, world_size = case.evidence, max(case.job.world_size, 1)
    all_finished = len(evidence.ranks) >= world_size and all(rank.finished for rank in evidence.ranks)
    if not all_finished or evidence.launcher_returncode != 0 or evidence.stopped_by is not None:
        return None
    return Reading("every rank finished", is_local=False)


@signature("unknown", "none of the above")
def unknown(case: Case) -> Reading:
    """The cause is unknown: no rank left a record of a failure."""
    facts = [last_line(case.words)]
    if left := sum(rank.returncode is not None for rank in case.evidence.ranks):
        facts.insert(0, f"{left} of {plural(case.job.world_size, 'rank')} left a record")
    return Reading("the job ended, and no rank left a record of a failure", facts, is_local=False)


_LOADED = re.compile(
    r"DeepSpeed \S+ built successfully|Time to load \S+ op: .*|Loading extension module .*"
    r"|ninja: no work to do\."
)
"""What a rank prints when it has loaded a native op, which says nothing about its end."""


def _last_line(case: Case) -> str | None:
    line = last_line(case.log[-8192:])
    if line is None or _LOADED.fullmatch(line):
        return None
    return f"last line of its log: {line}"
