"""What keeps one host of several from taking part in a training is said with its name, before ranks start."""

from pathlib import Path

import pytest

from tests.cluster.bed import NAMES, POOR, Bed
from tests.cluster.test_hosts import working_in
from tests.cluster.test_python import with_packages
from tests.running import Result, run, zlaunch

pytestmark = pytest.mark.hosts


def train(bed: Bed, folder: Path, script: Path, *hosts: str) -> Result:
    (folder / "hosts").write_text("".join(f"{host}\n" for host in hosts))
    words = ["train", script, "--hostfile", "hosts", "--launcher", "torchrun", "--run-dir", "r"]
    return zlaunch(*words, cwd=folder, env=bed.environment())


def a_script(folder: Path) -> Path:
    (script := folder / "show.py").write_text("print('ran')\n")
    return script


def said_of(result: Result, code: str) -> str:
    return " ".join(result.err.partition(f"[{code}]")[2].split())


def test_ssh_that_is_refused_by_one_of_three_hosts_names_it(bed: Bed, tmp_path: Path) -> None:
    hosts = [f"{NAMES[0]} slots=1", f"{NAMES[1]} slots=1 port=9", f"{POOR} slots=1"]
    result = train(bed, tmp_path, a_script(tmp_path), *hosts)
    said = f"error: {NAMES[1]}: connection refused: no ssh server listens on port 9"
    assert (result.status, said in " ".join(result.err.split())) == (69, True), result.err
    assert not any(name in result.err for name in (NAMES[0], POOR))


def test_another_version_of_a_package_is_refused_with_its_host(bed: Bed, tmp_path: Path) -> None:
    python = with_packages(tmp_path / "own")
    (packages,) = (tmp_path / "own").glob("lib/python*/site-packages")
    (packages / "deepspeed-0.1.2.dist-info").mkdir()
    (packages / "deepspeed-0.1.2.dist-info" / "METADATA").write_text("Name: deepspeed\nVersion: 0.1.2\n")
    hosts = [f"{NAMES[0]} slots=1", f"{NAMES[1]} slots=1 python={python}"]
    result = train(bed, tmp_path, a_script(tmp_path), *hosts)
    assert (result.status, f"{NAMES[1]} [other-version]" in result.err) == (65, True), result.err
    assert "deepspeed 0.1.2, but" in said_of(result, "other-version")
    assert f"on {NAMES[0]}" in said_of(result, "other-version")


def test_a_script_with_other_bytes_is_refused_with_its_host(bed: Bed, tmp_path: Path) -> None:
    script = a_script(bed.own)
    try:
        other = run("ssh", POOR, f"echo 'print(2)' > {script}", cwd=tmp_path, env=bed.environment())
        assert other.status == 0, other.err
        result = train(bed, tmp_path, script, f"{NAMES[0]} slots=1", f"{POOR} slots=1")
    finally:
        run("ssh", POOR, f"rm {script}", cwd=tmp_path, env=bed.environment())
        script.unlink()
    assert (result.status, f"{POOR} [other-script]" in result.err) == (65, True), result.err
    assert not (tmp_path / "r" / "ranks").exists()


def test_a_closed_port_between_hosts_is_the_verdict_of_the_one_behind_it(bed: Bed, tmp_path: Path) -> None:
    with bed.closed_ports(NAMES[1], to=NAMES[0]):
        hosts = [f"{name} slots=1" for name in NAMES]
        result = train(bed, tmp_path, a_script(tmp_path), *hosts)
    said = " ".join(result.err.split())
    assert result.status == 1, result.err
    assert f"{NAMES[1]} could not start its ranks: it cannot connect to port " in said
    assert not working_in(tmp_path)
