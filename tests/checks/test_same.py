"""What hosts run must be the same; what differs is said with the host."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.making import PYTHON
from zlaunch.checks.same import check_same
from zlaunch.errors import Severity
from zlaunch.hosts.agent.survey import HostSurvey
from zlaunch.hosts.machine.interpreter import Package
from zlaunch.hosts.machine.resources import FreeResources, Machine

SCRIPT = Path("/home/train.py")
W0 = HostSurvey(Machine("w0", 1, 1), FreeResources(), 29500, PYTHON, hashes={SCRIPT: "a"})


def with_version(package: str, version: str) -> HostSurvey:
    packages = {**PYTHON.packages, package: Package("/elsewhere", version)}
    return replace(W0, python=replace(PYTHON, packages=packages))


def test_hosts_that_are_alike_give_no_cause_for_words() -> None:
    assert check_same({"w0": W0, "w1": W0}, W0.hashes) == []


@pytest.mark.parametrize(
    ("package", "severity"), [("deepspeed", Severity.FAILS_LATER), ("accelerate", Severity.ADVICE)]
)
def test_another_version_is_said_once_with_all_its_hosts(package: str, severity: Severity) -> None:
    other = with_version(package, "0.0.1")
    (finding,) = check_same({"w0": W0, "w1": other, "w2": other}, W0.hashes)
    assert (finding.code, finding.where, finding.severity) == ("other-version", "w1, w2", severity)
    assert finding.message.startswith(f"{package} 0.0.1, but ")


@pytest.mark.parametrize(
    ("here", "there", "severities"),
    [
        ("2.13.0", "2.13.0+cu128", []),
        ("2.13.0+cpu", "2.13.0+cu128", []),
        ("2.13.0", "2.13.1", [Severity.ADVICE]),
        ("2.13.0", "2.12.0", [Severity.FAILS_LATER]),
    ],
)
def test_only_another_release_of_torch_with_other_messages_is_refused(
    here: str, there: str, severities: list[Severity]
) -> None:
    found = check_same({"w0": with_version("torch", here), "w1": with_version("torch", there)}, {})
    assert [one.severity for one in found] == severities


def test_the_command_for_another_release_names_no_build() -> None:
    first, other = with_version("torch", "2.13.0+cu128"), with_version("torch", "2.12.0")
    (finding,) = check_same({"w0": first, "w1": other}, {})
    assert (finding.hint or "").endswith("-m pip install torch==2.13.0`")


def test_only_another_minor_version_of_python_matters() -> None:
    patch, minor = (replace(W0, python=replace(PYTHON, version=one)) for one in ("3.12.99", "3.10.1"))
    wanted = replace(W0, python=replace(PYTHON, version="3.12.1"))
    (finding,) = check_same({"w0": wanted, "w1": patch, "w2": minor}, W0.hashes)
    assert (finding.where, finding.message) == ("w2", "Python 3.10.1, but 3.12.1 on w0")


def test_a_script_is_compared_with_the_one_here_and_not_where_it_is_missing() -> None:
    missing, other = replace(W0, hashes={}), replace(W0, hashes={SCRIPT: "b"})
    (finding,) = check_same({"w0": W0, "w1": missing, "w2": other}, {SCRIPT: "a"})
    assert (finding.code, finding.where) == ("other-script", "w2")
