"""What hosts answer, and why some do not; `ssh` and `srun` are programs that print."""

import json
import socket
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import run

import pytest
from pydantic import TypeAdapter

from tests.making import ODD_NAME, PYTHON
from tests.running import ROOT
from zlaunch.errors import Unavailable
from zlaunch.hosts.adapters import adapter_of
from zlaunch.hosts.agent.answers import ask_hosts, asking
from zlaunch.hosts.agent.own_code import own_code
from zlaunch.hosts.agent.ssh_errors import explain
from zlaunch.hosts.cluster.topology import Host, Reach
from zlaunch.hosts.machine.facts import Compilers, Cuda, Failure, Files, GpuLinks, MachineFacts, Ports
from zlaunch.hosts.machine.hub import Hub
from zlaunch.hosts.machine.network import Connection, Interface, Network
from zlaunch.hosts.machine.op_cache import OpCache
from zlaunch.hosts.machine.op_states import OpState
from zlaunch.hosts.machine.ports import free_port
from zlaunch.hosts.machine.question import Question, read_question
from zlaunch.hosts.machine.resources import (
    Cgroup,
    Disk,
    Driver,
    FreeResources,
    Gpu,
    GpuProcess,
    Machine,
    weakest,
)
from zlaunch.json_lines import ANSWER, answers_in, plain
from zlaunch.whereabouts import Whereabouts

GPU = Gpu(0, "NVIDIA H100", "GPU-1", 80 << 30, (9, 0), 70 << 30, (GpuProcess(7, "python a.py", "bob", 1),))
FACTS = MachineFacts(
    PYTHON,
    Machine("w0.cluster", 96, 1 << 40, (GPU, replace(GPU, index=1)), (2,), driver=Driver("570", "12.8")),
    FreeResources(
        memory_bytes=1 << 39,
        cgroup=Cgroup("/sys/fs/cgroup/job", 3, 2),
        shm=Disk(9, 2, 1),
        disks={Path("/nvme"): Disk(1, 2, 1)},
    ),
    Files(frozenset({Path("/runs")}), {Path("/runs"): (12, 1 << 60)}, {Path("/train.py"): None}),
    OpCache(Path("/ext/own"), Path("/ext"), "torch 2.13"),
    {"cpu_adam": OpState("left-lock", lock="/ext/lock", age=5.0)},
    Ports(29500, "Address already in use", 5679),
    Connection("10.0.0.9", "10.0.0.1"),
    "/usr/bin",
    Cuda("12.8", "2.27.3"),
    GpuLinks("matrix", ((True, False), (False, True))),
    Compilers("12.2.0", "1.13", None, True),
    Network("w0", (Interface("eth0", "10.0.0.1", 1500),), {}, Whereabouts("w0", "b", "p")),
    ("10.0.0.1",),
    Hub("https://hub", error="refused"),
    {"ops": Failure("no torch", None)},
    0.5,
)


def test_what_a_host_says_arrives_whole() -> None:
    line = json.dumps({ANSWER: plain(FACTS)})
    assert TypeAdapter(MachineFacts).validate_python(answers_in(line)[0]) == FACTS


def test_an_answer_is_one_line_whatever_programs_are_called() -> None:
    odd = GpuProcess(7, "a\u2028b\udcff\n")
    facts = replace(FACTS, hardware=replace(FACTS.machine, gpus=(replace(GPU, processes=(odd,)),)))
    line = json.dumps({ANSWER: plain(facts)})
    assert (line.splitlines(), len(answers_in(f"Welcome\n{line}\nlogout"))) == ([line], 1)
    assert TypeAdapter(MachineFacts).validate_python(answers_in(line)[0]) == facts


def test_what_a_host_is_asked_arrives_whole() -> None:
    asked = Question(
        topics=("hardware",),
        environ={"DS_ACCELERATOR": "cpu"},
        python=Path("/venv/bin/python"),
        needed=("torch",),
        packages=("debugpy",),
        paths=(Path("/nvme"),),
        identified=(Path("/runs"),),
        compared=(Path("/train.py"),),
        ops={"cpu": ("cpu_adam",)},
        debug_port=5678,
    )
    assert read_question(asked.to_json()) == asked
    assert read_question(Question().to_json()) == Question()


def test_a_host_is_asked_with_the_python_that_its_line_names() -> None:
    argv = asking(Host("elsewhere", (0,), python="/opt/python"), Question(python=Path("/other")), Reach.SSH)
    assert argv[:3] == ["/opt/python", "-m", "zlaunch.hosts.agent.program"]
    assert read_question(argv[3]).python is None


def test_a_host_without_one_is_asked_with_this_python() -> None:
    argv = asking(Host("elsewhere", (0,)), Question(python=Path("/other")), Reach.SSH)
    assert argv[0] == sys.executable
    assert read_question(argv[-1]).python == Path("/other")


def test_the_program_on_a_host_imports_nothing_slow() -> None:
    program = (
        "import sys, zlaunch.hosts.agent.program; print(*{'pydantic', 'torch', 'yaml'} & {*sys.modules})"
    )
    done = run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


REACHED = "echo zlaunch asks; "


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Fake":
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("zlaunch.hosts.agent.answers.CONNECT_SECONDS", 0)
    monkeypatch.setattr("zlaunch.hosts.agent.answers.ANSWER_SECONDS", 1)
    return Fake(tmp_path)


class Fake:
    """Programs that do what these lines of shell say instead of reaching a host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def does(self, line: str, program: str = "ssh") -> None:
        (self.folder / program).write_text(f"#!/bin/sh\n{line}\n")
        (self.folder / program).chmod(0o755)

    def answers(self, answer: object, code: str | None = own_code()) -> None:
        first = "" if code is None else json.dumps({ANSWER: {"code": code}})
        (self.folder / "answer").write_text(f"{first}\n{json.dumps({ANSWER: plain(answer)})}")
        self.does(
            f"{REACHED}printf 'Welcome!\\nno end'; echo; cat {self.folder}/answer; echo; echo a warning"
        )


def refused(*hosts: Host, reach: Reach = Reach.SSH) -> Unavailable:
    with pytest.raises(Unavailable) as error:
        ask_hosts(hosts, Question(), reach)
    return error.value


def test_an_answer_is_found_among_what_a_login_prints(fake: Fake) -> None:
    fake.answers({"facts": FACTS})
    expected = replace(FACTS, hardware=replace(FACTS.machine, hostname="w0"))
    assert ask_hosts([Host("w0", ())], Question()) == {"w0": expected}


def test_what_reads_the_answers_of_many_hosts_is_built_once(fake: Fake) -> None:
    fake.answers({"facts": FACTS})
    adapter_of.cache_clear()
    ask_hosts([Host(f"w{number}", ()) for number in range(3)], Question())
    assert adapter_of.cache_info().misses == 1


def test_a_host_with_another_zlaunch_is_refused(fake: Fake) -> None:
    fake.answers({"facts": FACTS}, "0.1.0, code 00000000")
    expected = f"w0: has another zlaunch (0.1.0, code 00000000) than this host ({own_code()})"
    assert refused(Host("w0", ())).message == expected


def test_a_host_with_a_zlaunch_that_does_not_say_which_is_refused(fake: Fake) -> None:
    fake.answers({"facts": FACTS}, None)
    assert refused(Host("w0", ())).message == "w0: has another zlaunch, which does not say its version"


def test_a_host_whose_answer_lacks_members_is_refused(fake: Fake) -> None:
    fake.answers({"facts": {"machine": {}}})
    assert refused(Host("w0", ())).message == "w0: gave an answer that cannot be read"


def test_what_keeps_a_host_from_an_answer_is_said_with_its_name(fake: Fake) -> None:
    fake.answers({"failure": Failure("it lacks torch", "`pip install torch`")})
    error = refused(Host("w0", ()))
    assert (error.message, error.hint) == ("w0: it lacks torch", "on w0: `pip install torch`")


def test_a_host_whose_gpus_cannot_be_used_is_refused(fake: Fake) -> None:
    fake.answers(
        {"facts": replace(FACTS, hardware=None, failures={"hardware": Failure("torch has no CUDA")})}
    )
    assert refused(Host("w0", ())).message == "w0: torch has no CUDA"


@pytest.mark.parametrize(
    ("ssh", "said"),
    [
        (f"{REACHED}cd /nowhere", "w1: cannot start in this directory: "),
        ("exit 255", "w1: ssh printed nothing"),
        (
            "echo 'ssh: connect to host w1 port 22: Connection refused' >&2; exit 255",
            "w1: connection refused: no ssh server listens on port 22",
        ),
        ("exec sleep 60", "w1: no answer from w1 within"),
        (f"{REACHED}exit 255", "w1: the connection was lost"),
        (f"echo Welcome; {REACHED}exec sleep 60", "w1: no answer within 1 s"),
        (f"{REACHED}printf 'no \\351t\\351'", f"w1: cannot run zlaunch with {sys.executable}: no "),
        (f"{REACHED}echo 'python: not found' >&2; exit 127", f"with {sys.executable}: python: not found"),
    ],
    ids=[
        "no directory",
        "not a word",
        "closed port",
        "silence",
        "breaks off",
        "too late",
        "no UTF-8",
        "no Python",
    ],
)
def test_why_a_host_does_not_answer_is_told_apart(ssh: str, said: str, fake: Fake) -> None:
    fake.does(ssh)
    assert said in refused(Host("w1", (0,))).message


def test_hosts_with_the_same_reason_are_named_together(fake: Fake) -> None:
    fake.does(f"{REACHED}exit 255")
    assert refused(Host("w1", ()), Host("w2", ())).message == "w1, w2: the connection was lost"


def test_a_lost_connection_comes_with_the_command_that_may_show_why(fake: Fake) -> None:
    fake.does(f"{REACHED}exit 255")
    lost = refused(Host("w0", (), user="ann", port=2222))
    assert lost.hint == "`ssh -v -p 2222 ann@w0 true` may show why"


@pytest.mark.parametrize(
    ("srun", "expected"),
    [
        ("echo no node; exit 1", "w2: srun cannot start a task: no node"),
        (f"{REACHED}exit 255", "w2: the connection was lost"),
    ],
)
def test_what_srun_could_not_do_says_nothing_of_ssh(srun: str, expected: str, fake: Fake) -> None:
    fake.does(srun, program="srun")
    error = refused(Host("w2", (0,)), reach=Reach.SRUN)
    assert error.message == expected
    assert "ssh" not in f"{error.message} {error.hint}"
    assert "`srun --nodes=1 --nodelist=w2 --overlap true`" in str(error.hint)


RUNS_IT_HERE = """#!/bin/sh
for command; do :; done
cd / && exec sh -c "$command"
"""
WRAPPER = """#!/bin/sh
pwd > "$(dirname "$0")/started-in"
exec {python} "$@"
"""


def test_a_host_is_surveyed_in_this_directory_by_this_python_whatever_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ssh` hands its last argument to a real shell, as sshd does."""
    (odd := tmp_path / ODD_NAME).mkdir()
    for name, text in (("ssh", RUNS_IT_HERE), ("python", WRAPPER.format(python=sys.executable))):
        (odd / name).write_text(text)
        (odd / name).chmod(0o755)
    monkeypatch.chdir(odd)
    monkeypatch.setenv("PATH", f"{odd}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", f"{odd}:{ROOT}")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setattr(sys, "executable", str(odd / "python"))
    there = ask_hosts([Host("w1", (0,))], Question(identified=(odd,)))["w1"]
    assert (odd / "started-in").read_text() == f"{odd}\n"
    assert there.files is not None
    assert odd in there.files.identities
    assert there.path == f"{odd}:/usr/bin:/bin"


def test_hosts_of_which_only_some_have_gpus_are_refused_by_name() -> None:
    with pytest.raises(Unavailable, match="w0"):
        weakest([Machine("w0", 1, 1), FACTS.machine])


@pytest.mark.parametrize("order", [1, -1])
def test_among_gpus_of_one_age_those_with_less_memory_are_the_weakest(order: int) -> None:
    sizes = {"w0": 81920, "w1": 40960}
    machines = [Machine(name, 1, 1, (replace(GPU, memory_bytes=size << 20),)) for name, size in sizes.items()]
    found = weakest(machines[::order])
    assert found.gpus[0].memory_bytes == 40960 << 20


def test_nobody_listens_on_a_free_port() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_a_name_that_stands_for_no_machine_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    failure = explain("ssh: Could not resolve hostname node0: Name or service not known", Host("node0", (0,)))
    assert failure.message == "the name node0 cannot be resolved"
    assert failure.hint.endswith("a job on this machine alone needs no hostfile")
