from dataclasses import replace
from pathlib import Path

import pytest

from zlaunch.errors import Unavailable
from zlaunch.job.spec import JobSpec
from zlaunch.launch.inspect import default_recipe
from zlaunch.launch.plan import LaunchPlan, PlanInputs, make_plan
from zlaunch.launch.prepare import prepare
from zlaunch.launch.run import LaunchOptions, run
from zlaunch.launch.rundir_writer import check_unused, check_writable


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def test_a_run_directory_that_another_run_took_is_named(work: Path) -> None:
    def overtaken(inputs: PlanInputs) -> LaunchPlan:
        inputs.layout.logs.mkdir(parents=True)
        return make_plan(inputs)

    prepared = replace(prepare(JobSpec(default_recipe()), Path("../mine")), make_plan=overtaken)
    with pytest.raises(Unavailable, match=r"took the run directory `\.\./mine`"):
        run(prepared, LaunchOptions(interactive=False, force=True), lambda _: None)
    assert (work.parent / "mine" / "logs").is_dir()


def test_a_directory_that_is_not_empty_is_named_without_detours(work: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        check_unused(work / "..")
    assert caught.value.message == f"`--run-dir {work.parent}` is not empty"


def test_a_directory_that_cannot_be_made_is_named_without_detours(work: Path) -> None:
    (work.parent / "file").touch()
    with pytest.raises(Unavailable) as caught:
        check_writable(work / ".." / "file" / "run", "--run-dir")
    assert (
        caught.value.message == f"`--run-dir {work.parent}/file/run`: {work.parent}/file is not a directory"
    )
