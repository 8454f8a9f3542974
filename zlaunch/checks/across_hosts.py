"""Checks that compare hosts by their facts: versions, files, GPUs, and whether two are one machine."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType

from zlaunch.checks.result import CheckResult, Status, judged
from zlaunch.checks.shared_paths import missing_path
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.resources import Machine
from zlaunch.job.stack import TESTED
from zlaunch.units import numbers_of

MUST_AGREE = ("torch", "deepspeed")
"""Ranks with other releases of these may wait for each other forever, without any error."""

HostResult = tuple[str, CheckResult]
"""Name of a host, and a result about it."""


def compare(
    facts: Mapping[str, MachineFacts],
    devices: Mapping[str, Sequence[int]],
    program: Path | None,
    here: Mapping[Path, str | None] = MappingProxyType({}),
) -> Iterator[HostResult]:
    """Compare hosts with each other, and files with their hashes here, if these are given.

    `devices` are the GPUs that the job uses on each host; none of them for all. The `program` must be the
    same everywhere; ranks get the ds_config of the machine that starts them.
    """
    yield from _same_machines(facts, devices)
    yield from _pythons(facts)
    yield from _packages(facts)
    yield from _accelerators(facts)
    yield from _file_checks(facts, program, here)


def usual(values: Mapping[str, Hashable]) -> Hashable:
    """The value that most hosts have; of several, that of the first host."""
    if not values:
        return None
    return Counter(values.values()).most_common(1)[0][0]


def _first_with(value: Hashable, values: Mapping[str, Hashable]) -> str:
    return next(name for name, candidate in values.items() if candidate == value)


def _same_machines(
    facts: Mapping[str, MachineFacts], devices: Mapping[str, Sequence[int]]
) -> Iterator[HostResult]:
    """Find hosts that are one machine under several names; containers on one machine are not.

    On its CPU, ranks may start twice; a GPU cannot be used by two ranks of one job, not in containers either.
    """
    machines = {name: host.hardware for name, host in facts.items() if host.hardware is not None}
    used = {}
    for name, machine in machines.items():
        used[name] = devices.get(name) or [gpu.index for gpu in machine.gpus]
    shared = _shared_gpus(used, machines)
    hint = "name each machine once"
    for (other, name), finding in shared.items():
        text = f"the same machine as {other}: a job would use its GPUs twice"
        yield name, judged("machine", text, finding, hint)
    first: dict[Hashable, str] = {}
    for name, host in facts.items():
        identity = _identity(host)
        if identity is None:
            continue
        other = first.setdefault(identity, name)
        if other != name and (other, name) not in shared:
            text = f"the same machine as {other}: a job would start ranks on it twice"
            yield name, CheckResult("machine", Status.WARNING, text, hint)


def _identity(facts: MachineFacts) -> Hashable:
    """What only one machine, or one container on it, has; None if that is not certain.

    Restored copies of one virtual machine have the same boot id and hostname, but other addresses.
    """
    network = facts.network
    if network is None or (identity := network.identity) is None:
        return None
    outside = [interface for interface in network.interfaces if interface.name != "lo"]
    addresses = frozenset(interface.address for interface in outside if interface.address)
    if identity.boot and identity.pid_namespace and addresses:
        return (identity, addresses)
    return None


def gpus_used_twice(devices: Mapping[str, Sequence[int]], machines: Mapping[str, Machine]) -> list[Finding]:
    """Find hosts that are one machine under two names, where a job would use a GPU twice."""
    return [*_shared_gpus(devices, machines).values()]


def _shared_gpus(
    devices: Mapping[str, Sequence[int]], machines: Mapping[str, Machine]
) -> dict[tuple[str, str], Finding]:
    first: dict[str, str] = {}
    findings: dict[tuple[str, str], Finding] = {}
    for name, indices in devices.items():
        if name not in machines:
            continue
        ids = {gpu.index: gpu.uuid for gpu in machines[name].gpus}
        for uuid in filter(None, map(ids.get, indices)):
            other = first.setdefault(uuid, name)
            if other != name:
                message = f"`{other}` and `{name}` are the same machine: both have `{uuid}`"
                hint = f"delete one of the two, or choose other devices: `--exclude {name}:0`"
                findings.setdefault((other, name), Finding("same-machine", message, hint))
    return findings


def _pythons(facts: Mapping[str, MachineFacts]) -> Iterator[HostResult]:
    """Another minor release has other packages, perhaps; ranks do not send each other what depends on it."""
    versions = {name: host.python.version for name, host in facts.items()}
    common = str(usual(versions))
    hint = "use the same environment on all hosts"
    for name, version in versions.items():
        text = f"{version}, but {common} on the others"
        if numbers_of(version)[:2] != numbers_of(common)[:2]:
            message = f"Python {version}, but {common} on {_first_with(common, versions)}"
            finding = Finding("other-version", message, hint, severity=Severity.ADVICE)
            yield name, judged("Python", text, finding, f"{hint}: `--python PATH`")
        elif version != common:
            yield name, CheckResult("Python", Status.NOTE, text)


def _packages(facts: Mapping[str, MachineFacts]) -> Iterator[HostResult]:
    for package in TESTED:
        versions = {name: host.python.versions([package])[package] for name, host in facts.items()}
        common = usual(versions)
        for name, version in versions.items():
            if version != common:
                yield name, _other_version(package, name, versions, facts)


def _other_version(
    package: str, name: str, versions: Mapping[str, str | None], facts: Mapping[str, MachineFacts]
) -> CheckResult:
    """Judge a version that differs from that of most hosts.

    Builds of one release for several CUDA releases work together, unless they come with other releases of
    NCCL, which refuses to connect to another one.
    """
    common = usual(versions)
    version, wanted = versions[name] or "not installed", str(common or "not installed")
    text = f"{version}, but {wanted} on the others"
    pip = f"`{facts[name].python.executable} -m pip install {package}=={_without_build(wanted)}`"
    if common is None:
        pip = "use the same environment on all hosts"
    message = f"{package} {version}, but {wanted} on {_first_with(common, versions)}"
    severity = Severity.ADVICE
    if package in MUST_AGREE and numbers_of(version) != numbers_of(wanted):
        severity = Severity.FAILS_LATER
    elif _without_build(version) == _without_build(wanted) and not _use_nccl(package, facts):
        return CheckResult(package, Status.NOTE, text)
    finding = Finding("other-version", message, pip, severity=severity)
    return judged(package, text, finding, f"on {name}: {pip}")


def _use_nccl(package: str, facts: Mapping[str, MachineFacts]) -> bool:
    return package == "torch" and any(host.hardware and host.hardware.gpus for host in facts.values())


def _without_build(version: str) -> str:
    """Leave out `+cu124`: one release is built for CUDA, CPUs and other machines."""
    return version.partition("+")[0]


def _accelerators(facts: Mapping[str, MachineFacts]) -> Iterator[HostResult]:
    """Hosts with and without GPUs cannot train together; other differences are only shown."""
    machines = {name: host.hardware for name, host in facts.items() if host.hardware is not None}
    counts = {name: len(machine.gpus) for name, machine in machines.items()}
    for name, count in counts.items():
        if not count and any(counts.values()):
            text, hint = "none, but others have GPUs", f"remove {name} from the hosts"
            yield name, CheckResult("GPUs", Status.ERROR, text, hint)


def _file_checks(
    facts: Mapping[str, MachineFacts], program: Path | None, here: Mapping[Path, str | None]
) -> Iterator[HostResult]:
    there = {name: host.files.hashes for name, host in facts.items() if host.files is not None}
    for path in dict.fromkeys(chain(*there.values())):
        hash_on = {name: hashes[path] for name, hashes in there.items() if path in hashes}
        wanted = here.get(path) or usual(hash_on)
        source = next((name for name, value in hash_on.items() if value == wanted), "this machine")
        for name, value in hash_on.items():
            hint = f"on {source}: `scp {path} {name}:{path}`"
            yield name, _file_check(path, value, wanted, hint, is_program=path == program)


def _file_check(
    path: Path, value: str | None, wanted: Hashable, hint: str, *, is_program: bool
) -> CheckResult:
    row = f"file {path.name}"
    if value == wanted and value is not None:
        return CheckResult(row, Status.OK, "the same bytes")
    text = "differs from that of the other hosts"
    if value is None:
        text = "is not there"
    if not is_program:
        return CheckResult(row, Status.WARNING, text, hint)
    if value is None:
        return judged(row, text, missing_path(path), hint)
    message = f"`{path}` is not the same as on this machine"
    finding = Finding("other-script", message, "copy it there", severity=Severity.FAILS_LATER)
    return judged(row, text, finding, hint)
