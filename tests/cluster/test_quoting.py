"""Names that a shell takes apart arrive on other hosts as they are, through a real ssh and both launchers."""

import json
from pathlib import Path

import pytest

from tests.cluster.bed import Bed
from tests.running import zlaunch

pytestmark = pytest.mark.hosts

SHOW = """import json, os, pathlib, sys
seen = {"arguments": sys.argv[1:], "directory": os.getcwd(), "script": pathlib.Path(sys.argv[0]).name}
seen |= {name: os.environ.get(name) for name in ("NCCL_ODD", "PYTHON_ODD")}
print("seen", json.dumps(seen), flush=True)
"""
ODD = {
    "quotes and dollars": 'it\'s $(touch pwned) "a" `touch pwned` $HOME',
    "spaces and letters": " naïve  日本 ; touch pwned & ",
    "a line break": "one\ntwo # *",
}


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_names_arrive_as_they_are(launcher: str, bed: Bed, tmp_path: Path) -> None:
    for number, odd in enumerate(ODD.values()):
        folder = tmp_path / f"{number}{odd}"
        folder.mkdir()
        (folder / f"a{odd}.py").write_text(SHOW)
        words = [f"a{odd}.py", "--hostfile", bed.hostfile, "--launcher", launcher, "--run-dir", f"r{odd}"]
        environment = {**bed.environment(), "NCCL_ODD": odd, "PYTHON_ODD": odd}
        result = zlaunch("train", *words, "--", odd, f"--x={odd}", cwd=folder, env=environment)
        assert result.status == 0, result.err
        expected = {"arguments": [odd, f"--x={odd}"], "directory": str(folder), "script": f"a{odd}.py"}
        for rank in (0, 1):
            log = (folder / f"r{odd}" / "logs" / f"rank-{rank}.log").read_text()
            (line,) = [line for line in log.splitlines() if line.startswith("seen ")]
            assert json.loads(line.removeprefix("seen ")) == {**expected, "NCCL_ODD": odd, "PYTHON_ODD": odd}
    assert not [*tmp_path.rglob("pwned"), *Path("/").glob("pwned"), *Path.home().glob("pwned")]
