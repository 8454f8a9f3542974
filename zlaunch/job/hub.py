"""Download a model's `config.json` and its custom code from the model hub; never its weights."""

import contextlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from zlaunch.errors import InputMissing, Unavailable, ZlaunchError
from zlaunch.job.model import ModelConfig, parse_model
from zlaunch.job.public_models import find_public, nearest_public, public_of_size

_SIGN_IN = "set HF_TOKEN, or run `hf auth login`"
_DIRECTORY = "use a directory with the model's config.json"
_HINTS = {
    401: f"the hub rejects the token: {_SIGN_IN} with a valid one",
    403: f"the token has no access to it: {_SIGN_IN} with one that does",
    404: "check HF_ENDPOINT: this does not look like a model hub",
    429: f"wait, or {_SIGN_IN}: that raises the rate limit",
}
"""HTTP status of the hub → hint."""


def fetch_model(model_id: str) -> ModelConfig:
    """Download a config.json with `huggingface_hub`, which has the cache, tokens and settings.

    If the hub does not give it, take the one that is bundled with zlaunch. Without one, raise InputMissing if
    the user can see no such model, Unavailable if the hub cannot be reached.
    """
    if names := public_of_size(model_id):
        listed = ", ".join(f"`{name}`" for name in names)
        raise InputMissing(
            f"`{model_id}` is the size of a model, and there is no such directory",
            f"name a model, such as {listed}, whose config.json is bundled with zlaunch",
        )
    try:
        file = _fetch(model_id)
    except ZlaunchError as error:
        return _bundled(model_id, error)
    name = f"{model_id}/config.json"
    return parse_model(file.read_bytes(), name, name)


def _bundled(model_id: str, error: ZlaunchError) -> ModelConfig:
    """Return the bundled config.json; without one, raise the error, with the name that may be meant."""
    if model := find_public(model_id):
        text = json.dumps(model.config, indent=2)
        return ModelConfig(model.config, text, f"{model_id}/config.json", error)
    if meant := nearest_public(model_id):
        error.hint = f"did you mean `{meant}`? Otherwise, {error.hint}"
    raise error from None


def fetch_code(model_id: str) -> Path:
    """Download the custom code and the configs of a model; return their directory."""
    file = _fetch(model_id)
    from huggingface_hub import snapshot_download

    with contextlib.suppress(*_hub_errors()):
        return Path(snapshot_download(model_id, allow_patterns=["*.py", "*.json"]))
    return file.parent


def _fetch(model_id: str) -> Path:
    """Download config.json, or use the cached one; a metadata request fails faster than a download."""
    try:
        from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
        from huggingface_hub.constants import HF_HUB_ETAG_TIMEOUT
    except ImportError:
        raise Unavailable(
            f"`{model_id}` cannot be looked up: huggingface_hub is not installed in {sys.prefix}",
            f"`{sys.executable} -m pip install huggingface_hub`, or {_DIRECTORY}",
        ) from None
    try:
        _limited(lambda: get_hf_file_metadata(hf_hub_url(model_id, "config.json")), HF_HUB_ETAG_TIMEOUT)
        return Path(hf_hub_download(model_id, "config.json"))
    except _hub_errors() as error:
        cached = try_to_load_from_cache(model_id, "config.json")  # `hf_hub_download` would ask the hub again
        if isinstance(cached, str):
            return Path(cached)
        raise _translated(model_id, error) from None


def _limited(ask: Callable[[], object], seconds: float) -> None:
    """Wait for an answer for this time at most; raise what `ask` raises, or TimeoutError.

    A timeout of HTTP counts again for each address of the hub, and name resolution has none.
    """
    failed: list[Exception] = []

    def work() -> None:
        try:
            ask()
        except _hub_errors() as error:
            failed.append(error)

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {seconds:g} s")
    if failed:
        raise failed[0]


def _hub_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of `huggingface_hub` and of its HTTP client."""
    from huggingface_hub.errors import EntryNotFoundError, HTTPError  # type: ignore[attr-defined]

    return (OSError, ValueError, EntryNotFoundError, HTTPError)


def _translated(model_id: str, error: Exception) -> ZlaunchError:
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    match error:
        case GatedRepoError():
            return InputMissing(
                f"the model `{model_id}` is gated",
                f"accept its terms at {ENDPOINT}/{model_id}, then {_SIGN_IN}",
            )
        case RepositoryNotFoundError():
            return InputMissing(
                f"there is neither a directory `{model_id}` nor a model of that name at {ENDPOINT}",
                f"check the spelling; for a private model, {_SIGN_IN}",
            )
        case EntryNotFoundError() if not isinstance(error, LocalEntryNotFoundError):
            return InputMissing(
                f"the model `{model_id}` has no config.json at {ENDPOINT}",
                "use its base model: adapters and GGUF files have no architecture",
            )
        case HfHubHTTPError() if (response := getattr(error, "response", None)) is not None:
            status = response.status_code
            return Unavailable(
                f"there is no directory `{model_id}`, and {ENDPOINT} responds with HTTP status {status}",
                _HINTS.get(status, _DIRECTORY),
            )
    why, instead = _reason(error), "set HF_ENDPOINT to a hub that is reachable"
    if HF_HUB_OFFLINE:
        why, instead = "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"
    return Unavailable(
        f"there is no directory `{model_id}`, the model is not in the cache, "
        f"and {ENDPOINT} is not reachable: {why}",
        f"{_DIRECTORY}, or {instead}",
    )


def _reason(error: Exception) -> str:
    """Return the first line of an error, without its errno."""
    words = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[Errno -?\d+\] ", "", words[0]).rstrip(".")
