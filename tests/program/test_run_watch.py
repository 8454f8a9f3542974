"""`zlaunch runs watch`: live pages for this machine alone."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.browser import browse, dom, noted, watched_copy
from tests.recorded_run import HOSTILE, write_run
from tests.running import run, start, zlaunch

STEPS = 40


class Watch:
    """A `zlaunch runs watch` that has printed its address."""

    def __init__(self, folder: Path, *words: object) -> None:
        self.process = start(
            "runs", "watch", *words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().decode().strip()
        self.url = json.loads(self.line)["url"] if self.line.startswith("{") else self.line
        parts = urlsplit(self.url)
        self.port, self.token = int(parts.port or 0), parts.path.strip("/")

    def ask(
        self, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def data(self, path: str) -> Any:
        status, text = self.ask(f"/{self.token}/{path}")
        assert status == 200, text
        return json.loads(text)

    def end(self, number: int = signal.SIGINT) -> tuple[int, str]:
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err.decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watch")
    write_run(folder / "runs" / "first", STEPS)
    write_run(folder / "runs" / "it's #2 & <b>", STEPS, HOSTILE)
    return folder


@pytest.fixture(scope="module")
def watch(folder: Path) -> Iterator[Watch]:
    watching = Watch(folder)
    yield watching
    assert watching.end()[0] == 130


def test_the_overview_links_to_a_page_for_each_run(watch: Watch) -> None:
    rows = watch.data("data")["runs"]
    assert {row["id"] for row in rows} == {"first", "it's #2 & <b>"}
    for row in rows:
        assert watch.data(f"run/{row['name']}/data")["id"] == row["id"]
        assert watch.ask(f"/{watch.token}/run/{row['name']}/")[0] == 200


def test_two_runs_of_the_overview_are_compared(watch: Watch) -> None:
    first, second = (row["name"] for row in watch.data("data")["runs"])
    compared = watch.data(f"compare/{first}/{second}/data")["compared"]
    assert [run["id"] for run in compared] == [unquote(first), unquote(second)]
    assert watch.ask(f"/{watch.token}/compare/{first}/{second}/")[0] == 200
    assert watch.ask(f"/{watch.token}/compare/{first}/nothing/")[0] == 404


@pytest.mark.parametrize(
    "path", ["/", "/data", "/{wrong}/", "/{wrong}/data", "/{half}/", "//", "/%00/", "/%C3%A9/", "/%FF/"]
)
def test_without_the_token_nothing_is_shown(path: str, watch: Watch) -> None:
    wrong = watch.token[:-1] + ("a" if watch.token[-1] != "a" else "b")
    address = path.format(wrong=wrong, half=watch.token[:8])
    status, text = watch.ask(address)
    assert (status, "first" in text) == (403, False)


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "evil.example:{port}", "localhost.evil"]
)
def test_a_site_whose_name_was_rebound_to_this_machine_sees_nothing(host: str, watch: Watch) -> None:
    headers = {"Host": host.format(port=watch.port)}
    assert watch.ask(f"/{watch.token}/data", headers=headers)[0] == 403


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "localhost:9999"])
def test_this_machine_and_a_tunnel_to_it_see_the_pages(host: str, watch: Watch) -> None:
    headers = {"Host": host.format(port=watch.port)}
    assert watch.ask(f"/{watch.token}/data", headers=headers)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(method: str, watch: Watch) -> None:
    assert watch.ask(f"/{watch.token}/", method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "run/nosuch/",
        "run/../../etc/passwd",
        "run/..%2F..%2Fjob.json/",
        "run/first/job.json",
        "x",
        "run/first",
    ],
)
def test_nothing_but_the_pages_can_be_read(path: str, watch: Watch) -> None:
    assert watch.ask(f"/{watch.token}/{path}")[0] == 404


def test_only_the_loopback_interface_is_listened_on(watch: Watch) -> None:
    listening = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [line[1] for line in listening if line[3] == "0A" and line[1].endswith(f":{watch.port:04X}")]
    assert ours == [f"0100007F:{watch.port:04X}"]


def test_a_page_is_sent_only_what_it_does_not_have(watch: Watch, folder: Path) -> None:
    before = watch.data("run/first/data")
    told = len(before["history"]["step"])
    query = f"?steps={before['history']['epoch']}.{told}&samples=0.{len(before['samples']['time'])}"
    with (folder / "runs" / "first" / "steps.jsonl").open("a") as lines:
        lines.write(json.dumps({"step": STEPS + 1, "time": 1.7e9 + 500, "loss": 1.25}) + '\n{"step": ')
    news = watch.data(f"run/first/data{query}")
    assert (news["history"]["start"], news["history"]["step"]) == (told, [STEPS + 1])
    assert (news["history"]["numbers"], news["samples"]["time"]) == ({"loss": [1.25]}, [])
    assert len(json.dumps(news)) < len(json.dumps(before))


def test_a_comparison_is_sent_only_what_it_does_not_have(watch: Watch) -> None:
    first, second = (row["name"] for row in watch.data("data")["runs"])
    before = watch.data(f"compare/{first}/{second}/data")["compared"]
    told = [len(run["history"]["step"]) for run in before]
    news = watch.data(f"compare/{first}/{second}/data?first=0.{told[0]}&second=0.{told[1] - 3}")["compared"]
    assert [run["history"]["start"] for run in news] == [told[0], told[1] - 3]
    assert [len(run["history"]["step"]) for run in news] == [0, 3]


@pytest.mark.parametrize(
    "query",
    [
        "?steps=x",
        "?steps=-1.-5",
        "?steps=0.99999999",
        "?steps=%C2%B2.1&samples=1.",
        f"?steps=1.{'9' * 5000}",
        "?%00=%ff",
    ],
)
def test_an_odd_question_gets_the_whole_answer(query: str, watch: Watch) -> None:
    status, text = watch.ask(f"/{watch.token}/run/first/data{query}")
    assert (status, json.loads(text)["history"]["start"]) == (200, 0)


def test_a_browser_that_leaves_and_one_that_says_nothing_hold_no_one_up(watch: Watch) -> None:
    with socket.create_connection(("127.0.0.1", watch.port)) as silent:
        silent.send(b"GET /")
        with socket.create_connection(("127.0.0.1", watch.port)) as leaving:
            leaving.send(f"GET /{watch.token}/data HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        assert watch.ask(f"/{watch.token}/data")[0] == 200


def test_a_browser_shows_the_overview_and_a_live_page(watch: Watch, tmp_path: Path) -> None:
    wait = ("--dump-dom", "--virtual-time-budget=4000")
    overview = browse(watch.url, tmp_path, *wait)
    assert re.findall(r'<a href="([^"]*)"', overview) == [
        f"run/{row['name']}/" for row in watch.data("data")["runs"]
    ]
    page = browse(f"{watch.url}run/first/", tmp_path, *wait)
    assert "Learning rate" in page
    assert "<svg" in page
    assert 'id="gone"' not in page


def test_a_live_page_that_adds_what_is_new_has_all(watch: Watch, folder: Path, tmp_path: Path) -> None:
    whole = watch.data("run/first/data")
    (tmp_path / "runs").mkdir()
    part = Path(shutil.copytree(folder / "runs" / "first", tmp_path / "runs" / "first"))
    for name in ("steps.jsonl", "metrics.jsonl"):
        (part / name).write_text("".join((part / name).read_text().splitlines(keepends=True)[:8]))
    zlaunch("runs", "report", "first", cwd=tmp_path)
    news = watch.data("run/first/data?steps=0.8&samples=0.8")
    assert (news["history"]["start"], news["samples"]["start"]) == (8, 8)
    script = f"""<script>addEventListener("load", () => {{
      const whole = {json.dumps(whole)}, news = {json.dumps(news)};
      const two = merge({{ compared: [shown, shown] }}, {{ compared: [{{ ...news }}, {{ ...news }}] }}).compared;
      const now = merge(shown, news), is = (a, b) => JSON.stringify(a) === JSON.stringify(b);
      show(now);
      const rows = (data) => Object.entries(data).sort();
      const same = ["step", "count", "time", "rate"].every((name) => is(now.history[name], whole.history[name]))
        && is(rows(now.history.numbers), rows(whole.history.numbers)) && is(now.samples.time, whole.samples.time)
        && two.every((run) => is(rows(run.history), rows(now.history))) && seen({{ compared: two }}) === seen(now).replace("steps", "first").replace(/&.*/, `&second=0.${{whole.history.step.length}}`)
        && is(rows(now.samples.gpu), rows(whole.samples.gpu)) && is(rows(now.samples.host), rows(whole.samples.host));
      document.documentElement.dataset.same = same;
    }});</script></body>"""
    copy = watched_copy(part / "report.html")
    copy.write_text(copy.read_text().replace("</body>", script))
    elements = dom(copy)
    assert (noted(elements, "failed"), noted(elements, "same")) == ("", "true")


def test_one_run_is_watched_on_the_first_page(folder: Path) -> None:
    watching = Watch(folder, "first", "--json")
    assert json.loads(watching.line)["runs"] == 1
    assert watching.data("data")["id"] == "first"
    assert watching.end() == (130, "")


def test_runs_that_are_over_end_the_pages_if_asked_to(folder: Path) -> None:
    watching = Watch(folder, "first", "--until-end")
    _, err = watching.process.communicate(timeout=60)
    assert (watching.process.returncode, err.decode()) == (
        0,
        "shows 1 run until the last of them is over, or Ctrl-C; the runs keep running\n",
    )


def test_a_directory_without_runs_is_watched_until_one_comes(tmp_path: Path) -> None:
    watching = Watch(tmp_path)
    assert watching.data("data")["runs"] == []
    write_run(tmp_path / "runs" / "new", 3)
    until = time.monotonic() + 60
    while not (rows := watching.data("data")["runs"]):
        assert time.monotonic() < until
        time.sleep(0.2)
    assert [row["id"] for row in rows] == ["new"]
    assert watching.end(signal.SIGTERM)[0] == -signal.SIGTERM


def test_a_port_that_is_taken_is_named(watch: Watch, folder: Path) -> None:
    result = zlaunch("runs", "watch", "--port", watch.port, cwd=folder)
    assert (result.status, f"port {watch.port} of 127.0.0.1 cannot be used" in result.err) == (69, True)


def test_pages_are_served_without_torch(folder: Path) -> None:
    loaded = (
        "import sys, zlaunch.cli.runs.watch; print({'torch', 'deepspeed', 'transformers'} & set(sys.modules))"
    )
    assert run(sys.executable, "-c", loaded, cwd=folder).out == "set()\n"
