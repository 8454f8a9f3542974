"""Record what the model type tells of a training, from the installed transformers.

    python -m tools.record_model_types          compare zlaunch/job/model_types.json with it
    python -m tools.record_model_types --write  add its release to the file

The file has a record for each major release of transformers, since 5 keeps all experts of a block in one
parameter, which 4 does not. A small model of each type is built on the CPU, and run on tokens if it takes
them.
"""

import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zlaunch.parity.small_model import narrow, with_depth

FILE = Path(__file__).parents[1] / "zlaunch" / "job" / "model_types.json"
_DEPTH = 4
_KEPT = {"fp32": "_keep_in_fp32_modules_strict", "fp32_beside_fp16": "_keep_in_fp32_modules"}
_CLASSES = (
    *("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForImageTextToText", "AutoModelForMaskedLM"),
    "AutoModel",
)


def record() -> dict[str, Any]:
    """Describe all model types that can be built; empty facts are left out."""
    import transformers

    transformers.logging.set_verbosity_error()
    recorded: dict[str, Any] = {}
    for kind in sorted(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES):
        if facts := facts_of(kind):
            recorded[kind] = facts
    return recorded


def facts_of(kind: str) -> dict[str, Any]:
    """Describe a model type."""
    model = small_model(kind)
    if model is None:
        return {}
    facts: dict[str, Any] = {}
    blocks = dict(_blocks(model))
    if blocks:
        facts["experts"] = sorted(blocks)
        facts["separate"] = sorted(name for name, is_separate in blocks.items() if is_separate)
    for key, names in (
        ("fp32", "_keep_in_fp32_modules_strict"),
        ("fp32_beside_fp16", "_keep_in_fp32_modules"),
    ):
        kept = {name for name in getattr(model, names, None) or () if _has(model, name)}
        if kept:
            facts[key] = sorted(kept)
    if getattr(model.config, "tie_word_embeddings", False) and _is_tied(model):
        facts["tied"] = True
    if reused := _reused(model):
        facts["reused"] = reused
    return {name: value for name, value in facts.items() if value}


def small_model(kind: str) -> Any:
    """Build a small model of a type; None if that fails."""
    import torch
    import transformers

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    config_class: Any = None
    with suppress(Exception):
        config_class = transformers.CONFIG_MAPPING[kind]
    if config_class is None:
        return None
    for name in _CLASSES:
        with suppress(Exception):
            described = json.loads(config_class().to_json_string(use_diff=False))
            config = config_class.from_dict(with_depth(narrow(described), _DEPTH))
            return getattr(transformers, name).from_config(config)
    return None


def _blocks(model: Any) -> Iterator[tuple[str, bool]]:
    """List the classes of modules that contain experts, and whether each expert is a module of its own."""
    import torch

    for module in model.modules():
        experts = getattr(module, "_modules", {}).get("experts")
        if experts is None:
            continue
        is_list = isinstance(experts, torch.nn.ModuleList | torch.nn.ModuleDict)
        kind = type(module)
        yield f"{kind.__module__}.{kind.__qualname__}", is_list and len(experts) > 1


def _has(model: Any, part: str) -> bool:
    """Whether a parameter is in a module of this name."""
    return any(f".{part}." in f".{name}." for name, _ in model.named_parameters())


def _is_tied(model: Any) -> bool:
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    return len(names) > len([*model.parameters()])


def _reused(model: Any) -> list[str]:
    """Name the classes of modules with parameters that one forward pass runs more than once."""
    import torch

    calls: Counter[int] = Counter()
    modules = {id(module): module for module in model.modules() if [*module.parameters(recurse=False)]}
    for module in modules.values():
        module.register_forward_hook(lambda module, *_: calls.update([id(module)]))
    tokens = torch.randint(3, 50, (2, 8))
    for inputs in ({"input_ids": tokens}, {"input_ids": tokens, "decoder_input_ids": tokens}):
        calls.clear()
        with suppress(Exception):
            model(**inputs)
            return sorted({type(modules[key]).__name__ for key, count in calls.items() if count > 1})
    return []


def main(arguments: list[str]) -> int:
    """Compare or write; return 1 if the file differs."""
    import transformers

    release = transformers.__version__.partition(".")[0]
    recorded: Mapping[str, Any] = {}
    if FILE.exists():
        recorded = json.loads(FILE.read_text())
    now = record()
    if "--write" in arguments:
        FILE.write_text(json.dumps({**recorded, release: now}, indent=1, sort_keys=True) + "\n")
        return 0
    for kind in sorted({*now, *recorded.get(release, {})}):
        if now.get(kind) != recorded.get(release, {}).get(kind):
            print(f"{kind}: {recorded.get(release, {}).get(kind)} is now {now.get(kind)}")
    return int(now != recorded.get(release))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
