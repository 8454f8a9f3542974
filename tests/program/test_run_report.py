"""`zlaunch runs report`: a page for every run, whatever its state."""

import json
import os
import re
from html import unescape
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.browser import dom, noted, watched_copy
from tests.recorded_run import GIB, HOSTILE, SECRET, write_run
from tests.running import zlaunch
from zlaunch.cli.views.run_page import page as page_of
from zlaunch.units import brief, memory

pytestmark = pytest.mark.program

MOST_SECONDS = 1.0
"""Until a page of 10,000 steps is drawn."""
TRIES = 5
"""Other programs use the cores of this test, so the fastest of so many loads counts, and their load is allowed for."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_run(folder / "runs" / "hostile", 10_000, HOSTILE)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    result = zlaunch("runs", "report", "hostile", cwd=folder)
    assert (result.status, result.out, result.err) == (0, "runs/hostile/report.html\n", "")
    return folder / "runs" / "hostile" / "report.html"


def test_a_page_is_written_again_but_never_over_another_file(page: Path, folder: Path) -> None:
    assert zlaunch("runs", "report", "hostile", "--html", page, cwd=folder).status == 0
    (folder / "train.py").write_text("print(1)")
    result = zlaunch("runs", "report", "hostile", "--html", "train.py", cwd=folder)
    assert (result.status, result.out) == (69, "")
    assert "`train.py` already exists and is not a page about a run" in result.err
    assert (folder / "train.py").read_text() == "print(1)"


def test_a_page_or_its_data_can_be_printed(folder: Path) -> None:
    assert zlaunch("runs", "report", "hostile", "--html", "-", cwd=folder).out.startswith("<!DOCTYPE html>")
    assert json.loads(zlaunch("runs", "report", "hostile", "--json", cwd=folder).out)["state"] == "failed"


def test_a_directory_that_cannot_be_written_names_another_file(folder: Path) -> None:
    result = zlaunch("runs", "report", "hostile", "--html", "nowhere/page.html", cwd=folder)
    assert (result.status, "hint: choose another file with `--html`" in result.err) == (69, True)


@pytest.mark.parametrize("text", [b"", b"\xff{", b"[1]\n"])
def test_a_run_whose_records_are_damaged_has_a_page(text: bytes, tmp_path: Path) -> None:
    root = write_run(tmp_path / "runs" / "damaged", 3)
    for file in root.rglob("*.json*"):
        file.write_bytes(text)
    result = zlaunch("runs", "report", cwd=tmp_path)
    assert (result.status, result.err) == (0, "")
    elements = dom(watched_copy(root / "report.html"))
    assert noted(elements, "failed") == ""
    assert "broken" in elements


def test_a_run_with_absurd_times_and_losses_has_a_page(tmp_path: Path) -> None:
    root = write_run(tmp_path / "runs" / "absurd", 3)
    with (root / "steps.jsonl").open("a") as lines:
        for step, (when, loss) in enumerate([(1e17, 1e300), (-1e17, -1e300), (0.0, 1e-320)], start=4):
            lines.write(
                json.dumps({"step": step, "time": when, "loss": loss, "phases": {"forward": 1e17}}) + "\n"
            )
    assert zlaunch("runs", "report", cwd=tmp_path).status == 0
    assert noted(dom(watched_copy(root / "report.html")), "failed") == ""


def test_a_run_that_died_before_its_first_step_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, sys; os.environ.get('ZLAUNCH_DS_CONFIG'); sys.exit(7)\n")
    zlaunch("train", "script.py", "--gpus", "1", cwd=tmp_path)
    result = zlaunch("runs", "report", cwd=tmp_path)
    assert (result.status, result.err) == (0, "")
    elements = dom(watched_copy(tmp_path / result.out.strip()))
    assert noted(elements, "failed") == ""
    assert "exited with 7" in elements or "status 7" in elements


@pytest.fixture(scope="module")
def elements(page: Path) -> str:
    return dom(watched_copy(page))


def test_a_browser_shows_all_of_a_page_and_runs_nothing_that_a_run_says(elements: str) -> None:
    assert noted(elements, "failed") == ""
    assert "<title>hostile: failed</title>" in elements
    for part in (
        "Loss",
        "Learning rate",
        "Throughput",
        "GPU memory in use",
        "Phases",
        "Planned and real",
        "ds_config",
    ):
        assert part in elements
    assert "<img" not in elements


def test_the_tiles_of_a_run_that_is_over_have_the_speed_that_runs_list_sorts_by(elements: str) -> None:
    assert "<div><b>50,412</b><span>tokens/s, without saving</span></div>" in elements


TIMES = [
    *(0, 2.2e-7, 9.4e-5, 9.6e-5, 0.0064, 0.00225, 0.008, 0.0125, 0.0135, 0.094, 0.0949, 0.0951, 0.125, 0.375),
    *(0.1, 0.34, 0.949, 0.951, 1, 1.25, 1.35, 8.14, 9.949, 9.96, 10.5, 11.5, 50e-6, 142.3, 86400.5),
]
SIZES = [
    *(0, 1, 1 << 18, 1 << 19, 3 << 19, 5 << 19, 35 << 20, 102 << 20, 103 << 20, GIB // 8, 900 << 20),
    *(GIB - (1 << 20), GIB, 5 * GIB // 4, 66 * GIB, 1000 * GIB, 4001 * GIB // 2, 4003 * GIB // 2),
]


def test_a_page_writes_times_and_sizes_as_a_terminal_does(tmp_path: Path) -> None:
    file = tmp_path / "overview.html"
    file.write_text(page_of("runs", {"directory": "/runs", "runs": []}))
    copy = watched_copy(file)
    write = (
        f"<script>document.documentElement.dataset.times = {TIMES}.map(brief).join();"
        f"document.documentElement.dataset.sizes = {SIZES}.map(memory).join();</script>"
    )
    copy.write_text(copy.read_text().replace("</body>", f"{write}</body>"))
    elements = dom(copy)
    assert unescape(noted(elements, "times")).split(",") == [*map(brief, TIMES)]
    assert unescape(noted(elements, "sizes")).split(",") == [*map(memory, SIZES)]


def test_a_page_shows_the_arguments_that_had_no_effect(elements: str) -> None:
    assert "--optim adafactor</code> has no effect" in elements


def test_the_policy_of_a_page_lets_its_own_script_draw(page: Path) -> None:
    assert "<svg" in dom(page)


def test_a_page_of_ten_thousand_steps_is_drawn_within_a_second(elements: str, page: Path) -> None:
    loads, most = [float(noted(elements, "took"))], 1000 * MOST_SECONDS
    while min(loads) > most and len(loads) < TRIES:
        loads.append(float(noted(dom(watched_copy(page)), "took")))
    assert min(loads) <= most * (1 + os.getloadavg()[0]), loads


def test_the_values_under_the_pointer_are_shown(page: Path) -> None:
    point = (
        "<script>addEventListener('load', () => { const chart = document.querySelector('svg'), box = chart.getBoundingClientRect();"
        "chart.dispatchEvent(new PointerEvent('pointermove', { clientX: box.right - 17, clientY: box.top + 50 })); });</script>"
    )
    copy = watched_copy(page)
    copy.write_text(copy.read_text().replace("</body>", f"{point}</body>"))
    tip = re.search(r'class="tip".*?</div></div>', dom(copy))
    assert tip is not None
    assert re.search(
        r">step 99\d\d<.*>● </b>loss of a step: [12]\.\d+<.*>● </b>smoothed[^<]*: [12][.\d]*<", tip[0]
    )


def width_in(width: int, page: Path) -> int:
    """Open a page in a window of this width; return how wide its contents are."""
    frame = page.with_name("frame.html")
    measure = (
        "<script>addEventListener('load', () => { const inner = document.querySelector('iframe').contentDocument;"
        "document.documentElement.dataset.wide = inner.documentElement.scrollWidth; });</script>"
    )
    frame.write_text(
        f'<html><iframe src="{page.name}" style="width: {width}px; height: 900px; border: 0"></iframe>{measure}</html>'
    )
    return int(noted(dom(frame, "--allow-file-access-from-files"), "wide"))


@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_is_no_wider_than_its_window(width: int, page: Path) -> None:
    assert width_in(width, page) == width


@pytest.fixture(scope="module")
def compared(folder: Path, page: Path) -> Path:
    write_run(folder / "runs" / "many", 100, ranks=64)
    config = folder / "runs" / "many" / "ds_config.json"
    config.write_text(config.read_text().replace('"train_batch_size": 64', '"train_batch_size": 32'))
    (folder / "runs" / "many" / "ranks" / "rank-0.program.json").unlink()
    result = zlaunch("runs", "compare", "hostile", "many", "--html", "both.html", cwd=folder)
    assert (result.status, result.out) == (0, "both.html\n")
    return folder / "both.html"


def test_two_runs_are_drawn_over_each_other_with_what_differs(compared: Path) -> None:
    elements = dom(watched_copy(compared))
    assert noted(elements, "failed") == ""
    loss = re.search(r"<h2>Loss .*?</section>", elements)
    assert loss is not None
    assert loss[0].count("<path d=") >= 4  # of each run the steps, and the smoothed curve
    assert "<code>64</code>" in elements
    assert "<code>32</code>" in elements
    assert width_in(390, compared) == 390


def test_the_page_of_many_ranks_names_those_that_stand_out(compared: Path, folder: Path) -> None:
    assert zlaunch("runs", "report", "many", cwd=folder).status == 0
    elements = dom(watched_copy(folder / "runs" / "many" / "report.html"))
    assert noted(elements, "failed") == ""
    assert "least to most of 64 ranks, and their median" in elements
    assert "rank 37 (w9): 72.5 GiB" in elements


def test_two_runs_are_compared_in_lines(compared: Path, folder: Path) -> None:
    result = zlaunch("runs", "compare", "hostile", "many", cwd=folder)
    assert result.status == 0
    assert "tokens/s" in result.out
    assert re.search(r"^train_batch_size +64 +32$", result.out, re.MULTILINE)
    assert SECRET not in result.out
    both = json.loads(zlaunch("runs", "compare", "hostile", "many", "--json", cwd=folder).out)
    assert both["runs"] == ["hostile", "many"]


def test_a_click_sorts_the_overview_and_two_marked_runs_can_be_compared(tmp_path: Path) -> None:
    known = {
        "state": "finished",
        "cause": None,
        "zero": "3",
        "ranks": 2,
        "progress": "4/4",
        "step": 4,
        "loss": 1.0,
    }
    known |= {"speed": None, "started": 1.7e9, "left": None}
    rows = [
        {**known, "id": name, "name": name, "seconds": took}
        for name, took in (("a", 5), ("b", 9), ("c", None))
    ]
    file = tmp_path / "overview.html"
    file.write_text(page_of("runs", {"directory": "/runs", "runs": rows}))
    copy = watched_copy(file)
    click = (
        "<script>addEventListener('load', () => { const marks = () => document.querySelectorAll('input');"
        "[...document.querySelectorAll('button')].find((one) => one.textContent === 'took').click();"
        "marks()[0].click(); marks()[1].click(); });</script>"
    )
    copy.write_text(copy.read_text().replace("</body>", f"{click}</body>"))
    elements = dom(copy)
    assert noted(elements, "failed") == ""
    assert re.findall(r'href="run/(.)/"', elements) == ["b", "a", "c"]
    assert 'href="compare/b/a/"' in elements
    assert width_in(390, file) == 390


def test_a_bundle_has_the_page_the_records_and_the_logs_without_secrets(tmp_path: Path) -> None:
    root = write_run(tmp_path / "runs" / "mine", 20)
    (root / "logs" / "rank-3.log").write_text(f"export HF_TOKEN={SECRET}99 sword\nValueError: no text\n")
    result = zlaunch("runs", "report", "--bundle", "run.zip", cwd=tmp_path)
    assert (result.status, result.out) == (0, "run.zip\n")
    with ZipFile(tmp_path / "run.zip") as archive:
        texts = {name: archive.read(name).decode() for name in archive.namelist()}
    records = {"page.html", "run.json", "config.json", "provenance.json", "forecast.json", "logs/rank-3.log"}
    assert set(texts) == {f"mine/{name}" for name in records}
    assert "ValueError: no text" in texts["mine/logs/rank-3.log"]
    assert [name for name, text in texts.items() if SECRET in text] == []


def test_a_bundle_is_not_written_over_another_file(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "mine", 20)
    (tmp_path / "run.zip").write_text("mine")
    result = zlaunch("runs", "report", "--bundle", "run.zip", cwd=tmp_path)
    assert (result.status, (tmp_path / "run.zip").read_text()) == (69, "mine")
