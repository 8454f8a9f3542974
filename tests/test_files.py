"""Files that cannot be looked at, and a disk that is full, which a limit on their size stands for."""

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.irregular import KINDS, within
from tests.running import ROOT
from zlaunch.errors import Unavailable
from zlaunch.files import identities, read_regular, why_not_directory, write_back, write_new, write_whole

LIMIT_BYTES = 1000


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Let no file grow beyond the limit; Python ignores the signal that comes with the error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_a_new_file_that_does_not_fit_is_not_left_in_part(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="File too large"):
        write_new(tmp_path / "ds.json", "x" * (LIMIT_BYTES + 1))
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_copy_does_not_fit_stays_as_it_is(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = tmp_path / "ds.json"
    file.write_text("x" * (LIMIT_BYTES + 1))
    request.getfixturevalue("full_disk")
    with pytest.raises(Unavailable, match="File too large"):
        write_back(file, "shorter", keep=True)
    assert [one.name for one in tmp_path.iterdir()] == ["ds.json"]
    assert file.stat().st_size == LIMIT_BYTES + 1


def test_what_cannot_be_looked_at_is_not_there(tmp_path: Path) -> None:
    assert identities([tmp_path / ("a" * 300), tmp_path]).keys() == {tmp_path}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_a_file_is_opened_and_nothing_is_waited_for(kind: str, tmp_path: Path) -> None:
    KINDS[kind](tmp_path / "file")
    with within(5), pytest.raises(OSError):  # noqa: PT011 - each kind has its own
        read_regular(tmp_path / "file")


@pytest.mark.parametrize(
    ("name", "said"), [("a", "`a` is not a directory"), ("b", "there is no directory `b`")]
)
def test_a_file_in_the_place_of_a_directory_is_told_from_nothing(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").touch()
    assert why_not_directory(Path(name)) == said


def test_a_pipe_is_called_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "latest")
    with pytest.raises(OSError, match="it is a named pipe, not a file"):
        read_regular(tmp_path / "latest")


def test_bytes_of_an_argument_that_are_not_utf_8_are_kept(tmp_path: Path) -> None:
    write_whole(tmp_path / "run.sh", os.fsdecode(b"train.py \xff"))
    assert (tmp_path / "run.sh").read_bytes() == b"train.py \xff"


def test_a_program_that_prints_to_a_full_disk_ends_as_it_would(tmp_path: Path) -> None:
    program = "from zlaunch.files import print_line; print_line('the end'); raise SystemExit(7)"
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stdout=full, check=False)
    assert ended.returncode == 7


def test_what_reads_checkpoints_and_runs_opens_regular_files_alone() -> None:
    raw = re.compile(r"\.read_text\(|\.read_bytes\(|\.open\((\"rb\"|encoding|\))|ZipFile\((self\.)?file\)")
    packages = (ROOT / "zlaunch" / name for name in ("checkpoint", "resume", "rundir", "runs", "diagnosis"))
    files = chain.from_iterable(sorted(package.rglob("*.py")) for package in packages)
    assert [file.name for file in files if raw.search(file.read_text("utf-8"))] == []
