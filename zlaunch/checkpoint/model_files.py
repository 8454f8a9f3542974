"""The model or the adapter in a directory: whether its files have all that was trained, so that it loads.

What it should have is known from the index, from config.json or adapter_config.json, and from an engine's
files beside it. Nothing is said of what these leave open.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zlaunch.checkpoint.find import CheckpointFolder, SavedBy, weight_files
from zlaunch.checkpoint.flat_groups import Shapes
from zlaunch.checkpoint.lora import ADAPTER_CONFIG, ADAPTER_MODEL, name_in_file
from zlaunch.checkpoint.model_sizes import adapter_unlike_config, unlike_config
from zlaunch.checkpoint.pointer import pointer_in
from zlaunch.checkpoint.problem import Problem
from zlaunch.checkpoint.safetensors import DAMAGED, WIDTHS, IncompleteHeader, read_header
from zlaunch.checkpoint.torch_file import Archive, BadArchive, Tensor, UnknownLayout
from zlaunch.files import read_regular, typed
from zlaunch.frozen import dataclass
from zlaunch.units import plural, whole

CONFIG = "config.json"

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.(?P<kind>safetensors|bin)")

_FLOATS = ("F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16")

_JSON_FILES = (
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "chat_template.json"),
    *("generation_config.json", "*processor*config.json"),
)
"""Files of JSON objects beside config.json that `from_pretrained` reads."""

_OF_GENERATION = "generation_config.json"
"""What `save_pretrained` alone writes; a model without it may be loaded by `load_state_dict`."""

_CHOOSES_LAYERS = ("layers_to_transform", "exclude_modules", "layers_pattern", "layer_replication")
"""Settings of an adapter that may leave layers out."""

_OF_PROMPTS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING")

_MAGNITUDE = "lora_magnitude_vector"
_PARTS = {
    "LORA": ("lora_A.weight", "lora_B.weight"),
    "ADALORA": ("lora_A", "lora_B", "lora_E"),
    "LOHA": ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"),
    "VERA": ("vera_lambda_b", "vera_lambda_d"),
    "BOFT": ("boft_R", "boft_s"),
}
_PARTS_OF_EMBEDDING = ("lora_embedding_A", "lora_embedding_B")
"""Kind of an adapter → the parts of each module, as peft 0.13 and newer names them in files."""

_PART = re.compile(r"(?P<module>.+)\.(?P<part>(?:lora|hada|lokr|vera_lambda|ia3|boft|oft|hra)_\w+(?:\.\w+)?)")

_IN_BASE = re.compile(r"base_model\.model\.(?!base_model\.|module\.|_orig_mod\.|_forward_module\.)")
"""How the names of modules begin: with nothing that was around the model when it was saved."""

_WITH_RANK = {"LORA": "lora_A.weight", "LOHA": "hada_w1_b", "VERA": "vera_lambda_d"}
"""Kind of an adapter → the part whose first size is the rank."""

_TOKENS = "trainable_tokens_delta"

_HEADS = frozenset({"classifier", "score", "qa_outputs"})

_USUAL_LAYER = re.compile(r"\bmodel\.layers\.\d+\.self_attn\.")
_USUAL_MODULES = {"CAUSAL_LM": ("embed_tokens", "lm_head"), "SEQ_CLS": ("score",)}
"""Layers of models like Llama, whose modules have these names for a task."""

_EMPTY = "saved at stage 3 without gathering"


@dataclass(frozen=True)
class _Entry:
    shape: tuple[int, ...]
    dtype: str

    @property
    def is_placeholder(self) -> bool:
        """Whether it is what stage 3 leaves of a parameter; integers may be empty on purpose."""
        return self.shape == (0,) and self.dtype in _FLOATS


_Entries = Mapping[str, _Entry]


def model_problems(checkpoint: CheckpointFolder, trained: Shapes) -> list[Problem]:
    """Find what is wrong with the model or adapter of a checkpoint.

    `trained` are the shapes of the parameters that an engine beside it has trained, empty if there is none.
    """
    folder, hint = checkpoint.folder, ""
    if trained:
        hint = f"; `zlaunch checkpoint export {typed(folder)} DIR` writes a model from the engine's files"
    by_file, problems = _read_all(weight_files(folder))
    problems += [*_indexes(folder, by_file), *_incomplete_shards(folder)]
    problems += [replace(problem, message=problem.message + hint) for problem in _without_numbers(by_file)]
    config, bad = _object(folder / CONFIG)
    adapter_config, bad_adapter = _object(folder / ADAPTER_CONFIG)
    problems += [*bad, *bad_adapter]
    if problems:
        return problems  # what else is missing follows from them
    adapter = {file: entries for file, entries in by_file.items() if file.name.startswith(ADAPTER_MODEL)}
    model = {file: entries for file, entries in by_file.items() if file not in adapter}
    for file, entries in adapter.items():
        problems += _adapter(file, entries, adapter_config, trained, hint)
    if model and not adapter_config and not config and (folder / _OF_GENERATION).exists():
        problems.append(Problem(folder / CONFIG, "it is missing, and `from_pretrained` needs it"))
    if model and not adapter_config:
        problems += _model(folder, model, config, trained, hint)
    return problems


def _read_all(files: Sequence[Path]) -> tuple[dict[Path, _Entries], list[Problem]]:
    by_file, problems = {}, []
    for file in files:
        entries = _entries(file)
        if isinstance(entries, Problem):
            problems.append(entries)
        else:
            by_file[file] = entries
    return by_file, problems


def _entries(file: Path) -> _Entries | Problem:
    """Read names, shapes and types of the tensors in a file, or what is wrong with it."""
    try:
        if file.suffix == ".bin":
            archive = Archive(file)
            if damage := archive.problem():
                return Problem(file, damage)
            return {
                name: _Entry(tensor.shape, tensor.dtype) for name, tensor in _named_tensors(archive.value)
            }
        if damage := safetensors_damage(file):
            return Problem(file, damage)
        _, header = read_header(file)
        return {name: _Entry(tuple(one["shape"]), one["dtype"]) for name, one in header.items()}
    except (BadArchive, OSError) as error:
        return unreadable(file, error)


def _named_tensors(value: object) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in value.items() if isinstance(value, dict) else ():
        if isinstance(name, str) and isinstance(tensor, Tensor):
            yield name, tensor


def unreadable(file: Path, error: BadArchive | OSError) -> Problem:
    """Say why a file cannot be read, or that only its layout is not known."""
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        return Problem(file, what if what.startswith("it is ") else f"it cannot be read: {what}")
    if not isinstance(error, UnknownLayout):
        return Problem(file, str(error))
    if damage := Archive.damage_of_structure(file):
        return Problem(file, damage)
    return Problem(file, f"its layout is not known to zlaunch: {error}", is_unknown=True)


def safetensors_damage(file: Path) -> str | None:
    """Compare a file with its header: its length, and the length of each tensor with its shape."""
    size = file.stat().st_size
    try:
        begin, tensors = read_header(file)
        end = begin
        for name, tensor in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
            first, last = tensor["data_offsets"]
            numel, width = math.prod(tensor["shape"]), WIDTHS.get(tensor["dtype"])
            if begin + first != end or (width is not None and last - first != numel * width):
                return f"its header gives `{name}` a wrong place"
            end = begin + last
    except IncompleteHeader:
        return pointer_in(file) or "its header is incomplete"
    except DAMAGED:
        return "its header is damaged" if size else "it is empty"
    return None if size == end else f"it has {size} bytes, and its header says {end}"


def _object(file: Path) -> tuple[Mapping[str, Any], list[Problem]]:
    """Read a JSON object; empty if there is no file."""
    try:
        value = json.loads(read_regular(file))
    except FileNotFoundError:
        if not file.is_symlink():
            return {}, []
        return {}, [Problem(file, "it is a link to a file that is not there")]
    except OSError as error:
        return {}, [unreadable(file, error)]
    except (ValueError, RecursionError):
        return {}, [Problem(file, pointer_in(file) or "it is not JSON: it was cut off or damaged")]
    if isinstance(value, dict):
        return value, []
    return {}, [Problem(file, "it is not a JSON object")]


def text_problems(checkpoint: CheckpointFolder) -> Iterator[Problem]:
    """Find files of the tokenizer and the like that were cut off."""
    folder, kinds = checkpoint.folder, _BINARY
    if checkpoint.saved_by is SavedBy.TRAINER:  # a file that a person wrote may end without a line break
        kinds = {**_BINARY, **_LINES}
    for pattern in _JSON_FILES:
        for file in sorted(folder.glob(pattern)):
            yield from _object(file)[1]
    for pattern, is_whole in kinds.items():
        for file in sorted(folder.glob(pattern)):
            try:
                is_cut = not is_whole(read_regular(file))
            except OSError as error:
                yield unreadable(file, error)
                continue
            if is_cut:
                yield Problem(file, pointer_in(file) or "it is cut off")


def _ends_with_a_field(data: bytes) -> bool:
    """Whether a message of protobuf ends where its last field does.

    SentencePiece writes the pieces as field 1, and then its settings as field 2. Files of tiktoken have the
    same name, and are text.
    """
    if data and not data.startswith(b"\n"):
        return True
    at, last = 0, 0
    while at < len(data):
        tag, at = _varint(data, at)
        last, kind = tag >> 3, tag & 7
        if kind not in _FIELD_BYTES or not last > 0:
            return False
        size, at = (_FIELD_BYTES[kind], at) if _FIELD_BYTES[kind] else _varint(data, at)
        at += size if kind else 0
    return at == len(data) and last > 1


def _ends_with_a_line(data: bytes) -> bool:
    return data.endswith(b"\n")


_Kinds = Mapping[str, Callable[[bytes], bool]]

_BINARY: _Kinds = {"*.model": _ends_with_a_field}
_LINES: _Kinds = {"vocab.txt": _ends_with_a_line, "merges.txt": _ends_with_a_line}
"""Files of tokenizers → whether they end as they were written."""

_FIELD_BYTES = {0: 0, 1: 8, 2: 0, 5: 4}
"""Kind of a field → its bytes; 0 for one that begins with a number, which for kind 2 is its length."""


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a number, and return where it ends; beyond the end of the data if it is cut off."""
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at
    return value, len(data) + 1


def _indexes(folder: Path, by_file: Mapping[Path, _Entries]) -> Iterator[Problem]:
    for index in sorted(folder.glob("*.index.json")):
        value, bad = _object(index)
        places = value.get("weight_map")
        if bad or not isinstance(places, dict):
            yield from bad or [Problem(index, "it is damaged")]
            continue
        for name in sorted(set(map(str, places.values()))):
            file = folder / name
            if not os.path.exists(file):  # noqa: PTH110 - Path's raises for a name that is too long
                yield Problem(file, f"it is missing, and `{index.name}` names it")
            elif file in by_file:
                listed = {tensor for tensor, place in places.items() if place == name}
                if missing := sorted(listed - by_file[file].keys()):
                    yield Problem(file, f"it lacks {_some(missing)}, for which `{index.name}` names it")


def _incomplete_shards(folder: Path) -> Iterator[Problem]:
    """Find shards of a model without an index, by which alone they are found, or without the others."""
    names = map(_SHARD.fullmatch, (file.name for file in weight_files(folder)))
    sets: dict[tuple[str, str, str], set[int]] = {}
    for name in filter(None, names):
        sets.setdefault((name["stem"], name["count"], name["kind"]), set()).add(int(name["number"]))
    for (stem, count, kind), numbers in sets.items():
        index = folder / f"{stem}.{kind}.index.json"
        if index.exists() or (folder / f"{stem}.{kind}").exists() or int(count) == 1:
            continue
        missing = sorted(set(range(1, int(count) + 1)) - numbers)
        if missing:
            message = f"it is missing: {len(numbers)} of {int(count)} shards are there"
            yield Problem(folder / f"{stem}-{missing[0]:05}-of-{count}.{kind}", message)
        yield Problem(index, f"it is missing, and the {int(count)} shards are found by it")


def _without_numbers(by_file: Mapping[Path, _Entries]) -> Iterator[Problem]:
    for file, entries in by_file.items():
        placeholders = sum(entry.is_placeholder for entry in entries.values())
        if not entries:
            yield Problem(file, "it has no tensors")
        elif placeholders == len(entries):
            yield Problem(file, f"its tensors are empty: {_EMPTY}")
        elif placeholders:
            yield Problem(file, f"{placeholders} of {plural(len(entries), 'tensor')} are empty: {_EMPTY}")


# an adapter


def _adapter(
    file: Path, entries: _Entries, config: Mapping[str, Any], trained: Shapes, hint: str
) -> Iterator[Problem]:
    beside = file.with_name(ADAPTER_CONFIG)
    if not beside.exists():
        yield Problem(beside, f"it is missing, and `{file.name}` cannot be loaded without it")
        return
    yield from _incomplete_modules(file, entries, config)
    yield from _missing_trained(file, entries, config)
    yield from _virtual_tokens(file, entries, config)
    yield from _wrong_ranks(file, entries, config)
    if not trained and (message := _missing_layers(file.parent, entries, config)) is not None:
        yield Problem(file, message)
    if config.get("peft_type") != "LORA":
        return
    named = {name_in_file(name): shape for name, shape in trained.items() if ".lora_" in name}
    if missing := sorted(named.keys() - entries.keys() - {""}):
        yield Problem(file, f"it lacks {_some(missing)}, which trained{hint}")
    yield from _other_shapes(file, entries, named, hint)


def _missing_layers(folder: Path, entries: _Entries, config: Mapping[str, Any]) -> str | None:
    """Say in which layers the adapter is missing, if the config.json of the model is at hand."""
    targets = config.get("target_modules")
    if any(config.get(key) for key in _CHOOSES_LAYERS) or not isinstance(targets, list):
        return None
    if any(re.search(r"\d", str(target)) for target in targets):  # it names layers
        return None
    named = config.get("base_model_name_or_path")
    model, _ = _object(folder / CONFIG)
    if not model and isinstance(named, str) and named:
        model, _ = _object(Path(named, CONFIG))
    modules = {match["module"] for match in map(_PART.fullmatch, entries) if match is not None}
    return adapter_unlike_config(model, modules) if modules else None


def _incomplete_modules(file: Path, entries: _Entries, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Find modules of which the file has some parts, and not all that peft needs."""
    modules: dict[str, set[str]] = {}
    for match in filter(None, map(_PART.fullmatch, entries)):
        modules.setdefault(match["module"], set()).add(match["part"])
    kind = str(config.get("peft_type"))
    if kind in _PARTS and config.get("target_modules") and not modules:
        yield Problem(file, f"it has no tensors of an adapter, and `{ADAPTER_CONFIG}` says `{kind}`")
    if odd := [module for module in modules if not _IN_BASE.match(module)]:
        message = f"peft looks for its tensors as `base_model.model.…`, and it has `{odd[0]}`"
        yield Problem(file, message)
        return
    usual = {*_PARTS.get(kind, ())}
    of_embedding = {*_PARTS_OF_EMBEDDING}
    if config.get("use_dora"):
        usual.add(_MAGNITUDE)
        of_embedding.add(_MAGNITUDE)
    if config.get("lora_bias"):
        usual.add("lora_B.bias")
    lacking: dict[str, list[str]] = {}
    for module, present in modules.items():
        needed = usual if present.isdisjoint(_PARTS_OF_EMBEDDING) else of_embedding
        for part in needed - present:
            lacking.setdefault(part, []).append(f"{module}.{part}")
    if lacking:
        names = max(lacking.values(), key=len)
        yield Problem(file, f"it lacks {_some(sorted(names))}, and has other parts of the same adapters")


def _missing_trained(file: Path, entries: _Entries, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Find modules that trained whole beside the adapter, as far as the model is known to have them."""
    if config.get("trainable_token_indices") and not any(_TOKENS in name for name in entries):
        yield Problem(file, f"it lacks the tokens of `trainable_token_indices` in `{ADAPTER_CONFIG}`")
    named = config.get("modules_to_save")
    wanted = [one for one in named if isinstance(one, str)] if isinstance(named, list) else []
    held = [name for name in entries if not _PART.fullmatch(name)]
    missing = [one for one in wanted if not _has_module(one, held)]
    heads = _HEADS.intersection(wanted)  # peft adds the names that heads have in any model
    if not heads.issubset(missing):
        missing = [one for one in missing if one not in heads]
    is_usual = any(map(_USUAL_LAYER.search, entries))
    is_certain = missing == wanted and (is_usual or not heads)
    if missing and not is_certain:
        usual = _USUAL_MODULES.get(str(config.get("task_type")), ())
        of_model = _names_of_base(config)
        missing = [one for one in missing if (is_usual and one in usual) or _has_module(one, of_model)]
    if missing:
        yield Problem(file, f"it lacks `{missing[0]}`, which `modules_to_save` in `{ADAPTER_CONFIG}` names")


def _has_module(name: str, tensors: Iterable[str]) -> bool:
    return any(f"{name}." in tensor for tensor in tensors)


def _names_of_base(config: Mapping[str, Any]) -> list[str]:
    """List the tensors of the model under an adapter, if it is at hand."""
    named = config.get("base_model_name_or_path")
    if not isinstance(named, str) or not named or not Path(named).is_dir():
        return []
    by_file, _ = _read_all(weight_files(Path(named)))
    return [name for entries in by_file.values() for name in entries]


def _virtual_tokens(file: Path, entries: _Entries, config: Mapping[str, Any]) -> Iterator[Problem]:
    count, prompt = config.get("num_virtual_tokens"), entries.get("prompt_embeddings")
    if config.get("peft_type") not in _OF_PROMPTS or not isinstance(count, int):
        return
    if prompt is None or not prompt.shape:
        yield Problem(file, "it lacks `prompt_embeddings`")
        return
    modules = config.get("num_transformer_submodules")
    if prompt.shape[0] not in (count, count * (whole(modules) or 2)):
        message = f"it has {plural(prompt.shape[0], 'virtual token')}, and `{ADAPTER_CONFIG}` says {count}"
        yield Problem(file, message)


def _wrong_ranks(file: Path, entries: _Entries, config: Mapping[str, Any]) -> Iterator[Problem]:
    """Compare the ranks of matrices with the settings."""
    rank, others = config.get("r"), config.get("rank_pattern")
    part = _WITH_RANK.get(str(config.get("peft_type")))
    ranks = {rank}
    if isinstance(others, Mapping):
        ranks.update(others.values())
    if part is None or config.get("target_parameters") or not isinstance(rank, int):
        return  # experts: the matrices of all of them are one
    for name, entry in entries.items():
        if name.endswith(f".{part}") and entry.shape and entry.shape[0] not in ranks:
            message = f"`{name}` has rank {entry.shape[0]}, and `{ADAPTER_CONFIG}` says {rank}"
            yield Problem(file, message)
            return


# a whole model


def _model(
    folder: Path,
    by_file: Mapping[Path, _Entries],
    config: Mapping[str, Any],
    trained: Shapes,
    hint: str,
) -> Iterator[Problem]:
    entries: dict[str, _Entry] = {}
    for more in by_file.values():
        entries.update(more)
    file = next(iter(by_file)) if len(by_file) == 1 else folder
    shapes = {name: entry.shape for name, entry in entries.items()}
    if (message := unlike_config(config, shapes)) is not None:
        yield Problem(file, message + hint)
        return
    yield from _other_shapes(file, entries, trained, hint)
    yield from _missing(file, shapes, trained, hint)


def _missing(file: Path, shapes: Shapes, trained: Shapes, hint: str) -> Iterator[Problem]:
    """Find parameters that trained, unless the file has few of them, or may have them under other names."""
    missing = sorted(trained.keys() - shapes.keys())
    others = {shape for name, shape in shapes.items() if name not in trained}
    missing = [name for name in missing if trained[name] not in others]
    if missing and len(trained.keys() & shapes.keys()) > len(trained) // 2:
        yield Problem(file, f"it lacks {_some(missing)}, which trained{hint}")


def _other_shapes(file: Path, entries: _Entries, trained: Shapes, hint: str) -> Iterator[Problem]:
    odd = [name for name, entry in entries.items() if trained.get(name, entry.shape) != entry.shape]
    if odd:
        yield Problem(file, f"{_some(odd)} {_have(odd)} another shape than in the engine's files{hint}")


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _some(names: Sequence[str]) -> str:
    """Name a tensor, and count the others."""
    if len(names) == 1:
        return f"`{names[0]}`"
    return f"{len(names)} tensors, such as `{names[0]}`"
