"""A hostfile with `port=` and `addr=`: hosts whose sshd listens elsewhere, and whose names only ssh knows."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster.bed import NAMES, OTHER_PORT, Bed
from tests.running import Result, the_run, zlaunch

pytestmark = pytest.mark.hosts

SHOW = """import os
import torch.distributed as dist
dist.init_process_group("gloo")
print("ranks", dist.get_world_size(), "at", os.environ["MASTER_ADDR"], "by port",
      os.environ["SSH_CONNECTION"].split()[3], flush=True)
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Site:
    """A directory with a hostfile, and the environment of someone whose ssh configuration has a wrong port."""

    folder: Path
    address: str
    environment: dict[str, str]

    def zlaunch(self, *words: object) -> Result:
        return zlaunch(*words, "--hostfile", "hosts", cwd=self.folder, env=self.environment)


@pytest.fixture
def site(bed: Bed, tmp_path: Path) -> Iterator[Site]:
    """The first host has a second address, which only `addr=` tells."""
    address = f"{bed.network.subnet}.101"
    change = ["ip", "-n", bed.network.space(NAMES[0]), "addr"], [f"{address}/24", "dev", "eth0"]
    lines = [f"{NAMES[0]} slots=1 port={OTHER_PORT} addr={address}", f"root@{NAMES[1]}:1 port={OTHER_PORT}"]
    (tmp_path / "hosts").write_text("\n".join(lines))
    config = tmp_path / "ssh.conf"
    config.write_text(f"Host *\n  Port 2\n{(bed.programs.parent / 'ssh.conf').read_text()}")
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    (tmp_path / "ssh").chmod(0o755)
    environment = {**bed.environment(), "HF_HUB_OFFLINE": "1"}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    subprocess.run([*change[0], "add", *change[1]], check=True)
    try:
        yield Site(tmp_path, address, environment)
    finally:
        subprocess.run([*change[0], "del", *change[1]], check=True)


def test_hosts_show_has_the_port_and_the_address(site: Site) -> None:
    rows = json.loads(site.zlaunch("hosts", "show", "--json").out)["hosts"]
    assert [row["reached_at"] for row in rows] == [
        f"{NAMES[0]} port {OTHER_PORT}, {site.address} for other hosts",
        f"root@{NAMES[1]} port {OTHER_PORT}",
    ]


def test_the_doctor_gets_in_and_tries_the_address(site: Site) -> None:
    result = site.zlaunch("doctor", "--json")
    assert result.status == 0, result.out
    hosts = json.loads(result.out)["hosts"]
    assert [*hosts] == [*NAMES]
    rows = {row["name"]: row for row in hosts[NAMES[1]]["rows"]}
    assert rows["rendezvous"]["status"] == "ok"
    (site.folder / "hosts").write_text((site.folder / "hosts").read_text().replace(site.address, "192.0.2.1"))
    there = json.loads(site.zlaunch("doctor", "--json").out)["hosts"][NAMES[1]]
    (rendezvous,) = [row for row in there["rows"] if row["name"] == "rendezvous"]
    assert rendezvous["status"] == "error"
    assert "192.0.2.1 port " in rendezvous["value"]


def test_a_job_uses_the_port_and_the_address(site: Site) -> None:
    (site.folder / "show.py").write_text(SHOW)
    result = site.zlaunch("train", "show.py", "--launcher", "torchrun", "--dry-run")
    assert result.status == 0, result.err
    assert site.address in result.out + result.err
    result = site.zlaunch("train", "show.py", "--launcher", "torchrun")
    assert result.status == 0, result.err
    logs = [file.read_text().splitlines()[-1] for file in (the_run(site.folder) / "logs").glob("rank-*.log")]
    assert logs == [f"ranks 2 at {site.address} by port {OTHER_PORT}"] * 2


def test_what_to_type_has_the_user_and_the_port(site: Site) -> None:
    (site.folder / "hosts").write_text(
        f"somebody@{NAMES[0]}:1 port={OTHER_PORT}\n{NAMES[1]}:1 port={OTHER_PORT}\n"
    )
    typed = f"-p {OTHER_PORT} somebody@{NAMES[0]}"
    (row,) = json.loads(site.zlaunch("doctor", "--json").out)["hosts"][NAMES[0]]["rows"]
    assert row["hint"].endswith(f"`ssh-copy-id {typed}`")
    assert f"`ssh-copy-id {typed}`" in " ".join(site.zlaunch("train", "--dry-run").err.split())
