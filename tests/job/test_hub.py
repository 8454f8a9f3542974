"""The hub is asked for config.json alone; whatever it answers, a person is told what to do."""

import re
import sys
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
        print(fetch_model(model).value)
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
}


def ask(models: str, folder: Path, **env: str) -> Result:
    return run(
        sys.executable, "-c", ASK, *models.split(), cwd=folder, env={"HF_HOME": str(folder / "hf"), **env}
    )


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
}
"""Model → exit status, and what the message and the hint hold."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Ask for all of them in one program."""
    with hub(MODELS) as server:
        done = ask(" ".join(ANSWERS), tmp_path_factory.mktemp("asked"), HF_ENDPOINT=server.url)
    return dict(zip(ANSWERS, done.out.splitlines(), strict=True))


@each("model", ANSWERS)
def test_every_answer_of_the_hub_has_its_message(model: str, answers: dict[str, str]) -> None:
    status, said, hint = ANSWERS[model]
    message, _, told = answers[model].partition("|")
    assert message.startswith(f"{status} ")
    assert said in message
    assert hint in told


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


def test_a_start_says_that_a_model_could_not_be_looked_up_as_it_says_all_else(tmp_path: Path) -> None:
    env = {"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    done = zlaunch("train", "--stage", "2", "--dry-run", "--", "--model", "org/open", cwd=tmp_path, env=env)
    assert done.err.startswith("model      there is no directory `org/open`, the model is not in the cache")
