"""Model hub → `config.json`, and the model's own code where that is allowed; never a weight."""

import contextlib
import re
from pathlib import Path

from zlaunch.errors import InputMissing, Unavailable, ZlaunchError
from zlaunch.job.model import ModelConfig, parse_model

HUB_ID = re.compile(r"\w[\w.-]*(?:/\w[\w.-]*)?")

_SIGN_IN = "set HF_TOKEN, or `hf auth login`"
_DIRECTORY = "name a directory with the model's config.json"
_HINTS = {
    401: f"the hub does not take the token: {_SIGN_IN} with one that is valid",
    403: f"the token does not let you read it: {_SIGN_IN} with one that does",
    404: "this is no hub's answer: see HF_ENDPOINT",
    429: f"wait, and {_SIGN_IN}: then more may be asked",
}
"""Status that the hub answers with → what to do."""

CODE = ("*.py", "*.json")
"""What is fetched of a model that brings its own code."""


def fetch_model(model_id: str) -> ModelConfig:
    """Fetch a model's config.json through `huggingface_hub`, with its cache, tokens and settings.

    Raises InputMissing if there is no such model for this user, Unavailable if the hub cannot be asked.
    """
    name = f"{model_id}/config.json"
    return parse_model(_fetch(model_id, "config.json").read_bytes(), name, name)


def fetch_code(model_id: str) -> Path:
    """Fetch the code that a model brings with it, and its configs; return their directory."""
    from huggingface_hub import snapshot_download

    file = _fetch(model_id, "config.json")
    with contextlib.suppress(*_foreign()):
        return Path(snapshot_download(model_id, allow_patterns=list(CODE)))
    return file.parent


def _fetch(model_id: str, name: str) -> Path:
    """Fetch one file, or take it from the cache; asks first, as a download would try for half a minute."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(model_id, name))
        return Path(hf_hub_download(model_id, name))
    except _foreign() as error:
        with contextlib.suppress(*_foreign()):
            return Path(hf_hub_download(model_id, name, local_files_only=True))
        raise _meant(model_id, error) from None


def _foreign() -> tuple[type[Exception], ...]:
    """Name the errors of `huggingface_hub`, and of the client it uses; they are imported with it."""
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        EntryNotFoundError,
        HTTPError,
    )

    return (OSError, ValueError, EntryNotFoundError, HTTPError)


def _meant(model_id: str, error: Exception) -> ZlaunchError:
    """Say what an error of `huggingface_hub` means for the user."""
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RemoteEntryNotFoundError,
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
                f"look for a slip in the name; for a private model, {_SIGN_IN}",
            )
        case RemoteEntryNotFoundError():
            return InputMissing(
                f"the model `{model_id}` has no config.json at {ENDPOINT}",
                "name the model it was made from: adapters and GGUF files do not say how it is built",
            )
        case HfHubHTTPError() if (response := getattr(error, "response", None)) is not None:
            status = response.status_code
            return Unavailable(
                f"there is no directory `{model_id}`, and {ENDPOINT} answers {status} when asked about it",
                _HINTS.get(status, _DIRECTORY),
            )
    why, instead = _reason(error), "set HF_ENDPOINT to a hub that answers"
    if HF_HUB_OFFLINE:
        why, instead = "HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE"
    return Unavailable(
        f"there is no directory `{model_id}`, no model of that name in the cache, "
        f"and {ENDPOINT} cannot be asked: {why}",
        f"{_DIRECTORY}, or {instead}",
    )


def _reason(error: Exception) -> str:
    """Take out of an error what the system said: of a name, a connection or a certificate."""
    words = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[Errno -?\d+\] ", "", words[0]).rstrip(".")
