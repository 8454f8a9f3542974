"""`zlaunch train -m`: a module runs as `python -m` runs it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import Result, run, zlaunch

TRAIN = """
import json, sys
from .part import value

known = {
    "name": __name__,
    "package": __package__,
    "spec": __spec__.name,
    "program": sys.argv[0],
    "arguments": [word for word in sys.argv[1:] if word.startswith("--word")],
    "path": sys.path,
    "file": __file__,
    "value": value,
}
print(json.dumps(known), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    package = folder / "pack" / "age"
    package.mkdir(parents=True)
    (folder / "pack" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "part.py").write_text("value = 7\n")
    (package / "train.py").write_text(TRAIN)
    (package / "__main__.py").write_text("from . import train\n")
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> Result:
    words = ("-m", "pack.age.train", "--gpus", "1", "--run-dir", "first", "--word=1", "--", "--word=2")
    return zlaunch("train", *words, cwd=folder)


def known(result: Result) -> dict[str, Any]:
    """Read what the program found; torchrun's environment must not change it."""
    lines = [line for line in result.out.splitlines() if line.startswith("{")]
    assert lines, result.err
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def by_python(folder: Path) -> dict[str, Any]:
    return known(run(sys.executable, "-m", "pack.age.train", "--word=1", "--word=2", cwd=folder))


@pytest.mark.job
def test_a_module_sees_what_python_itself_would_show_it(folder: Path, trained: Result) -> None:
    assert known(trained) == by_python(folder)


@pytest.mark.job
def test_the_script_that_repeats_a_run_by_hand_runs_the_module(folder: Path, trained: Result) -> None:
    assert known(run("sh", "first/run.sh", cwd=folder)) == by_python(folder)


@pytest.mark.job
def test_a_run_of_a_module_is_repeated_as_a_module(folder: Path, trained: Result) -> None:
    again = zlaunch("runs", "rerun", "first", "--run-dir", "second", cwd=folder)
    assert known(again) == by_python(folder)


@pytest.mark.job
def test_a_record_names_the_module_and_its_file(folder: Path, trained: Result) -> None:
    job = json.loads((folder / "first" / "job.json").read_text())
    file = str(folder / "pack" / "age" / "train.py")
    assert (job["module"], job["script"][0]) == ("pack.age.train", file)


def dry_run(folder: Path, *words: str) -> Result:
    return zlaunch("train", *words, "--gpus", "1", "--dry-run", cwd=folder)


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_the_command_that_is_shown_names_the_module(launcher: str, folder: Path) -> None:
    result = dry_run(folder, "--module", "pack.age", "--launcher", launcher)
    flag = "-m" if launcher == "torchrun" else "--module"
    assert f" {flag} pack.age\n" in result.out


def test_a_run_directory_is_named_after_the_module(folder: Path) -> None:
    result = dry_run(folder, "-m", "pack.age.train")
    assert [line for line in result.out.splitlines() if line.startswith("run ") and line.endswith("-train")]


def test_the_source_of_a_module_is_read_as_a_scripts_is(folder: Path) -> None:
    (folder / "wrong.py").write_text("TrainingArguments(deepspeed='mine.json')\n")
    assert "the ds_config of the script itself (wrong.py:1)" in dry_run(folder, "-m", "wrong").out


def test_a_module_that_is_not_there_is_one_error(folder: Path) -> None:
    result = dry_run(folder, "-m", "pack.age.trian")
    assert (result.status, len(result.err.splitlines())) == (66, 2)
    assert "did you mean `-m pack.age.train`?" in result.err


@pytest.mark.parametrize("words", [("--lr", "3"), ("data.yaml", "--lr", "3"), ("data.yaml",)])
def test_what_follows_a_module_is_for_the_module(words: tuple[str, ...], folder: Path) -> None:
    (folder / "free.py").write_text("print('hello')\n")
    assert f" -m free {' '.join(words)}\n" in dry_run(folder, "-m", "free", *words).out


def test_two_programs_are_one_too_many(folder: Path) -> None:
    (folder / "script.py").touch()
    result = dry_run(folder, "script.py", "-m", "pack.age")
    assert (result.status, "both name a program" in result.err) == (2, True)
