"""The hub is asked for config.json alone; whatever it answers, a person is told what to do."""

import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from tests.hub_server import hub
from tests.running import Result, run, zlaunch

ASK = """
import sys
from zlaunch.errors import ZlaunchError
from zlaunch.job.hub import fetch_model
for model in sys.argv[1:]:
    try:
        found = fetch_model(model)
        print(found.value if found.hub_error is None else found.source)
    except ZlaunchError as error:
        print(int(error.status), error.message, "|", error.hint)
"""
CONFIG = {"model_type": "llama", "hidden_size": 64}
MODELS: dict[str, Any] = {
    "org/open": CONFIG,
    "org/gated": (403, "GatedRepo"),
    "org/adapter": (404, "EntryNotFound"),
    "org/broken": (500, ""),
    "org/signed-out": (401, ""),
    "org/forbidden": (403, ""),
    "org/busy": (429, ""),
    "org/no-hub": (404, ""),
    "org/list": [],
    "meta-llama/Llama-3.1-8B": (403, "GatedRepo"),
    "gpt2": (401, ""),
    "gpt2-xl": (404, "EntryNotFound"),
    "facebook/opt-125m": (500, ""),
    "Qwen/Qwen3-8B": CONFIG,
    "bert-base-uncased": [],
}


def ask(models: str, folder: Path, **env: str) -> Result:
    return run(
        sys.executable, "-c", ASK, *models.split(), cwd=folder, env={"HF_HOME": str(folder / "hf"), **env}
    )


@contextmanager
def trickling_hub() -> Iterator[str]:
    """Answer without end, a byte at a time, so that no read times out."""
    over = threading.Event()

    def answer(taken: socket.socket) -> None:
        with taken, suppress(OSError):
            for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"." * 1000:
                taken.sendall(bytes([byte]))
                if over.wait(0.1):
                    return

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        over.set()


def test_only_the_config_is_fetched(tmp_path: Path) -> None:
    with hub(MODELS) as server:
        assert ask("org/open", tmp_path, HF_ENDPOINT=server.url).out == f"{CONFIG}\n"
        assert {line.split("/")[-1] for line in server.asked if "org/open" in line} == {"config.json"}


def test_a_token_in_the_environment_is_shown(tmp_path: Path) -> None:
    with hub(MODELS) as server:
        ask("org/open", tmp_path, HF_ENDPOINT=server.url, HF_TOKEN="hf_mine")
        assert "Bearer hf_mine" in server.tokens


ANSWERS: dict[str, tuple[int, str, str]] = {
    "org/gated": (66, "is gated", "/org/gated, then set HF_TOKEN"),
    "org/nosuch": (66, "neither a directory", "for a private model, set HF_TOKEN"),
    "org/adapter": (66, "has no config.json", "adapters"),
    "org/broken": (69, "no directory `org/broken`, and http://", "a directory with"),
    "org/signed-out": (69, " responds with HTTP status 401", "with a valid one"),
    "org/forbidden": (69, " responds with HTTP status 403", "one that does"),
    "org/busy": (69, " responds with HTTP status 429", "wait, or set HF_TOKEN"),
    "org/no-hub": (69, " responds with HTTP status 404", "check HF_ENDPOINT"),
    "org/list": (65, "1 problem found", ""),
    "bert-base-uncased": (65, "1 problem found", ""),
    "meta-llama/Lama-3.1-8B": (
        66,
        "neither a directory",
        "did you mean `meta-llama/Llama-3.1-8B`? Otherwise, check",
    ),
}
"""Model → exit status, and what the message and the hint hold."""


BUNDLED = (
    *("meta-llama/Llama-3.1-8B", "META-LLAMA/llama-3.1-8b", "gpt2", "gpt2-xl", "facebook/opt-125m"),
    "google/gemma-2b",
)
"""What the hub does not give, and zlaunch has: gated, no such model, token rejected, no config, broken."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Ask for all of them in one program."""
    with hub(MODELS) as server:
        models = [*ANSWERS, *BUNDLED, "Qwen/Qwen3-8B"]
        done = ask(" ".join(models), tmp_path_factory.mktemp("asked"), HF_ENDPOINT=server.url)
    return dict(zip(models, done.out.splitlines(), strict=True))


@each("model", ANSWERS)
def test_every_answer_of_the_hub_has_its_message(model: str, answers: dict[str, str]) -> None:
    status, said, hint = ANSWERS[model]
    message, _, told = answers[model].partition("|")
    assert message.startswith(f"{status} ")
    assert said in message
    assert hint in told


@each("model", BUNDLED)
def test_a_model_that_the_hub_does_not_give_is_the_bundled_one(model: str, answers: dict[str, str]) -> None:
    assert answers[model] == f"{model}/config.json as bundled with zlaunch"


def test_a_model_that_the_hub_gives_is_not_the_bundled_one(answers: dict[str, str]) -> None:
    assert answers["Qwen/Qwen3-8B"] == f"{CONFIG}"


def test_a_hub_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    done = ask("org/open", tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    said = "69 there is no directory `org/open`, the model is not in the cache, and "
    assert done.out.startswith(
        f"{said}http://127.0.0.1:9 is not reachable: Connection refused | use a directory"
    )
    assert "HF_ENDPOINT" in done.out
    assert "Retrying" not in done.err


def test_a_name_that_nobody_knows_is_told_as_such(tmp_path: Path) -> None:
    done = ask("org/open", tmp_path, HF_ENDPOINT="http://hub.invalid")
    assert re.search(r"http://hub\.invalid is not reachable: [^|]*(name|Name)", done.out), done.out


def test_a_hub_that_never_finishes_its_answer_is_waited_for_once(tmp_path: Path) -> None:
    with trickling_hub() as url:
        done = ask("org/open gpt2", tmp_path, HF_ENDPOINT=url, HF_HUB_ETAG_TIMEOUT="1")
    slow, bundled = done.out.splitlines()
    assert f"{url} is not reachable: no answer within 1 s |" in slow
    assert bundled == "gpt2/config.json as bundled with zlaunch"


def test_a_model_in_the_cache_needs_no_hub(tmp_path: Path) -> None:
    with hub(MODELS) as server:
        ask("org/open", tmp_path, HF_ENDPOINT=server.url)
    assert ask("org/open", tmp_path, HF_ENDPOINT=server.url).out == f"{CONFIG}\n"
    assert ask("org/open", tmp_path, HF_HUB_OFFLINE="1").out == f"{CONFIG}\n"


def test_offline_and_not_in_the_cache_says_so(tmp_path: Path) -> None:
    done = ask("org/open", tmp_path, HF_HUB_OFFLINE="1")
    assert done.out.startswith("69 there is no directory `org/open`, the model is not in the cache")
    assert "is not reachable: HF_HUB_OFFLINE is set |" in done.out
    assert "unset HF_HUB_OFFLINE" in done.out
    assert "did you mean" not in done.out


def test_offline_the_bundled_model_is_taken_and_a_near_name_is_suggested(tmp_path: Path) -> None:
    done = ask("gpt2 Llama-3.1-8b", tmp_path, HF_HUB_OFFLINE="1")
    bundled, unknown = done.out.splitlines()
    assert bundled == "gpt2/config.json as bundled with zlaunch"
    assert "did you mean `meta-llama/Llama-3.1-8B`? Otherwise, use a directory" in unknown


def test_a_start_says_that_a_model_could_not_be_looked_up_as_it_says_all_else(tmp_path: Path) -> None:
    env = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    done = zlaunch("train", "--stage", "2", "--dry-run", "--", "--model", "org/open", cwd=tmp_path, env=env)
    assert done.err.startswith("model      there is no directory `org/open`, the model is not in the cache")


def test_a_start_offline_says_that_the_config_is_the_bundled_one(tmp_path: Path) -> None:
    env = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    done = zlaunch("train", "--stage", "2", "--dry-run", "--", "--model", "gpt2", cwd=tmp_path, env=env)
    assert done.status == 0, done.err
    first, _, rest = done.err.partition("script ")
    assert " ".join(first.split()).startswith(
        "model there is no directory `gpt2`, the model is not in the cache"
    )
    assert " ".join(first.split()).endswith("HF_HUB_OFFLINE is set; config.json as bundled with zlaunch")
    assert "as bundled with zlaunch" in rest + done.out


def test_a_gated_model_is_planned_and_not_started(tmp_path: Path) -> None:
    with hub({"gpt2": (403, "GatedRepo")}) as server:
        env = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": server.url}
        done = zlaunch("train", "--stage", "2", "--dry-run", "--", "--model", "gpt2", cwd=tmp_path, env=env)
    assert done.status == 65
    assert "as bundled with zlaunch" in " ".join(done.out.split())
    assert "fails later: [no-access] the model `gpt2` is gated" in " ".join(done.err.split())
