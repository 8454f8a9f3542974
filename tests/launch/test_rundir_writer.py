import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import facts_of
from tests.making import ODD_NAME, SHAPE, TWO_GPUS, interpreter, local, script
from tests.making import over_ssh as over_hosts
from zlaunch.cli.views.launch import LaunchView
from zlaunch.errors import Unavailable
from zlaunch.files import check_writable
from zlaunch.hosts.cluster.topology import Host
from zlaunch.hosts.rank_environment import Variable
from zlaunch.job.recipes import default_recipe
from zlaunch.job.spec import JobSpec, Offload
from zlaunch.launch.backends import backend_of
from zlaunch.launch.launcher import Backend
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.prepare import prepare
from zlaunch.launch.run import run
from zlaunch.launch.rundir_writer import command_script
from zlaunch.rundir.choose import check_unused
from zlaunch.rundir.layout import RunDir


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def test_a_run_directory_that_another_run_took_is_named(work: Path) -> None:
    options = LaunchOptions(run_dir=Path("../mine"), force=True)
    facts = prepare(JobSpec(default_recipe()), options, LaunchView())
    facts.layout.logs.mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"took the run directory `\.\./mine`"):
        run(facts, options, LaunchView())
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


def test_a_directory_below_a_link_to_nothing_cannot_be_made(work: Path) -> None:
    (work / "runs").symlink_to("gone")
    with pytest.raises(Unavailable, match="runs is a link to nothing"):
        check_writable(work / "runs" / "first", "--run-dir")


SHOW = """#!/bin/sh
pwd; echo "$ODD"; printf "%s\\n" "$@"
"""


@pytest.mark.parametrize("over_ssh", [False, True])
def test_run_sh_runs_in_its_directory_and_cleans_up_whatever_they_are_called(
    over_ssh: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real shell runs it from elsewhere, with a program of the test in place of Python."""
    (odd := tmp_path / ODD_NAME).mkdir()
    monkeypatch.chdir(odd)
    stop = RunDir(odd / "run").stop
    for directory in (stop.parent, *(odd / word for word in ("s", "a"))):
        directory.mkdir()
    stop.touch()
    python = odd / "bin" / "python"
    python.parent.mkdir()
    python.write_text(SHOW)
    python.chmod(0o755)
    inputs = facts_of(
        job=JobSpec(
            Path("train.py"),
            stage=3,
            offload=Offload("nvme", "none"),
            nvme_dir=odd,
            launcher="deepspeed" if over_ssh else None,
        ),
        script=script(),
        ds_config=None,
        model=SHAPE,
        machine=TWO_GPUS,
        topology=over_hosts(Host("w0", (0,))) if over_ssh else local(0, 1),
        layout=RunDir(odd / "run"),
        environ={},
        python=interpreter(str(odd)),
    )
    variables = {"ODD": Variable(ODD_NAME, "")}

    def odd_backend(launcher: str) -> Backend:
        return replace(backend_of(launcher), build_argv=lambda *_: ("launcher", str(odd), "two  words"))

    monkeypatch.setattr("zlaunch.launch.plan.backend_of", odd_backend)
    plan = replace(make_plan(inputs), environment=variables)
    (swap,) = plan.swap_dirs
    swap.mkdir()
    done = subprocess.run(
        ["sh", "-c", command_script(plan)], cwd="/", capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    folder = (
        "/" if over_ssh else str(odd)
    )  # DeepSpeed's runner does not quote it; the rank program goes there
    assert done.stdout.splitlines() == [folder, ODD_NAME, "-P", "-m", "launcher", str(odd), "two  words"]
    assert (swap.exists(), stop.exists()) == (False, not over_ssh)
    assert {path.name for path in odd.iterdir()} == {"run", "s", "a", "bin"}
