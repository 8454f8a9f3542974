"""Words that a shell takes apart arrive on other hosts as they are: any words, any login shell, both launchers."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.cluster.bed import NAMES, Bed
from tests.cluster.conftest import require
from tests.cluster.network import missing
from tests.launchers import FIRST_OF_EACH
from tests.running import zlaunch
from zlaunch.hosts.agent.host_command import GREETING
from zlaunch.hosts.agent.ssh import remote_line, ssh_command, with_python_variables
from zlaunch.hosts.cluster.topology import Host
from zlaunch.secrets import is_secret

pytestmark = pytest.mark.hosts

ODD = (
    'it\'s $(touch pwned) "a" `touch pwned` $HOME',
    " naïve  日本 ; touch pwned & ",
    "one\ntwo # *",
    "!! !$ \\ \\n %n %h ~ {a,b} [x] <in >out | \r\t",
)
_LETTERS = "'\"\\$`!\n \t*?[]{}()<>|&;#~^%=-@:+.,é日😀\r\x01\x7f\u2028aB0"


def words(alphabet: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Words that have been trouble, and words of letters that may be; the simplest one is trouble, too."""
    return st.one_of(st.sampled_from(ODD), st.text(alphabet, max_size=24))


LETTERS = st.one_of(
    st.sampled_from(_LETTERS), st.characters(exclude_categories=["Cs"], exclude_characters="\0")
)
TEXTS = words(LETTERS)
VALUES = TEXTS.filter(lambda text: not is_secret("PYTHON_ODD", text))
NAMES_OF_FILES = st.builds(
    lambda odd, more: (odd + more).replace("/", "|").encode()[:90].decode("utf-8", "ignore"),
    st.sampled_from(ODD),
    st.text(LETTERS, max_size=24),
)
UNDECODABLE = words(st.one_of(LETTERS, st.sampled_from("\udc80\udcff")))
"""Names of files need not be UTF-8."""

_LENT = [HealthCheck.function_scoped_fixture]
SAME_EVERY_TIME = settings(derandomize=True, deadline=None, database=None, suppress_health_check=_LENT)
SEEN = """import os, sys
words = [os.getcwdb(), os.environb[b"PYTHON_ODD"], *map(os.fsencode, sys.argv[1:])]
sys.stdout.buffer.write(b"\\0".join(words))
"""


@dataclass(frozen=True)
class Line:
    """A program that prints what it sees, and what that must be."""

    argv: list[str]
    variable: str
    expected: bytes

    def written(self, write: Callable[[list[str]], str]) -> str:
        """The line of shell, for one who has this variable and is in the directory."""
        here = Path.cwd()
        os.chdir(os.fsdecode(self.expected.split(b"\0")[0]))
        try:
            with mock.patch.dict(os.environ, {"PYTHON_ODD": self.variable}):
                return write(self.argv)
        finally:
            os.chdir(here)


def line(folder: Path, name: str, variable: str, arguments: list[str]) -> Line:
    directory = folder / f"d{name}"
    directory.mkdir(exist_ok=True)
    argv = [sys.executable, "-I", "-S", "-c", SEEN, *arguments]
    return Line(argv, variable, b"\0".join(map(os.fsencode, [str(directory), variable, *arguments])))


def of_a_job(argv: list[str], greeting: str | None = None) -> str:
    return remote_line(with_python_variables(argv), str(Path.cwd()), greeting)


def of_doctor(argv: list[str]) -> str:
    return of_a_job(argv, GREETING)


SHELLS = ("sh", "bash", "zsh", "tcsh", "fish")


@settings(SAME_EVERY_TIME, max_examples=20)
@given(
    NAMES_OF_FILES, UNDECODABLE.filter(lambda text: not is_secret("PYTHON_ODD", text)), st.lists(UNDECODABLE)
)
def test_every_login_shell_passes_words_on(
    tmp_path: Path, name: str, variable: str, arguments: list[str]
) -> None:
    require("login shells", missing(SHELLS))
    asked = line(tmp_path, name, variable, arguments)
    job, doctor = asked.written(of_a_job), asked.written(of_doctor)
    for shell in SHELLS:
        environment = {"PATH": os.environ["PATH"], "HOME": str(Path.home())}  # sshd sets no locale
        found = [
            subprocess.run([shell, "-c", one], env=environment, stdout=subprocess.PIPE, check=False).stdout
            for one in (job, doctor)
        ]
        assert found == [asked.expected, f"{GREETING}\n".encode() + asked.expected], shell


@settings(SAME_EVERY_TIME, max_examples=8)
@given(NAMES_OF_FILES, VALUES, st.lists(TEXTS))
def test_ssh_passes_words_on(
    bed: Bed, tmp_path: Path, name: str, variable: str, arguments: list[str]
) -> None:
    asked = line(tmp_path, name, variable, arguments)
    argv = ssh_command(Host(NAMES[1], ()), asked.written(of_a_job))
    found = subprocess.run(argv, env=bed.environment(), stdout=subprocess.PIPE, check=False)
    assert found.stdout == asked.expected


@dataclass(frozen=True)
class Job:
    """Everything about a job that has a name."""

    directory: str
    script: str
    run: str
    arguments: list[str]
    variables: dict[str, str]


JOBS = st.builds(
    Job,
    directory=NAMES_OF_FILES,
    script=NAMES_OF_FILES,
    run=NAMES_OF_FILES,
    arguments=st.lists(TEXTS, min_size=20),
    variables=st.fixed_dictionaries({"NCCL_ODD": VALUES, "PYTHON_ODD": VALUES, "ASKED": VALUES}),
)
SHOW = """import json, os, pathlib, sys
seen = {"arguments": sys.argv[1:], "directory": os.getcwd(), "script": pathlib.Path(sys.argv[0]).name}
seen |= {name: os.environ.get(name) for name in ("NCCL_ODD", "PYTHON_ODD", "ASKED")}
print("seen", json.dumps(seen), flush=True)
"""


@pytest.mark.parametrize("launcher", FIRST_OF_EACH)
@settings(SAME_EVERY_TIME, max_examples=2, phases=[Phase.generate])
@given(job=JOBS)
def test_a_job_has_the_names_it_was_given(launcher: str, bed: Bed, job: Job) -> None:
    with TemporaryDirectory() as parent:
        folder, script = Path(parent, f"d{job.directory}"), f"s{job.script}.py"
        folder.mkdir()
        (folder / script).write_text(SHOW)
        environment = {**bed.environment(), **job.variables}
        environment.pop("ASKED")
        flags = ["--hostfile", bed.hostfile, "--launcher", launcher, "--run-dir", f"r{job.run}"]
        flags += ["--env", f"ASKED={job.variables['ASKED']}"]
        result = zlaunch("train", script, *flags, "--", *job.arguments, cwd=folder, env=environment)
        assert result.status == 0, result.err
        expected = {"arguments": job.arguments, "directory": str(folder), "script": script, **job.variables}
        for rank in (0, 1):
            log = (folder / f"r{job.run}" / "logs" / f"rank-{rank}.log").read_text()
            (seen,) = [text for text in log.splitlines() if text.startswith("seen ")]
            assert json.loads(seen.removeprefix("seen ")) == expected
        assert not [*Path(parent).rglob("pwned"), *Path("/").glob("pwned"), *Path.home().glob("pwned")]
