"""Preflight checks that all hosts of a job run the same: versions of packages, and the script itself."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zlaunch.errors import Finding, Severity
from zlaunch.hosts.agent.survey import HostSurvey
from zlaunch.job.trainer_releases import numbers_of

MUST_AGREE = ("torch", "deepspeed")
"""Ranks with other releases of these may wait for each other forever, without any error."""

MAY_DIFFER = ("transformers", "accelerate")


def check_same(surveys: Mapping[str, HostSurvey], script: Mapping[Path, str]) -> list[Finding]:
    """Compare versions with those of the first host, and the script with the one here.

    Equal findings of several hosts become one.
    """
    (name, first), *others = surveys.items()
    named: dict[Finding, list[str]] = {}
    for other, survey in surveys.items():
        for finding in _files(script, survey):
            named.setdefault(finding, []).append(other)
    for other, survey in others:
        for finding in _versions(name, first, survey):
            named.setdefault(finding, []).append(other)
    return [_on(hosts, finding) for finding, hosts in named.items()]


def _versions(name: str, first: HostSurvey, other: HostSurvey) -> Iterator[Finding]:
    names = (*MUST_AGREE, *MAY_DIFFER)
    wanted, found = first.python.versions(names), other.python.versions(names)
    for package in names:
        both = found[package], wanted[package]
        if _without_build(both[0]) != _without_build(both[1]):
            severity = Severity.FAILS_LATER if _must_agree(package, both) else Severity.ADVICE
            yield _version(package, name, both, severity, other.python.executable)
    versions = (other.python.version, first.python.version)
    if numbers_of(versions[0]) != numbers_of(versions[1]):
        yield _version("Python", name, versions, Severity.ADVICE, None)


def _without_build(version: str | None) -> str | None:
    """Leave out `+cu124`: one release is built for CUDA, CPUs and other machines."""
    return None if version is None else version.partition("+")[0]


def _must_agree(package: str, versions: tuple[str | None, str | None]) -> bool:
    return package in MUST_AGREE and len({numbers_of(one or "") for one in versions}) > 1


def _version(
    what: str, first: str, versions: tuple[str | None, str | None], severity: Severity, python: str | None
) -> Finding:
    found, wanted = (version or "not installed" for version in versions)
    hint = "use the same environment on all hosts"
    if python is not None and versions[1] is not None:
        hint = f"`{python} -m pip install {what}=={_without_build(wanted)}`"
    return Finding("other-version", f"{what} {found}, but {wanted} on {first}", hint, severity=severity)


def _files(script: Mapping[Path, str], other: HostSurvey) -> Iterator[Finding]:
    for path, wanted in script.items():
        if other.hashes.get(path, wanted) != wanted:
            message = f"`{path}` is not the same as on this machine"
            yield Finding("other-script", message, "copy it there", severity=Severity.FAILS_LATER)


def _on(hosts: Sequence[str], finding: Finding) -> Finding:
    more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
    where = ", ".join(hosts[:3]) + more
    return Finding(
        finding.code, finding.message, f"on {where}: {finding.hint}", severity=finding.severity, where=where
    )
