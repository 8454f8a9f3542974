"""What a run leaves: a record of a known shape, without secrets. How runs end is in tests/deaths."""

from pathlib import Path

import pytest

from tests.running import zlaunch

pytestmark = pytest.mark.job

SCRIPT = "import os, sys; os.environ.get('ZLAUNCH_DS_CONFIG'); sys.exit(7)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def test_a_run_leaves_a_record_of_its_known_shape(folder: Path) -> None:
    """Of two ranks, the launcher may end the first one before its program has begun."""
    zlaunch("train", "script.py", "--gpus", "1", "--run-dir", "r", cwd=folder)
    assert {path.name for path in (folder / "r").iterdir()} - {"secrets.json"} == {  # is there if any are set
        "ds_config.json", "environment.json", "job.json", "logs", "how-it-ended.json", "metrics.jsonl", "provenance.json", "ranks",
        "run.sh", "save-at", "steps.jsonl",
    }  # fmt: skip


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_job_leaves_nothing_among_temporary_files(folder: Path, launcher: str) -> None:
    (temporary := folder / "tmp").mkdir()
    argv = ("train", "script.py", "--launcher", launcher)
    result = zlaunch(*argv, cwd=folder, env={"TMPDIR": str(temporary)})
    assert (result.status, list(temporary.rglob("*"))) == (7, [])


def test_secrets_in_the_environment_are_never_written(folder: Path) -> None:
    secret = {"HF_TOKEN": "hf_nobodymayknow", "NCCL_KEY": "nobodymayknow"}
    zlaunch("train", "script.py", "--run-dir", "r", cwd=folder, env=secret)
    written = [file for file in (folder / "r").rglob("*") if file.is_file()]
    assert not [file for file in written if b"nobodymayknow" in file.read_bytes()]


def test_arguments_reach_the_script_with_their_spaces(folder: Path) -> None:
    (folder / "show.py").write_text("import sys\nprint(sys.argv[1:5])\n")
    words = ["--text", "two  words", "$HOME; rm {}", 'it\'s "quoted"']
    result = zlaunch("train", "show.py", "--", *words, cwd=folder)
    assert str(words) in result.out
