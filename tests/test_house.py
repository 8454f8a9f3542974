"""The house rules that no linter knows."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import IMPORTED
from tests.running import ROOT
from tools.report import modules, places

PACKAGE = ROOT / "zlaunch"
MODULES = sorted(file for file in PACKAGE.rglob("*.py") if file.relative_to(PACKAGE).parts[0] != "recipes")
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager"}
HEAVY = ("torch", "transformers", "accelerate", "datasets", "deepspeed", "huggingface_hub", "numpy", "rich")
MOST_INNER_IMPORTS = 57
SLOW = ("psutil", "pynvml", "dataclasses", "inspect", "socket", "shutil", "pydantic")


def test_a_class_name_is_used_once() -> None:
    places: dict[str, list[str]] = {}
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(file.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_conditional_expression_contains_another() -> None:
    dense = ("nested conditional expressions", "star lists")
    assert [str(place) for place in places(modules(ROOT)) if place.kind in dense] == []


def test_tests_that_are_only_collected_import_no_torch(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.stash[IMPORTED] & {"torch", "transformers", "deepspeed", "accelerate"} == set()


def test_no_module_is_an_attic() -> None:
    assert [
        file for file in MODULES if FORBIDDEN_NAMES & {*file.relative_to(ROOT).with_suffix("").parts}
    ] == []


def test_every_program_is_started_behind_one_door() -> None:
    doors = {
        str(file.relative_to(PACKAGE))
        for file in MODULES
        if re.search(r"^import subprocess|os\.(exec\w+|fork)\(", file.read_text(), re.MULTILINE)
    }
    # two of them fork rehearsals, two the ranks of a check, and one becomes the program that cleans up
    checking = {"parity/program/trial_run.py", "parity/program/script.py"}
    rehearsing = {"estimate/rehearsal/__main__.py", "estimate/rehearsal/program/__main__.py"}
    assert doors == {"process.py", *rehearsing, *checking, "worker/reaper.py"}


def test_no_program_of_ours_is_started_with_the_working_directory_in_its_path() -> None:
    """As `python -m` does."""
    assert [file for file in MODULES if re.search(r'"-m",\s*"zlaunch\.', file.read_text())] == []


def test_frozen_dataclasses_are_declared_in_one_way() -> None:
    """Those of the standard library take six times as long to declare."""
    slow = re.compile(
        r"^from dataclasses import .*\bdataclass\b(?=[\s\S]*^@dataclass\(frozen=True)", re.MULTILINE
    )
    assert [file for file in MODULES if slow.search(file.read_text())] == []


def test_no_string_is_unpacked_into_its_characters() -> None:
    """As in `*("name")`, which lacks the comma of a tuple."""
    assert [file for file in MODULES if re.search(r'\*\(\s*"[^"]*"\s*\)', file.read_text())] == []


def test_one_room_prints() -> None:
    printers = {
        str(file.relative_to(PACKAGE))
        for file in MODULES
        if re.search(r"(?<![\w.])print\(|sys\.std(out|err)\.(buffer\.)?write|os\.write\(1,", file.read_text())
    }
    assert printers == {
        "console.py",
        "files.py",
        "estimate/rehearsal/__main__.py",
        "json_lines.py",
        "parity/program/__main__.py",
        "worker/node.py",
        "worker/rank.py",
    }  # all but the first are programs


def inner_imports(file: Path) -> set[str]:
    """Find imports of zlaunch inside functions, as file:line."""
    functions = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef))
    return {
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "zlaunch"
    }


def test_few_functions_import_from_zlaunch() -> None:
    found = sorted(place for file in MODULES for place in inner_imports(file))
    assert len(found) <= MOST_INNER_IMPORTS, "\n".join(found)


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["train", "--help"],
        ["train", "--dry-run"],
        ["config", "validate", "configs/zero3.json"],
        ["config", "resolve", "configs/zero3.json"],
        ["config", "explain", "stage"],
        ["config", "diff", "configs/zero2.json", "configs/zero3.json"],
        ["config", "schema"],
        ["config", "translate", "--", "deepspeed", "train.py"],
        ["config", "write"],
        ["runs", "list"],
        ["recipes", "show", "causal_lm"],
        pytest.param(
            ["estimate", "recipes/small_llama", "--on", "H100-80GB", "--stage", "3", "--no-levers"],
            marks=pytest.mark.job,
        ),
    ],
)
def test_a_command_that_trains_nothing_imports_nothing_heavy(argv: list[str]) -> None:
    program = (
        f"import sys\nfrom zlaunch.cli import main\nsys.argv = ['zlaunch', *{argv!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"


RUNS_JOBS = (
    *("yaml", "zlaunch.checkpoint", "zlaunch.cli.job_file", "zlaunch.diagnosis", "zlaunch.runs"),
    *("zlaunch.launch.attempts", "zlaunch.launch.monitoring", "zlaunch.launch.submit"),
    *("zlaunch.hosts.cluster.rendezvous", "zlaunch.estimate.rehearsal", "zlaunch.worker.rank"),
)
PLANS_JOBS = ("zlaunch.config", "zlaunch.dsconfig", "zlaunch.launch.facts", "psutil", "pynvml")


@pytest.mark.parametrize(
    ("argv", "unneeded"),
    [
        (["train", "--help"], (*RUNS_JOBS, *PLANS_JOBS, "pydantic")),
        (
            ["train", "--dry-run"],
            (
                *RUNS_JOBS,
                "zlaunch.config.translate",
                "zlaunch.config.accelerate",
                "zlaunch.worker.hook.heartbeat",
            ),
        ),
        (
            ["config", "validate", "configs/zero3.json"],
            (*RUNS_JOBS, "zlaunch.launch", "zlaunch.job.script_reader", "psutil", "pynvml"),
        ),
        (
            ["doctor"],
            (*RUNS_JOBS, "zlaunch.launch", "zlaunch.job.script_reader", "zlaunch.checks.collective"),
        ),
        (
            ["runs", "list"],
            (*sorted({*RUNS_JOBS} - {"zlaunch.diagnosis", "zlaunch.runs"}), *PLANS_JOBS, "pydantic"),
        ),
    ],
    ids=" ".join,
)
def test_a_command_does_not_import_what_another_needs(argv: list[str], unneeded: tuple[str, ...]) -> None:
    program = (
        f"import sys\nfrom zlaunch.cli import main\nsys.argv = ['zlaunch', *{argv!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"names = {unneeded!r}\n"
        "print([name for name in sys.modules if name.startswith(tuple(f'{one}.' for one in names)) or name in names])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "name", ["zlaunch.worker.guard", "zlaunch.worker.rank", "zlaunch.worker.hook.attach"]
)
def test_what_a_script_waits_for_imports_nothing_slow(name: str) -> None:
    program = f"import sys, {name}\nprint([name for name in {SLOW!r} if name in sys.modules])\n"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_the_image_installs_what_the_makefile_installs() -> None:
    makefile, dockerfile = ((ROOT / name).read_text() for name in ("Makefile", "Dockerfile"))
    packages = re.search(r"^APT_PACKAGES := (.*)$", makefile, re.MULTILINE)
    assert packages
    assert [name for name in packages.group(1).split() if name not in dockerfile.split()] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_recipe_is_one_file_in_the_checkout_and_in_the_package() -> None:
    assert (PACKAGE / "recipes").resolve() == ROOT / "recipes"


def test_ci_runs_what_a_person_would_run() -> None:
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and line[0] != "#"]
    assert commands == [
        "set -euo pipefail",
        'cd "$(dirname "$0")/.."',
        "make --jobs 2 check ops",
        "make test",
    ]


def test_every_package_of_the_contract_is_in_the_guide_in_its_order() -> None:
    layers = re.search(
        r"^layers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE
    )
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    table = re.search(r"^\| package \|.*?\n\n", guide, re.DOTALL | re.MULTILINE)
    assert layers
    assert table
    named = re.findall(r"^\| ((?:`\w+/?` ?)+)\|", table.group(), re.MULTILINE)
    assert re.findall(r"\w+", " ".join(named)) == re.findall(r"zlaunch\.(\w+)", layers.group(1))


def test_the_top_of_the_package_holds_packages_and_ground_modules_only() -> None:
    modules = {file.stem for file in PACKAGE.glob("*.py")}
    ground = {
        "console",
        "errors",
        "files",
        "frozen",
        "json_lines",
        "other_values",
        "process",
        "secrets",
        "units",
        "whereabouts",
    }
    assert modules == {"__init__", "__main__", *ground, "rank", "report"}  # the last two are old names
