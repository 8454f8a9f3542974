"""`zlaunch train --debug`: an editor attaches to one rank while the other waits in a collective."""

import inspect
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from tests.editor import Editor
from tests.making import local, over_ssh
from tests.running import Program, Result, run, start, zlaunch
from zlaunch.errors import WrongUsage
from zlaunch.hosts.cluster.topology import Host
from zlaunch.job.spec import Debug, parse_debug
from zlaunch.launch.plan import Listener, listener
from zlaunch.rundir import phases
from zlaunch.rundir.run_files import RunFiles
from zlaunch.worker.hook.debug import debug_environment, lift_timeouts
from zlaunch.worker.hook.debug_timeouts import PATIENCE, PATIENT

SCRIPT = """
import datetime, os, sys
before = list(sys.path), dict(os.environ)  # line 3
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index * index  # line 13, in a worker

short = datetime.timedelta(seconds=2)
dist.init_process_group("gloo", timeout=short)
group = dist.new_group([0, 1], timeout=short)
answer = torch.tensor([dist.get_rank() + 1])
print(__name__, sys.argv[:2], sys.path == before[0], os.environ.get("PYTHONPATH"), flush=True)
if dist.get_rank() == 0:
    total = int(answer.sum())  # line 21
dist.all_reduce(answer, group=group)
dist.barrier()
items = [int(item) for item in DataLoader(Squares(), num_workers=1, batch_size=None)]
print("sum", int(answer), items, "DEEPSPEED_TIMEOUT", os.environ["DEEPSPEED_TIMEOUT"], flush=True)
"""
FIRST, IN_WORKER, WAITED_FOR = 3, 13, 21
STANDS_SECONDS = 4
"""Longer than the script's own timeouts, and than a stall."""


@dataclass(frozen=True)
class Session:
    """A job of which rank 0 was debugged, as far as it was seen."""

    folder: Path
    port: int
    configuration: dict[str, Any]
    first: dict[str, Any]
    second: dict[str, Any]
    total: str
    result: Result

    def log(self, rank: int) -> str:
        return (self.folder / "r" / "logs" / f"rank-{rank}.log").read_text()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("debugged")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    port = a_free_port()
    words = ["script.py", "--gpus", "2", "--debug", f"0:{port}", "--run-dir", "r", "--stall-after", "1"]
    argv = [sys.executable, "-m", "zlaunch", "train", *words, "--", "--word"]
    with (
        (folder / "out").open("w") as out,
        (folder / "err").open("w") as err,
        Program(argv, cwd=folder, stdout=out, stderr=err) as job,
    ):
        wait_for(lambda: "attach now" in (folder / "err").read_text())
        editor = Editor("127.0.0.1", port)
        configuration = pasted((folder / "err").read_text())
        editor.attach(configuration, {str(script): [FIRST, IN_WORKER, WAITED_FOR]})
        first = editor.stopped()
        wait_for(lambda: phase_of(folder, 1) == phases.JOINING)
        time.sleep(STANDS_SECONDS)
        editor.go_on(first)
        second = editor.stopped()
        total = editor.evaluate("int(answer.sum()) + 41", second)
        time.sleep(STANDS_SECONDS)
        editor.go_on(second)
        status = job.wait(180)
        editor.close()
    result = Result(status, (folder / "out").read_text(), (folder / "err").read_text())
    return Session(folder, port, configuration, first, second, total, result)


def phase_of(folder: Path, rank: int) -> str:
    return RunFiles(folder / "r").heartbeats.get(rank, {}).get("phase", "")


def wait_for(condition: Callable[[], bool], seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def a_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def debuggers(port: int) -> list[str]:
    words = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    return [line for line in words if "debugpy" in line and str(port) in line]


def pasted(text: str) -> dict[str, Any]:
    """Take from the terminal what a person would paste."""
    found = re.search(r"^\{\n.*?^\}", text, re.DOTALL | re.MULTILINE)
    assert found, text
    configuration: dict[str, Any] = json.loads(found.group())
    return configuration


@pytest.mark.job
def test_the_rank_waits_before_the_first_line_of_its_script(session: Session) -> None:
    assert session.first["line"] == FIRST


@pytest.mark.job
def test_the_rank_stops_at_a_breakpoint(session: Session) -> None:
    assert (session.second["line"], session.second["name"]) == (WAITED_FOR, "<module>")


@pytest.mark.job
def test_what_is_known_at_a_breakpoint_can_be_asked(session: Session) -> None:
    assert session.total == "42"


@pytest.mark.job
def test_the_other_rank_waits_longer_than_its_own_timeouts(session: Session) -> None:
    assert session.result.status == 0, session.log(1)
    assert "sum 3" in session.log(1)


@pytest.mark.job
def test_a_rank_at_a_breakpoint_is_no_stall(session: Session) -> None:
    assert "no progress for" not in session.result.err
    assert not (session.folder / "r" / "ask-stacks").exists()


@pytest.mark.job
@pytest.mark.parametrize("rank", [0, 1])
def test_workers_of_a_dataloader_run_past_breakpoints(rank: int, session: Session) -> None:
    assert "[0, 1, 4, 9]" in session.log(rank)


@pytest.mark.job
def test_the_script_is_the_same_under_the_debugger(session: Session) -> None:
    assert session.log(0).startswith("__main__ ['script.py', '--word'] True ")


@pytest.mark.job
def test_nothing_is_printed_by_the_debugger(session: Session) -> None:
    assert [line.split()[0] for line in session.log(0).splitlines()] == ["__main__", "sum"]


@pytest.mark.job
def test_variables_that_time_out_are_raised_too(session: Session) -> None:
    assert "DEEPSPEED_TIMEOUT 10080" in session.log(1)


@pytest.mark.job
def test_what_is_pasted_names_the_port_and_leaves_workers_alone(session: Session) -> None:
    assert session.configuration["connect"] == {"host": "127.0.0.1", "port": session.port}
    assert session.configuration["subProcess"] is False
    roots = {"localRoot": str(session.folder), "remoteRoot": str(session.folder)}
    assert session.configuration["pathMappings"] == [roots]


@pytest.mark.job
def test_no_debugger_is_left_when_the_job_has_ended(session: Session) -> None:
    assert debuggers(session.port) == []


@pytest.mark.job
def test_the_terminal_says_when_to_attach(session: Session) -> None:
    assert "rank 0 listens: attach now" in session.result.err


@pytest.mark.job
def test_a_job_that_waits_for_its_editor_ends_when_it_is_told_to(tmp_path: Path) -> None:
    port = a_free_port()
    (tmp_path / "script.py").write_text("print('begun')")
    with start(
        "train", "script.py", "--gpus", "2", "--debug", f"1:{port}", "--run-dir", "r", cwd=tmp_path
    ) as job:
        wait_for(lambda: phase_of(tmp_path, 1) == phases.ATTACHING)
        job.send_signal(signal.SIGTERM)
        assert job.wait(10) == 128 + signal.SIGTERM
    assert (tmp_path / "r" / "logs" / "rank-1.log").read_text() == ""
    assert debuggers(port) == []


@pytest.mark.parametrize(
    ("text", "debug"), [("0", Debug(0, 5678)), ("12:1", Debug(12, 1)), ("1:65535", Debug(1, 65535))]
)
def test_a_rank_and_a_port_are_read(text: str, debug: Debug) -> None:
    assert parse_debug(text) == debug


@pytest.mark.parametrize("text", ["", "x", "-1", "1:", ":5678", "1:0", "1:65536", "1:2:3", "0,1", "1.5"])
def test_what_is_no_rank_and_port_is_refused_with_what_to_type(text: str) -> None:
    with pytest.raises(WrongUsage) as refused:
        parse_debug(text)
    assert "--debug" in str(refused.value.hint)


def test_on_one_host_a_rank_listens_on_this_machine() -> None:
    assert listener(Debug(1, 7), local(0, 1)) == Listener(1, "localhost", 7)


def test_over_ssh_a_rank_listens_on_its_own_host() -> None:
    hosts = over_ssh(Host("w0", (0, 1)), Host("w1", (0, 1)))
    assert listener(Debug(2, 7), hosts) == Listener(2, "w1", 7)


def test_a_rank_that_will_not_be_there_is_refused() -> None:
    with pytest.raises(WrongUsage, match="ranks 0 to 1"):
        listener(Debug(2, 7), local(0, 1))


def dry_run(folder: Path, debug: str, **env: str) -> Result:
    (folder / "script.py").write_text("")
    return zlaunch("train", "script.py", "--gpus", "1", "--debug", debug, "--dry-run", cwd=folder, env=env)


def test_a_dry_run_says_what_debugging_changes(tmp_path: Path) -> None:
    result = dry_run(tmp_path, f"0:{(port := a_free_port())}")
    assert f"rank 0 waits for a debugger on 127.0.0.1:{port}" in " ".join(result.out.split())
    assert [name for name in PATIENT if f"{name}=" not in result.out] == []


def test_a_port_that_is_taken_is_refused_before_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = dry_run(tmp_path, f"0:{taken.getsockname()[1]}")
    assert (result.status, re.findall(r"hint: write `--debug 0:\d+`", result.err) != []) == (69, True)


def test_a_port_that_was_in_use_until_now_is_free(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            taken.accept()[0].close()
    assert dry_run(tmp_path, f"0:{port}").status == 0


def test_without_debugpy_the_user_is_told_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    hiding = "import sys\nsys.modules['debugpy'] = None\n"
    (hidden / "sitecustomize.py").write_text(hiding)
    path = os.pathsep.join([str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = dry_run(tmp_path, "0", PYTHONPATH=path)
    assert (result.status, "-m pip install debugpy`" in result.err) == (69, True)


def test_a_rank_that_cannot_listen_says_so_and_ends(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        debug = json.dumps({"rank": 3, "port": port})
        program = f"from zlaunch.worker.hook.debug import await_editor\nawait_editor({debug!r})"
        result = run(sys.executable, "-c", program, cwd=tmp_path, env={"RANK": "3"})
    assert (result.status, f"debugger on 127.0.0.1:{port}" in result.err) == (69, True)


def test_without_a_debugger_the_ranks_have_their_usual_environment() -> None:
    assert debug_environment(None) == {}


@pytest.mark.parametrize("given", [{}, {"timeout": None}, {"timeout": 1}])
def test_every_timeout_becomes_the_same(given: dict[str, Any]) -> None:
    groups = ModuleType("groups")
    groups.new_group = lambda ranks, timeout=None: (ranks, timeout)  # type: ignore[attr-defined]
    lift_timeouts(groups)
    assert groups.new_group([0], **given) == ([0], PATIENCE)


def test_a_timeout_that_is_given_by_its_place_is_replaced() -> None:
    groups = ModuleType("groups")
    groups.init_process_group = lambda backend=None, method=None, timeout=None: timeout  # type: ignore[attr-defined]
    lift_timeouts(groups)
    assert groups.init_process_group("gloo", "env://", 1) == PATIENCE


@pytest.mark.job
@pytest.mark.parametrize(
    "name", ["init_process_group", "new_group", "split_group", "monitored_barrier", "_set_pg_timeout"]
)
def test_what_times_out_in_torch_is_where_it_is_looked_for(name: str) -> None:
    from torch.distributed import distributed_c10d

    assert "timeout" in inspect.signature(getattr(distributed_c10d, name)).parameters
