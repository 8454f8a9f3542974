"""What hosts run must be the same; what differs is said with the host."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checks.recorded import cpu_host, gpu_host, with_packages
from tests.making import CPU_MACHINE, gpu, machine
from zlaunch.checks.across_hosts import compare, gpus_used_twice
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.facts import Files, MachineFacts
from zlaunch.hosts.machine.resources import Machine
from zlaunch.launch.all_hosts import findings_of_hosts

SCRIPT = Path("/home/train.py")


def with_script(facts: MachineFacts, value: str | None) -> MachineFacts:
    return replace(facts, files=Files(hashes={SCRIPT: value}))


W0 = with_script(cpu_host(), "a")


def differences(hosts: Mapping[str, MachineFacts], here: str | None = "a") -> list[Finding]:
    return findings_of_hosts(compare(hosts, {}, SCRIPT, {SCRIPT: here}))


def with_version(package: str, version: str, facts: MachineFacts = W0) -> MachineFacts:
    return with_packages(facts, **{package: version})


def test_hosts_that_are_alike_give_no_cause_for_words() -> None:
    assert differences({"w0": W0, "w1": W0}) == []


@pytest.mark.parametrize(
    ("package", "severity"), [("deepspeed", Severity.FAILS_LATER), ("accelerate", Severity.ADVICE)]
)
def test_another_version_is_said_once_with_all_its_hosts(package: str, severity: Severity) -> None:
    other = with_version(package, "0.0.1")
    (finding,) = differences({"w0": W0, "w1": other, "w2": other, "w3": W0, "w4": W0})
    assert (finding.code, finding.where, finding.severity) == ("other-version", "w1, w2", severity)
    assert finding.message.startswith(f"{package} 0.0.1, but ")


@pytest.mark.parametrize(
    ("facts", "here", "there", "severities"),
    [
        (gpu_host(), "2.13.0+cu124", "2.13.0+cu126", [Severity.ADVICE]),
        (cpu_host(), "2.13.0", "2.13.0+cpu", []),
        (gpu_host(), "2.13.0", "2.13.1", [Severity.ADVICE]),
        (gpu_host(), "2.13.0", "2.12.0", [Severity.FAILS_LATER]),
    ],
    ids=["builds with other releases of NCCL", "builds without NCCL", "another patch", "another release"],
)
def test_only_another_release_of_torch_with_other_messages_is_refused(
    facts: MachineFacts, here: str, there: str, severities: list[Severity]
) -> None:
    unlike = replace(facts.machine.gpus[0], uuid="GPU-9") if facts.machine.gpus else None
    other = facts if unlike is None else replace(facts, hardware=replace(facts.machine, gpus=(unlike,)))
    hosts = {"w0": with_version("torch", here, facts), "w1": with_version("torch", there, other)}
    assert [one.severity for one in differences(hosts)] == severities


def test_of_three_hosts_the_one_that_differs_is_named_even_if_it_is_the_first() -> None:
    (finding,) = differences({"w0": with_version("torch", "2.12.0"), "w1": W0, "w2": W0})
    assert (finding.where, finding.message) == ("w0", "torch 2.12.0, but 2.13.0 on w1")


def test_the_command_for_another_release_names_no_build() -> None:
    first, other = with_version("torch", "2.13.0+cu128"), with_version("torch", "2.12.0")
    (finding,) = differences({"w0": first, "w1": other})
    assert (finding.hint or "").endswith("-m pip install torch==2.13.0`")


def test_only_another_minor_version_of_python_matters() -> None:
    patch, minor, wanted = (
        replace(W0, python=replace(W0.python, version=one)) for one in ("3.12.99", "3.10.1", "3.12.1")
    )
    (finding,) = differences({"w0": wanted, "w1": patch, "w2": minor})
    assert (finding.where, finding.message) == ("w2", "Python 3.10.1, but 3.12.1 on w0")
    assert finding.severity is Severity.ADVICE


def test_a_script_is_compared_with_the_one_here() -> None:
    missing, other = with_script(W0, None), with_script(W0, "b")
    found = differences({"w0": W0, "w1": missing, "w2": other})
    assert [(one.code, one.where) for one in found] == [("not-shared", "w1"), ("other-script", "w2")]


def test_a_ds_config_that_differs_is_a_warning_because_ranks_get_the_one_from_here() -> None:
    hosts = {"w0": with_script(W0, "a"), "w1": with_script(W0, "b")}
    verdicts = [verdict for _, verdict in compare(hosts, {}, program=None)]
    assert [(one.status.value, one.finding) for one in verdicts] == [("ok", None), ("warning", None)]


ONE_MACHINE = {"w0": machine(gpu(0), gpu(1)), "w1": machine(gpu(0), gpu(1))}


def test_two_names_of_one_machine_are_found_by_its_gpus() -> None:
    (found,) = gpus_used_twice({"w0": (0, 1), "w1": (0, 1)}, ONE_MACHINE)
    assert found.message == "`w0` and `w1` are the same machine: both have `GPU-0`"


@pytest.mark.parametrize(
    "machines", [ONE_MACHINE, {"w0": CPU_MACHINE, "w1": CPU_MACHINE}, {}], ids=["parts", "cpu", "unknown"]
)
def test_hosts_that_use_no_gpu_twice_may_be_one_machine(machines: dict[str, Machine]) -> None:
    assert gpus_used_twice({"w0": (0,), "w1": (1,)}, machines) == []
