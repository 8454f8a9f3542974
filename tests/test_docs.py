import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.running import ROOT, zlaunch
from tests.test_learn import examples
from tools import (
    write_defects,
    write_endings,
    write_errors,
    write_jobs,
    write_models,
    write_options,
    write_systems,
)
from zlaunch.cli.views.findings import as_json, as_text
from zlaunch.config.codes import ELSEWHERE, GENERAL
from zlaunch.config.report import ReportOptions, inspect_config
from zlaunch.config.rules import RULES
from zlaunch.config.translate.programs import PROGRAMS
from zlaunch.dsconfig.keys.lookup import known_keys
from zlaunch.rundir.layout import RunDir

PAGES = [
    ROOT / "README.md",
    ROOT / "README.zh.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").rglob("*.md"),
]
WRITTEN = (write_defects, write_endings, write_errors, write_models, write_options, write_systems)
SURFACE = [line.split() for line in (ROOT / "tests" / "surface.txt").read_text("utf-8").splitlines()]


def commands(text: str) -> Iterator[list[str]]:
    """Find the zlaunch commands in code blocks and in backticks, up to the arguments of the script."""
    text = re.sub(r" \\\n +", " ", text)  # a command of several lines
    blocks = re.findall(r"^    (?:\$ )?(zlaunch .*)$(?!\n    error:)", text, re.MULTILINE)
    for command in (*blocks, *re.findall(r"`(zlaunch [^`]+)`", text)):
        yield re.split(r"\s#|\s\[?--\s|;", command + " ")[0].replace("[", " ").replace("]", " ").split()[1:]


def unknown_options(command: list[str]) -> list[str]:
    """Name the options that the command does not have."""
    depth = 2 if command[:1] in (["checkpoint"], ["config"], ["nvme"], ["runs"]) else 1
    known = {word for line in SURFACE if line[1 : 1 + depth] == command[:depth] for word in line[1 + depth :]}
    known |= {"--help"} | {f"--no-{word.removeprefix('--')}" for word in known}
    return [word for word in command[depth:] if re.match(r"--?[a-z]", word) and word not in known]


def anchors(page: Path) -> set[str]:
    """Write the anchors of a page's headings as GitHub does."""
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_command_in_the_docs_has_the_options_it_is_shown_with() -> None:
    shown = [(page.name, command) for page in PAGES for command in commands(page.read_text("utf-8"))]
    assert len(shown) > 60
    assert [one for one in shown if unknown_options(one[1])] == []


def test_every_link_in_the_docs_leads_to_a_file_and_a_heading() -> None:
    links = {
        (page, *target.partition("#")[::2])
        for page in PAGES
        for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8"))
        if not target.startswith("http")
    }
    broken = [
        f"{page.name}: {file}#{heading}"
        for page, file, heading in links
        if not (target := page.parent / file if file else page).exists()
        or (heading and heading not in anchors(target))
    ]
    assert broken == []


def test_every_page_of_the_docs_is_listed_in_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+)\)", (ROOT / "README.md").read_text("utf-8")))
    assert linked == {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}


@pytest.mark.parametrize("tool", WRITTEN, ids=lambda tool: tool.PAGE.name)
def test_a_page_that_is_written_from_tables_is_up_to_date(tool: ModuleType) -> None:
    assert tool.PAGE.read_text("utf-8") == tool.page(), "run `make docs`"


def test_the_page_about_other_launchers_has_a_command_of_each_program() -> None:
    shown = {command.split()[0] for command in write_options.EXAMPLES}
    assert shown == {program.name for program in PROGRAMS.values()}


def test_the_page_of_usual_jobs_has_a_row_for_each_question() -> None:
    shown = re.findall(r"^\| `(zlaunch init [^`]+)`", write_jobs.PAGE.read_text("utf-8"), re.MULTILINE)
    assert shown == [write_jobs.command(asked) for asked in write_jobs.questions()]
    assert len(shown) == 25


@pytest.mark.job
@pytest.mark.full
def test_an_answer_of_the_page_of_usual_jobs_is_what_is_planned() -> None:
    asked = next(write_jobs.questions())
    assert write_jobs.row(asked) in write_jobs.PAGE.read_text("utf-8").splitlines(), "run `make jobs`"


def test_what_fsdp_has_is_compared_with_keys_and_options_that_exist() -> None:
    text = "\n".join(option for option, _ in write_options.SHARDING.values())
    keys = [key.split(".") for key in re.findall(r"--set ([\w.]+)=", text)]
    assert [key for *section, key in keys if key not in known_keys({}, tuple(section))] == []
    options = {word for line in SURFACE if line[1:2] == ["train"] for word in line}
    assert set(re.findall(r"--[a-z-]+", text)) <= options


@pytest.mark.program
@pytest.mark.parametrize(("command", "lines"), examples(write_options.PAGE), ids=lambda text: str(text)[:60])
def test_the_commands_on_the_page_about_other_launchers_print_what_it_shows(
    command: str, lines: list[str], tmp_path: Path
) -> None:
    done = zlaunch(*shlex.split(command)[1:], cwd=tmp_path, env={"COLUMNS": "80"})
    printed = (done.out + done.err).splitlines()
    assert [line for line in lines if line.strip() not in ("", "…") and line not in printed] == []


def test_every_code_that_is_written_in_the_source_is_explained() -> None:
    files = [file for file in (ROOT / "zlaunch").rglob("*.py") if file.parent.name != "rules"]
    text = "".join(file.read_text("utf-8") for file in files)
    found = {code for _, code in re.findall(r"[Ff]inding\(\s*(code=)?\"([a-z-]+)\"", text)}
    assert found - {*GENERAL, *ELSEWHERE, *(rule.code for rule in RULES)} == set()


MISSPELLED = """{
  "train_micro_batch_size_per_gpu": 4,
  "zero_optimisation": {
    "stage": 3
  }
}
"""
"""The file of the first example of `config validate`."""


@pytest.mark.parametrize("page", ["README.md", "docs/config.md"])
def test_the_output_of_validate_in_the_docs_is_what_it_prints(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds_config.json").write_text(MISSPELLED)
    as_text([inspect_config("ds_config.json", ReportOptions())], strict=False)
    printed = [line.strip() for text in capsys.readouterr() for line in text.splitlines()]
    block = (ROOT / page).read_text("utf-8").partition("    $ zlaunch config validate ds_config.json\n")[2]
    shown = [line.strip() for line in block.partition("\n\n")[0].splitlines()]
    assert [line for line in shown if line not in (*printed, "…")] == []


def test_the_json_of_validate_in_the_docs_is_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds_config.json").write_text(MISSPELLED)
    as_json([inspect_config("ds_config.json", ReportOptions())], strict=False)
    printed = json.loads(capsys.readouterr().out)
    block = (ROOT / "docs/config.md").read_text("utf-8").partition('    {\n      "files": [')
    shown = json.loads("".join(block[1:]).partition("\n\n")[0])
    printed["findings"][0]["message"] = "…"
    assert shown == printed


def test_every_file_of_a_run_directory_is_in_the_table_of_its_page() -> None:
    files = {path.relative_to("run").parts[0] for path in run_files(RunDir(Path("run")))}
    table = (
        (ROOT / "docs" / "runs.md")
        .read_text("utf-8")
        .partition("| file | contents |")[2]
        .partition("\n\n")[0]
    )
    cells = {name.rstrip("/") for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row[:70])}
    assert len(files) > 15
    assert files - cells == set()


def run_files(layout: RunDir) -> Iterator[Path]:
    for name, kind in vars(RunDir).items():
        if type(kind).__name__ == "_Below":
            yield getattr(layout, name)
