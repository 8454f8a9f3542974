import json
from pathlib import Path

import pytest

from tests.running import RECIPE


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory as `save_pretrained` writes it, without weights."""
    return write_model(tmp_path_factory.mktemp("small"), {})


@pytest.fixture(scope="session")
def swapped_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose matrices are large enough for DeepSpeed to swap: more than 1 MiB in each rank."""
    wide = {"hidden_size": 1024, "intermediate_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 8}
    return write_model(tmp_path_factory.mktemp("wide"), wide)


def write_model(folder: Path, changes: dict[str, int]) -> Path:
    from transformers import ByT5Tokenizer

    config = json.loads((RECIPE.parent / "small_llama" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    ByT5Tokenizer().save_pretrained(folder)
    return folder
