"""Ranks could not connect, or lost their connection."""

import re
from collections.abc import Iterator
from dataclasses import replace

from zlaunch.diagnosis.advice import named_in
from zlaunch.diagnosis.case import Case, Reading, signal_name, words_of
from zlaunch.diagnosis.evidence import HostEvidence, RankEvidence
from zlaunch.diagnosis.log_text import clip, matching_line
from zlaunch.diagnosis.root_cause import LOST_PEER, WAITED_IN_VAIN, RankRole, role_of, roles
from zlaunch.diagnosis.signature import quotes, signature
from zlaunch.diagnosis.uneven import unevenness
from zlaunch.hosts.cluster.topology import Reach
from zlaunch.units import plural
from zlaunch.worker.lost import SHOW_OOM_KILLS

_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout: \w+\(SeqNum=(\d+), OpType=(\w+)"
    r".{0,300}?ran for (\d+) milliseconds",
    re.DOTALL,
)
_BARRIER = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier in (\d+) ms")
_GLOO = re.compile(r"Timed out waiting (\d+)ms for (recv|send) operation")
_TIMEOUT = f"{_WATCHDOG.pattern}|{_BARRIER.pattern}|{_GLOO.pattern}|monitoredBarrier"
_RUNNING = re.compile(r"Rank (\d+) is running collective: \w+\(SequenceNumber=(\d+), ?OpType=(\w+)")


@signature("host-lost", "no sign of life from a host, or the end of its ssh, srun or launcher")
def host_lost(case: Case) -> Reading | None:
    """A host of the job is gone, or could not start its part."""
    failed = [host for host in case.evidence.hosts if host.has_failed]
    first = min(failed, key=lambda host: host.ended or 0.0, default=None)
    if first is None or case.evidence.stopped_by is not None or _failed_before(case, first):
        return None
    facts, advice = [first.said], []
    if others := [host.host for host in failed if host is not first]:
        facts.append(f"also lost: {', '.join(others)}")
    if first.lost and case.job.reach == Reach.JOINED.value:  # its zlaunch cannot say why it ended
        place = f"on {first.host}, or the log of its pod or Slurm step,"
        advice += [
            f"{SHOW_OOM_KILLS} {place} may say what ended zlaunch",
            "then start the job again on every node",
        ]
    for rank in case.evidence.ranks:
        if rank.node == first.node:  # whose own name for its host often differs from the hostfile's
            return Reading(_what_went(first), facts, advice, rank=replace(rank, host=first.host))
    return Reading(_what_went(first), facts, advice, is_local=False)


def _failed_before(case: Case, host: HostEvidence) -> bool:
    rank = case.rank
    if rank is None or role_of(rank, case.evidence) is not RankRole.FAILED:
        return False
    failed = rank.ended
    if rank.error is not None:
        failed = rank.error.time
    return failed is not None and host.ended is not None and failed < host.ended


def _what_went(host: HostEvidence) -> str:
    if host.error:
        return f"{host.host} could not start its ranks: {host.error}"
    if host.lost:
        return f"{host.host} was lost: {host.lost}"
    return f"the launcher on {host.host} was killed by {signal_name(-(host.returncode or 0))}"


@signature("port-taken", "`EADDRINUSE`, `address already in use`")
@quotes(r"EADDRINUSE|[Aa]ddress already in use")
def port_taken(case: Case, line: str) -> Reading:
    """The rendezvous port is in use by another program, often by ranks of an earlier run."""
    port = named_in(case.words, r"port: (\d+)") or named_in(case.words, r"\[?::\]?:(\d+)")
    advice = []
    if port:
        advice.append(f"`ss -ltnp 'sport = :{port}'` shows the program that uses it")
    which = f"port {port}" if port else "port"
    fact = named_in(case.words, r"(port: \d+[^\n]{0,120}EADDRINUSE)") or line
    return Reading(f"the rendezvous {which} is in use by another program", (fact,), advice)


@signature("collective-mismatch", "`Detected mismatch between collectives on ranks`")
def collective_mismatch(case: Case) -> Reading | None:
    """Ranks called different collectives at the same time: their programs diverged."""
    if "Detected mismatch between collectives" not in case.words:
        return None
    calls = [
        f"rank {rank}: {operation}, number {number}"
        for rank, number, operation in _RUNNING.findall(case.words)
    ]
    facts = (*calls[:3],) or (matching_line("Detected mismatch between collectives", case.words),)
    return Reading("ranks called different collectives at the same time", facts, is_local=False)


@signature("uneven-ranks", "a rank that returned 0 while another lost it, or waited for it, in a later step")
def uneven_ranks(case: Case) -> Reading | None:
    """Some ranks finished while others still communicated with them, as with uneven numbers of batches."""
    uneven = unevenness(case.evidence)
    if uneven is None or case.rank is None or case.evidence.was_ended:
        return None
    if role_of(case.rank, case.evidence) not in (RankRole.DRAGGED, RankRole.CUT_OFF):
        return None
    line = matching_line(f"{LOST_PEER.pattern}|{WAITED_IN_VAIN.pattern}", case.words)
    return Reading(uneven.cause, (line,), (uneven.advice,), rank=uneven.rank)


@signature(
    "collective-timeout", "NCCL's watchdog, gloo's `Timed out waiting`, `failed to pass monitoredBarrier`"
)
def collective_timeout(case: Case) -> Reading | None:
    """A rank waited for others in a collective until the timeout."""
    waiting = [rank for rank in case.evidence.ranks if _waited(rank)]
    if not waiting or case.rank is None:
        return None
    if not _waited(case.rank) and role_of(case.rank, case.evidence) is RankRole.FAILED:
        return None
    first = case.rank if _waited(case.rank) else waiting[0]
    missing = _missing_ranks(case, waiting)
    operation, waited = _collective(words_of(first))
    facts = [matching_line(_TIMEOUT, words_of(first))]
    if waited and len(waiting) > 1:
        facts.insert(0, f"{len(waiting)} ranks waited{waited}")
    cause = f"did not reach {operation}, where rank {first.rank} was waiting"
    if not missing:
        return Reading(f"another rank {cause}", facts, is_local=False)
    facts.insert(0, _rank_place(case, missing[0]))
    names = ", ".join(str(rank.rank) for rank in missing)
    return Reading(f"rank {names} {cause}", facts, rank=missing[0])


def _waited(rank: RankEvidence) -> bool:
    return re.search(_TIMEOUT, words_of(rank), re.DOTALL) is not None


def _collective(words: str) -> tuple[str, str]:
    if match := _WATCHDOG.search(words):
        return f"{match.group(2)} number {match.group(1)}", f" {match.group(3)} ms"
    if match := _BARRIER.search(words):
        return "a monitored barrier", f" {match.group(2)} ms"
    if match := _GLOO.search(words):
        return "a collective", f" {match.group(1)} ms"
    return "a monitored barrier", ""


def _missing_ranks(case: Case, waiting: list[RankEvidence]) -> list[RankEvidence]:
    ranks = {rank.rank: rank for rank in case.evidence.ranks}
    named: set[int] = set()
    for rank in waiting:
        named.update(_ranks_at_barrier(words_of(rank)))
    if not named and case.evidence.stall is not None:
        named = set(case.evidence.stall.odd)
    if named:
        return [ranks[number] for number in sorted(named) if number in ranks]
    others = [rank for rank in ranks.values() if rank not in waiting]
    if len(others) == 1 and len(ranks) == case.job.world_size:
        return others
    matches = {rank.rank: _WATCHDOG.search(words_of(rank)) for rank in waiting}
    numbers = {rank: int(match.group(1)) for rank, match in matches.items() if match}
    if len({*numbers.values()}) > 1:
        return [ranks[rank] for rank, number in numbers.items() if number == min(numbers.values())]
    least = min(rank.step for rank in waiting)
    return [rank for rank in others if rank.step < least]


def _ranks_at_barrier(words: str) -> Iterator[int]:
    for match in _BARRIER.finditer(words):
        yield from map(int, re.findall(r"\d{1,6}", match.group(1)))


def _rank_place(case: Case, rank: RankEvidence) -> str:
    text, stall = f"rank {rank.rank}", case.evidence.stall
    if rank.phase:
        text += f" was in `{rank.phase}` at step {rank.step}"
    if stall is not None and (place := stall.where.get(rank.rank)):
        text += f": {clip(place, 60)}"
    return text


@signature(
    "rendezvous-failed", "`waiting for clients`, `client socket has timed out`, `failed to connect to`"
)
@quotes(
    r"waiting for clients|The client socket has (?:timed out|failed to connect)|RendezvousTimeoutError"
    r"|RendezvousConnectionError|no socket interface found|Name or service not known|getaddrinfo failed"
)
def rendezvous_failed(case: Case, line: str) -> Reading:
    """Ranks could not connect: rank 0 was not running or not reachable, or some ranks were missing."""
    address = named_in(line, r"connect to \(([^()]{1,80})\)")
    joined = named_in(line, r"(\d+/\d+) clients joined")
    cause = "the ranks could not connect"
    if joined:
        cause = f"only {joined} ranks joined the rendezvous"
    elif address:
        cause = f"no answer from {address.replace(', ', ':')}"
    return Reading(cause, (line,))


@signature(
    "connection-lost", "`Connection closed by peer`, an NCCL remote error, and no rank that failed by itself"
)
@quotes(LOST_PEER.pattern)
def connection_lost(case: Case, line: str) -> Reading | None:
    """A rank lost its connection to another one, and no rank recorded a failure of its own."""
    if case.rank is None or role_of(case.rank, case.evidence) is not RankRole.CUT_OFF:
        return None
    facts = [line]
    if others := sum(role == RankRole.CUT_OFF for role in roles(case.evidence).values()) - 1:
        facts.append(f"the same on {plural(others, 'other rank')}")
    return Reading(f"{case.who} lost its connection to another rank; no rank recorded why", facts)


_DUPLICATE = r"Duplicate GPU detected ?: rank (\d+) and rank (\d+) both on CUDA device (\w+)"


@signature("duplicate-gpu", "NCCL's `Duplicate GPU detected`")
def duplicate_gpu(case: Case) -> Reading | None:
    """Two ranks use the same GPU, which NCCL refuses: the script does not select that of its local rank."""
    match = re.search(_DUPLICATE, f"{case.words}\n{case.log}")
    if match is None:
        return None
    first, second, device = match.groups()
    cause = f"ranks {first} and {second} use the same GPU, which NCCL refuses"
    advice = ('call `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))` before the first collective',)
    return Reading(cause, (f"both are on CUDA device {device}",), advice, is_local=False)


@signature("network-error", "NCCL's `ncclSystemError`, `ncclInternalError`, `unhandled cuda error`")
@quotes(r"ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage|NCCL error")
def network_error(case: Case, line: str) -> Reading:
    """NCCL failed on this rank: its network, its driver or a GPU."""
    why = matching_line(r"NCCL WARN|Last error:", case.words)
    last = named_in(case.words, r"Last error:\s*([^\n]{1,200})")
    return Reading(f"NCCL failed on {case.who}", (line, last or why))


@signature(
    "host-unreachable", "`was not reachable via ssh`, `Permission denied (publickey`, `Host key verification`"
)
def host_unreachable(case: Case) -> Reading | None:
    """A connection over ssh to a host of the job failed."""
    line = matching_line(
        r"was not reachable via ssh|Permission denied \(publickey|Host key verification failed"
        r"|ssh: connect to host|ssh: Could not resolve",
        f"{case.words}\n{case.evidence.launcher_log}",
    )
    if line is None or not _is_before_ranks(case):
        return None
    host = named_in(line, r"host=(\S{1,80}) was not") or named_in(line, r"connect to host (\S{1,80})")
    advice = []
    if host:
        advice.append(f"`ssh {host} true` must work without a prompt")
    return Reading(f"ssh cannot connect to {host or 'a host'}", (line,), advice, is_local=False)


@signature("launcher-missing", "`launcher 'pdsh' not installed`")
@quotes(r"launcher '[\w-]+' not installed")
def launcher_missing(case: Case, line: str) -> Reading | None:
    """The program that starts ranks on other hosts is not installed."""
    if not _is_before_ranks(case):
        return None
    name = named_in(line, r"launcher '([\w-]+)'")
    cause = f"`{name}`, which starts the ranks on other hosts, is not installed"
    return Reading(cause, (line,), is_local=False)


@signature("no-such-slot", "`No slot 'N' specified on host`, `invalid literal for int() with base 10: 'GPU-`")
@quotes(r"No slot '[^'\n]{0,40}' specified on host|base 10: '(?:GPU|MIG)-")
def no_such_slot(case: Case, line: str) -> Reading:
    """The launcher does not recognize a GPU: its number is too high, or it is given by name."""
    return Reading("the launcher does not recognize a GPU of the job", (line,), is_local=False)


def _is_before_ranks(case: Case) -> bool:
    return case.rank is None or not case.rank.phase
