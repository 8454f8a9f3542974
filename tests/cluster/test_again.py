"""A run over hosts, once more: from its record alone, over ssh again."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.bed import NAMES, Bed
from tests.cluster.ways import MPI_AS_ROOT
from tests.launchers import taken
from tests.making import ODD_NAME
from tests.running import run, zlaunch

pytestmark = pytest.mark.hosts

SHOW = """import os, sys
print(os.environ["FROM_FILE"], os.environ["NCCL_ODD"], os.getcwd(), sys.argv[1:], flush=True)
"""
SCRIPT = """import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:2])
print("from", os.environ["SSH_CONNECTION"].split()[2], flush=True)
"""


@pytest.mark.full
def test_a_run_over_hosts_is_repeated_on_the_same_hosts(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    hosts = tmp_path / "hosts"
    hosts.write_text(bed.hostfile.read_text())
    words = ["script.py", "--hostfile", hosts, "--run-dir", "runs/a", "--", "--word"]
    first = zlaunch("train", *words, cwd=tmp_path, env=bed.environment())
    assert first.status == 0, first.err
    hosts.unlink()
    again = zlaunch(
        "runs", "rerun", "a", "--json", "--run-dir", "runs/b", cwd=tmp_path, env=bed.environment()
    )
    assert again.status == 0, again.err
    assert json.loads(again.out.splitlines()[-1])["repeats"] == "a"
    assert said_in(tmp_path / "runs" / "b") == said_in(tmp_path / "runs" / "a")
    assert "rank 1 of 2 ['--word']" in said_in(tmp_path / "runs" / "b")[NAMES[1]]


def said_in(run: Path) -> dict[str, Any]:
    """Map hosts to what their ranks printed, the host's own address included."""
    ranks = json.loads((run / "job.json").read_text())["ranks"]
    return {slot["host"]: (run / "logs" / f"rank-{slot['rank']}.log").read_text() for slot in ranks}


@pytest.mark.full
@pytest.mark.parametrize("launcher", taken(("deepspeed", "openmpi", "torchrun"), 0))
def test_run_sh_repeats_a_run_in_a_directory_that_has_to_be_quoted(
    launcher: str, bed: Bed, tmp_path: Path
) -> None:
    """DeepSpeed's runner quotes neither its directory nor its variables; its `.deepspeed_env` counts even so."""
    (odd := tmp_path / ODD_NAME).mkdir()
    (odd / "show.py").write_text(SHOW)
    (odd / ".deepspeed_env").write_text("FROM_FILE=two  words\n")
    given = ["--env", "FROM_FILE=two  words"] if launcher == "torchrun" else []
    words = ["show.py", "--hostfile", bed.hostfile, "--launcher", launcher, *given, "--run-dir", "r"]
    known = {**bed.environment(), **MPI_AS_ROOT}
    environment = {**known, "NCCL_ODD": "$(touch pwned)"}
    first = zlaunch("train", *words, "--", "a  b", cwd=odd, env=environment)
    assert first.status == 0, first.err
    again = run("sh", odd / "r" / "run.sh", cwd=tmp_path, env=known)
    assert again.status == 0, again.out + again.err
    for rank in (0, 1):
        lines = (odd / "r" / "logs" / f"rank-{rank}.log").read_text().splitlines()
        assert lines == [f"two  words $(touch pwned) {odd} ['a  b']"] * 2
    assert not [*odd.rglob("pwned"), *Path("/").glob("pwned"), *Path.home().glob("pwned")]
