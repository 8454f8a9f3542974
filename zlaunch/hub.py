"""Model hub → `config.json`, and nothing else of a model."""

import json
from pathlib import Path
from typing import Any

from zlaunch import console
from zlaunch.errors import InputMissing


def fetch_config(model_id: str) -> dict[str, Any] | None:
    """Fetch a model's config.json through `huggingface_hub`, with its cache, tokens and settings.

    Returns None, and says so, if the hub cannot be asked; raises InputMissing if it has no such model.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
    )

    try:
        file = hf_hub_download(model_id, "config.json")
    except GatedRepoError:
        raise InputMissing(
            f"the model `{model_id}` is gated", "accept its terms on the hub, then `hf auth login`"
        ) from None
    except (RepositoryNotFoundError, EntryNotFoundError) as error:
        if isinstance(error, FileNotFoundError):
            _say_unreachable(model_id)
            return None
        raise InputMissing(
            f"there is neither a directory `{model_id}` nor a model of that name on the hub",
            "for a private model, `hf auth login` first",
        ) from None
    except (OSError, HfHubHTTPError, ValueError):
        _say_unreachable(model_id)
        return None
    config: dict[str, Any] = json.loads(Path(file).read_text("utf-8"))
    return config


def _say_unreachable(model_id: str) -> None:
    console.say(
        f"the hub cannot be asked about `{model_id}`: the Trainer will fill in what depends on the model"
    )
