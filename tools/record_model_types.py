"""Record what the model type tells of a training, from the installed transformers.

    python -m tools.record_model_types          compare zlaunch/job/model_types.json with it
    python -m tools.record_model_types --write  add its release to the file

The file has a record for each major release of transformers, since 5 keeps all experts of a block in one
parameter, which 4 does not. A small model of each type is built on the CPU, and run on tokens if it takes
them.
"""

import importlib
import inspect
import json
import re
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
_MADE = re.compile(r"self\.experts = (nn\.Module(?:List|Dict)\b|\w*Experts\()")
_SKIPS = re.compile(r"expert_hit|numel\(\) > 0|\.nonzero\(|== 0:\s*continue")
"""How the source of a block leaves out experts that no token needs; otherwise all ranks run all of them."""
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
    facts: dict[str, Any] = {}
    blocks: dict[str, bool] = {}
    if model is not None:
        blocks = dict(blocks_of(model))
    blocks = blocks or dict(_blocks_in_source(kind))
    if blocks:
        facts["experts"] = sorted(blocks)
        facts["separate"] = sorted(name for name, is_separate in blocks.items() if is_separate)
    if model is not None:
        facts |= _about_parameters(model)
    return {name: value for name, value in facts.items() if value}


def _about_parameters(model: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {}
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
    return facts


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


def blocks_of(model: Any) -> Iterator[tuple[str, bool]]:
    """List the classes of modules with experts, and whether each expert is one that not all tokens need."""
    import torch

    for module in model.modules():
        experts = getattr(module, "_modules", {}).get("experts")
        if experts is None:
            continue
        kind, source = type(module), inspect.getsource(type(module))
        is_list = isinstance(experts, torch.nn.ModuleList | torch.nn.ModuleDict) and len(experts) > 1
        if not type(experts).__module__.startswith("torch."):
            source += inspect.getsource(type(experts))
        yield f"{kind.__module__}.{kind.__qualname__}", is_list and _SKIPS.search(source) is not None


def _blocks_in_source(kind: str) -> Iterator[tuple[str, bool]]:
    """List the same by the source of the type, whose default config may have no experts."""
    import torch
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    folder = model_type_to_module_name(kind)
    module = None
    with suppress(Exception):
        module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    for name, value in vars(module).items() if module else ():
        is_here = isinstance(value, type) and value.__module__ == getattr(module, "__name__", "")
        if is_here and issubclass(value, torch.nn.Module):
            made = re.search(
                r"self\.experts = (nn\.Module(?:List|Dict)\b|\w*Experts\()", inspect.getsource(value)
            )
            if made is not None:
                yield f"{value.__module__}.{name}", made[1].startswith("nn.")


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
