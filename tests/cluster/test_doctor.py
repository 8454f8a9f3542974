"""`zlaunch doctor` over hosts with real ssh: each thing that is wrong is found, with its host."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.bed import ALL, NAMES, POOR, Bed
from tests.cluster.slurm_bed import Slurm
from tests.running import ZLAUNCH, Result, run, zlaunch

pytestmark = pytest.mark.hosts

FIRST, SECOND = NAMES


def doctor(bed: Bed, cwd: Path, *words: object, hosts: tuple[str, ...] = ALL, **env: str) -> Result:
    variables = {**bed.environment(), "HF_HUB_OFFLINE": "1", **env}
    return zlaunch("doctor", *words, "--hosts", ",".join(hosts), cwd=cwd, env=variables)


def rows(result: Result) -> dict[str, dict[str, Any]]:
    """Map hosts to their rows by name."""
    found = json.loads(result.out)["hosts"]
    return {host: {row["name"]: row for row in one["rows"]} for host, one in found.items()}


def test_healthy_hosts_are_one_table_and_nothing_is_wrong(bed: Bed, tmp_path: Path) -> None:
    result = doctor(bed, tmp_path, hosts=NAMES)
    assert result.status == 0, result.out + result.err
    lines = result.out.splitlines()
    assert lines[-1].startswith("nothing is wrong; 2 of 2 hosts answered")
    assert len([line for line in lines if " torch " in line]) == 1


def test_a_machine_with_two_names_is_compared_with_itself_but_not_without_a_word(
    bed: Bed, tmp_path: Path
) -> None:
    names = (FIRST, SECOND, address := bed.network.address(FIRST))
    found = rows(doctor(bed, tmp_path, "--json", hosts=names))
    assert [name for name in names if "machine" in found[name]] == [address]
    assert found[address]["machine"]["value"].startswith(f"the same machine as {FIRST}:")


def test_everything_about_a_host_is_in_the_json(bed: Bed, tmp_path: Path) -> None:
    result = doctor(bed, tmp_path, "--json")
    assert result.status == 0, result.out
    found = rows(result)
    assert set(found) == set(ALL)
    assert found[SECOND]["interface"]["value"].startswith("eth0, MTU 1500")
    assert found[SECOND]["rendezvous"]["status"] == "ok"
    assert {found[name]["clock"]["status"] for name in ALL} == {"ok"}


def test_a_host_that_is_poorer_is_named_with_what_it_lacks(bed: Bed, tmp_path: Path) -> None:
    found = rows(doctor(bed, tmp_path, "--json"))
    assert found[POOR]["/dev/shm"]["status"] == "warning"
    assert "1 MiB" in found[POOR]["/dev/shm"]["value"]
    assert found[POOR]["locked memory"]["value"].startswith("limited to")
    assert found[FIRST]["/dev/shm"]["status"] == "ok"


@contextmanager
def no_route_to(address: str) -> Iterator[None]:
    """Answer connections to a host as a router does that knows no way."""
    yield from _route(["ip", "route"], "unreachable", address)


def _route(ip: list[str], kind: str, address: str) -> Iterator[None]:
    subprocess.run([*ip, "add", kind, f"{address}/32"], check=True)
    try:
        yield
    finally:
        subprocess.run([*ip, "del", kind, f"{address}/32"], check=True)


@pytest.fixture
def ssh_with(bed: Bed, tmp_path: Path) -> Any:
    """Make an `ssh` with other settings for one of the hosts."""

    def make(host: str, settings: str) -> dict[str, str]:
        text = (bed.programs.parent / "ssh.conf").read_text()
        (tmp_path / "ssh.conf").write_text(f"Host {host}\n{settings}\n{text}")
        programs = tmp_path / "bin"
        programs.mkdir()
        real = shutil.which("ssh")
        (programs / "ssh").write_text(f'#!/bin/sh\nexec {real} -F {tmp_path / "ssh.conf"} "$@"\n')
        (programs / "ssh").chmod(0o755)
        return {"PATH": f"{programs}:{bed.environment()['PATH']}"}

    return make


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("  Port 2", ("connection refused: no ssh server listens on port 2", "systemctl start ssh")),
        ("  HostName zlnowhere.invalid", ("the name zlnowhere.invalid cannot be resolved", "HostName")),
        (
            "  IdentityFile /dev/null\n  PubkeyAuthentication no",
            ("the host asks for a password", "ssh-copy-id zlnode2"),
        ),
        (
            "  StrictHostKeyChecking yes",
            ("its host key is not known here", "ssh-keyscan -H ADDRESS >> ~/.ssh/known_hosts"),
        ),
    ],
    ids=["refused", "no name", "no key", "unknown host key"],
)
def test_why_ssh_does_not_get_into_one_of_three_hosts_is_told_apart(
    settings: str, expected: tuple[str, str], bed: Bed, ssh_with: Any, tmp_path: Path
) -> None:
    result = doctor(bed, tmp_path, "--json", **ssh_with(SECOND, settings))
    assert result.status == 69
    found = rows(result)
    message, typed = expected
    assert list(found[SECOND]) == ["ssh"]
    assert found[SECOND]["ssh"]["value"].startswith(message)
    assert typed.replace("ADDRESS", bed.network.address(SECOND)) in found[SECOND]["ssh"]["hint"]
    assert found[POOR]["rendezvous"]["status"] == "ok"


def test_a_host_key_that_has_changed_is_no_unknown_one(bed: Bed, ssh_with: Any, tmp_path: Path) -> None:
    other = (bed.programs.parent / "user.pub").read_text().split()[:2]
    known = tmp_path / "known_hosts"
    known.write_text(f"{bed.network.address(SECOND)} {' '.join(other)}\n")
    settings = f"  StrictHostKeyChecking yes\n  UserKnownHostsFile {known}"
    found = rows(doctor(bed, tmp_path, "--json", **ssh_with(SECOND, settings)))
    assert found[SECOND]["ssh"]["value"].startswith("its host key has changed")
    assert f'ssh-keygen -f "{known}" -R "{bed.network.address(SECOND)}"' in found[SECOND]["ssh"]["hint"]


def test_a_host_without_a_route_to_it_is_named(bed: Bed, tmp_path: Path) -> None:
    with no_route_to(bed.network.address(SECOND)):
        result = doctor(bed, tmp_path, "--json")
    assert result.status == 69
    assert rows(result)[SECOND]["ssh"]["value"] == f"there is no route to {bed.network.address(SECOND)}"


def test_other_versions_of_packages_are_found_with_their_host(bed: Bed, tmp_path: Path) -> None:
    """In a directory on PYTHONPATH that is another one on the poor host."""
    older = bed.own / "deepspeed"
    install = (
        f"mkdir -p {older} {bed.own}/deepspeed-0.18.2.dist-info && touch {older}/__init__.py && "
        f"mkdir -p {older}/launcher && touch {older}/launcher/runner.py && "
        f"echo 'Version: 0.18.2' > {bed.own}/deepspeed-0.18.2.dist-info/METADATA"
    )
    there(bed, POOR, install)
    try:
        result = doctor(bed, tmp_path, "--json", PYTHONPATH=str(bed.own))
    finally:
        there(bed, POOR, f"rm -r {bed.own}/deepspeed*")
    assert result.status == 69
    row = rows(result)[POOR]["deepspeed"]
    assert (row["status"], row["value"].split(",")[0]) == ("error", "0.18.2")
    assert "pip install deepspeed==" in row["hint"]
    assert rows(result)[FIRST]["deepspeed"]["status"] == "ok"


def there(bed: Bed, host: str, line: str) -> None:
    subprocess.run(["ssh", host, line], env=bed.environment(), check=True)


def test_a_script_whose_bytes_differ_is_found_with_its_host(bed: Bed, tmp_path: Path) -> None:
    script, config = bed.own / "train.py", bed.own / "ds_config.json"
    script.write_text("print(1)\n")
    config.write_text('{"train_batch_size": 4}')
    there(bed, POOR, f"echo 'print(2)' > {script}")
    try:
        result = doctor(bed, tmp_path, "--json", script, "--ds-config", config)
    finally:
        there(bed, POOR, f"rm {script}")
        script.unlink()
        config.unlink()
    assert result.status == 69
    found = rows(result)
    assert found[POOR]["file train.py"]["value"] == "differs from that of the other hosts"
    assert found[POOR]["file ds_config.json"]["value"] == "is not there"
    assert found[SECOND]["file train.py"]["status"] == "ok"


def test_a_clock_that_differs_is_found_with_its_host(bed: Bed, tmp_path: Path) -> None:
    """The Python of the second host believes that it is two minutes later."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        f"if os.environ.get('SSH_CONNECTION', '').split()[2:3] == ['{bed.network.address(SECOND)}']:\n"
        "    now = time.time\n"
        "    time.time = lambda: now() + 120\n"
    )
    result = doctor(bed, tmp_path, "--json", PYTHONPATH=str(tmp_path))
    found = rows(result)
    assert (found[SECOND]["clock"]["status"], found[SECOND]["clock"]["value"][:5]) == ("warning", "+120.")
    assert found[FIRST]["clock"]["status"] == "ok"
    assert result.status == 0


def test_a_closed_port_is_found_with_the_host_from_which_it_is_closed(bed: Bed, tmp_path: Path) -> None:
    space = bed.network.space(SECOND)
    blocked = contextmanager(_route)(
        ["ip", "-n", space, "route"], "prohibit", f"{bed.network.address(FIRST)}"
    )
    with blocked:
        result = doctor(bed, tmp_path, "--json")
    assert result.status == 69
    found = rows(result)
    assert found[SECOND]["rendezvous"]["value"].startswith(
        f"cannot connect to {FIRST}: {bed.network.address(FIRST)} port "
    )
    assert found[POOR]["rendezvous"]["status"] == "ok"


def test_a_smaller_mtu_is_found_with_its_host(bed: Bed, tmp_path: Path) -> None:
    change = ["ip", "-n", bed.network.space(SECOND), "link", "set", "eth0", "mtu"]
    subprocess.run([*change, "1400"], check=True)
    try:
        found = rows(doctor(bed, tmp_path, "--json"))
    finally:
        subprocess.run([*change, "1500"], check=True)
    assert found[SECOND]["interface"]["value"].startswith("eth0, MTU 1400")
    assert found[SECOND]["interface"]["status"] == "warning"


def test_packets_that_are_too_large_for_the_way_are_found_with_the_host(bed: Bed, tmp_path: Path) -> None:
    with bed.network.narrowed(SECOND, 1400):
        found = rows(doctor(bed, tmp_path, "--json"))
    assert found[SECOND]["interface"]["status"] == "ok"
    assert found[SECOND]["MTU"]["status"] == "warning"
    assert f"packets of 1500 bytes do not reach {FIRST}, but small ones do" in found[SECOND]["MTU"]["value"]
    assert (found[POOR]["MTU"]["status"], "MTU" in found[FIRST]) == ("ok", False)
    assert found[POOR]["MTU"]["value"] == f"packets of 1500 bytes reach {FIRST}"


def test_a_host_that_lacks_the_directory_says_so_in_its_own_words(bed: Bed, tmp_path: Path) -> None:
    (only_here := bed.own / "project").mkdir()
    try:
        result = doctor(bed, only_here, "--json")
    finally:
        only_here.rmdir()
    assert result.status == 69
    assert "project" in rows(result)[POOR]["zlaunch"]["value"]


def test_the_hosts_of_a_hostfile_are_examined(bed: Bed, tmp_path: Path) -> None:
    variables = {**bed.environment(), "HF_HUB_OFFLINE": "1"}
    result = zlaunch("doctor", "--hostfile", bed.hostfile, "--json", cwd=tmp_path, env=variables)
    assert set(rows(result)) == set(NAMES)
    assert Path(sys.executable).name in rows(result)[FIRST]["Python"]["value"]


def test_an_all_reduce_over_the_hosts_is_measured_beside_the_speed_of_the_interface(
    bed: Bed, tmp_path: Path
) -> None:
    result = doctor(bed, tmp_path, "--json", "--collective", hosts=NAMES)
    assert result.status == 0, result.out
    row = rows(result)[FIRST]["all-reduce"]
    assert " GB/s per rank, " in row["value"]
    assert "(gloo, 2 ranks)" in row["value"]
    assert row["value"].endswith("% of the interface's 10 Gbit/s")


def test_the_nodes_of_a_slurm_job_are_examined_with_srun(slurm: Slurm, tmp_path: Path) -> None:
    line = shlex.join([*ZLAUNCH, "doctor", "--slurm", "--json"])
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{line} > report.json\n")
    login = {"SSH_CONNECTION": "192.0.2.9 55555 192.0.2.1 22"}  # to the login node, and inherited by the job
    run("sbatch", "-N2", "--wait", "job.sh", cwd=tmp_path, env={**slurm.environment(), **login})
    report = json.loads((tmp_path / "report.json").read_text())
    assert [*report["hosts"]] == list(slurm.nodes)
    assert all(any(row["name"] == "torch" for row in host["rows"]) for host in report["hosts"].values())
    reached = {name: host["facts"]["connection"]["reached_at"] for name, host in report["hosts"].items()}
    assert reached == dict.fromkeys(slurm.nodes)
