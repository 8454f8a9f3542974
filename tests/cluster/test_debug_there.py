"""`--debug` of a rank on another host: an editor comes to it through the tunnel that is shown."""

import contextlib
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.bed import NAMES, Bed
from tests.cluster.test_hosts import wait_until
from tests.editor import Editor
from tests.program.test_debug import a_free_port, pasted
from tests.running import ZLAUNCH, Program, zlaunch

pytestmark = pytest.mark.hosts

SCRIPT = """import os, pathlib, time
rank = int(os.environ["RANK"])
met = pathlib.Path("met")
if rank == 1:
    met.touch()  # line 5
while not met.exists():
    time.sleep(0.1)
print("rank", rank, "went on", flush=True)
"""
STANDS_AT = 5
LISTENS = """import socket, sys
server = socket.create_server(("127.0.0.1", 5699))
print(flush=True)
sys.stdin.read()
"""


def test_an_editor_attaches_to_a_rank_on_another_host(bed: Bed, tmp_path: Path) -> None:
    script, err, port = tmp_path / "script.py", tmp_path / "err", a_free_port()
    script.write_text(SCRIPT)
    words = ["script.py", "--hostfile", bed.hostfile, "--debug", f"1:{port}", "--run-dir", "r"]
    argv = [*ZLAUNCH, "train", *map(str, words), "--stall-after", "1"]
    with err.open("w") as shown:
        job = subprocess.Popen(argv, cwd=tmp_path, env=bed.environment(), stderr=shown)
    tunnel = None
    try:
        wait_until(lambda: "attach now" in err.read_text(), 200)
        tunnel = subprocess.Popen(tunnel_of(err.read_text()), env=bed.environment())
        editor = attached(pasted(err.read_text()), port, script)
        frame = editor.stopped()
        assert (frame["line"], (tmp_path / "met").exists()) == (STANDS_AT, False)
        editor.go_on(frame)
        assert job.wait(60) == 0, err.read_text()
    finally:
        for process in filter(None, (job, tunnel)):
            process.terminate()
            process.wait(30)
    assert "no progress for" not in err.read_text()


def tunnel_of(text: str) -> list[str]:
    """Take the command from the terminal that a person would type."""
    found = re.search(r"`(ssh -N [^`]*)`", " ".join(text.split()))
    assert found, text
    return found[1].split()


def attached(configuration: dict[str, Any], port: int, script: Path) -> Editor:
    """Attach as an editor does, as soon as the tunnel is there."""
    assert configuration["connect"] == {"host": "127.0.0.1", "port": port}
    reached: list[Editor] = []

    def reach() -> bool:
        with contextlib.suppress(ConnectionRefusedError):
            reached.append(Editor("127.0.0.1", port))
        return bool(reached)

    wait_until(reach, 20)
    reached[0].attach(configuration, {str(script): [STANDS_AT]})
    return reached[0]


def test_a_port_that_is_taken_on_another_host_is_refused_before_the_start(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    # it ends when its stdin does; without a terminal, sshd would leave it behind
    there = ["ssh", NAMES[1], sys.executable, "-c", shlex.quote(LISTENS)]
    pipe = subprocess.PIPE
    with Program(there, env=bed.environment(), stdin=pipe, stdout=pipe) as taken:
        assert taken.stdout is not None
        taken.stdout.readline()
        flags = ["--hostfile", bed.hostfile, "--debug", "1:5699", "--dry-run"]
        result = zlaunch("train", "script.py", *flags, cwd=tmp_path, env=bed.environment())
    assert result.status == 69
    assert f"cannot listen on {NAMES[1]}: Address already in use" in " ".join(result.err.split())
