import tempfile
from pathlib import Path

import pytest

from zlaunch.estimate.rehearsal.program.confinement import Confinement


@pytest.fixture
def confinement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Confinement:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return Confinement(folder)


def test_a_file_that_is_appended_to_is_copied_first(confinement: Confinement, tmp_path: Path) -> None:
    file = tmp_path / "history.txt"
    file.write_text("before\n")
    with Path(confinement._place(str(file), True)).open("a") as copy:
        copy.write("after\n")
    assert Path(confinement._place(str(file), False)).read_text() == "before\nafter\n"
    assert file.read_text() == "before\n"


def test_a_file_that_is_replaced_is_not_copied(confinement: Confinement, tmp_path: Path) -> None:
    file = tmp_path / "history.txt"
    file.write_text("before\n")
    assert not Path(confinement._place(str(file), True, replaces=True)).exists()
