from dataclasses import replace
from pathlib import Path

import pytest

from tests.facts import facts_of
from tests.hosts.machine.test_compiled_ops import build, environment
from tests.making import CPU_MACHINE, SHAPE, local, script
from zlaunch.cli.views.launch import LaunchView
from zlaunch.hosts.machine.op_cache import OpCache
from zlaunch.job.spec import JobSpec
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.op_build import advice_on, build_missing
from zlaunch.rundir.layout import RunDir


@pytest.mark.parametrize(
    "output",
    [
        "/bin/sh: 1: c++: not found",
        "/bin/sh: line 1: c++: command not found",
        "/bin/sh: line 1: g++: command not found",
        "FileNotFoundError: [Errno 2] No such file or directory: '/usr/bin/g++'",
    ],
)
def test_a_compiler_that_is_missing_is_to_be_installed(output: str) -> None:
    assert "apt-get install g++" in advice_on(output)


def test_a_compiler_that_found_an_error_is_not_to_be_installed() -> None:
    assert (
        advice_on("c++ -O3 -c op.cpp\nop.cpp:3:1: error: nothing is declared") == "see the compiler's output"
    )


def test_extensions_of_a_script_are_copied_even_if_the_job_needs_no_ops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were compiled without zlaunch; the ranks would compile them again."""
    python = environment(tmp_path / "venv")
    (python.folder("torch")).mkdir(parents=True)
    (python.folder("torch") / "version.py").write_text("cuda = None\n")
    cache = OpCache(tmp_path / "py312_cpu-1", tmp_path / "py312_cpu", "")
    build(cache.standard / "cpu_adam", python)
    inputs = facts_of(
        job=JobSpec(Path("train.py")),
        script=script(),
        ds_config=None,
        model=SHAPE,
        machine=CPU_MACHINE,
        topology=local(0),
        layout=RunDir(tmp_path / "run"),
        environ={},
        python=python,
        op_cache=cache,
    )
    plan = replace(make_plan(inputs), ops=())
    variables = {name: variable.value for name, variable in plan.environment.items()}
    assert build_missing(plan, variables, LaunchView(), if_killed=()) is None
    assert (cache.folder / "cpu_adam" / "cpu_adam.so").exists()
    assert capsys.readouterr().err == f"copied cpu_adam from {cache.standard}\n"
