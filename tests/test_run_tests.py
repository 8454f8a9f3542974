"""`make test` runs every part and sums up, whatever failed before."""

from pathlib import Path

import pytest

from tools.run_tests import main


def test_a_part_that_fails_or_cannot_start_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_one.py").write_text("def test_a():\n    assert False\n\ndef test_b():\n    pass\n")
    (tmp_path / "test_two.py").write_text("def test_c():\n    pass\n")
    here = ("-n", "0", "-p", "no:cacheprovider", f"--rootdir={tmp_path}")
    parts = {
        "fails": (*here, str(tmp_path / "test_one.py")),
        "is not there": (*here, str(tmp_path / "test_nothing.py")),
        "passes": (*here, str(tmp_path / "test_two.py")),
    }
    assert main(parts) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-5:-1] for line in lines if line.startswith("fails")] == [["fails", "1", "1", "0"]]
    assert any(line.startswith("is not there") and "pytest exited with 4" in line for line in lines)
    assert [line.split()[:4] for line in lines if line.startswith("passes")] == [["passes", "1", "0", "0"]]
    assert lines[-1] == "2 passed, 1 failed, 0 skipped"
