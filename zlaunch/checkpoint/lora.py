"""Adapters of peft in a checkpoint: kept as `PeftModel.from_pretrained` loads them, or merged into the model.

Names are those of peft: `get_peft_model_state_dict` in peft/utils/save_and_load.py. The product of an
adapter's matrices is that of `get_delta_weight` in peft/tuners/lora/layer.py, in fp32.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zlaunch.checkpoint.dtypes import BLOCK, FLOATS, convert
from zlaunch.checkpoint.find import weight_files
from zlaunch.checkpoint.safetensors import SafetensorsFile
from zlaunch.checkpoint.torch_file import Archive, BadArchive, Tensor
from zlaunch.checkpoint.weights import StoredWeight
from zlaunch.errors import InputMissing, Unavailable
from zlaunch.files import read_regular
from zlaunch.frozen import dataclass

if TYPE_CHECKING:
    import numpy as np

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_MODEL = "adapter_model"
"""How the names of files of an adapter begin."""

_PREFIX = "base_model.model."
"""Before the name that a parameter has in the model itself."""

_PART = re.compile(
    r"(?P<module>.+)\.(?P<kind>lora_[A-Za-z_]+|modules_to_save|trainable_tokens_delta)\.(?P<adapter>[^.]+)"
    r"(?:\.(?P<rest>.+))?"
)
_MATRICES = {"lora_A": "lora_B", "lora_embedding_A": "lora_embedding_B"}
"""Kind of the matrix that is applied first → kind of the second."""

_NOT_MERGED = (
    *("use_dora", "lora_bias", "use_qalora", "use_bdlora", "alora_invocation_tokens", "arrow_config"),
    *("kasa_config", "monteclora_config", "layer_replication", "trainable_token_indices"),
)
"""Settings with which an adapter is more than a product of two matrices."""

_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Ways to initialize an adapter that change the model under it."""

_BY_HAND = "export without `--merge-lora`, and merge with peft's `merge_and_unload`"


@dataclass(frozen=True)
class Adapter:
    """One adapter of a model, and its settings."""

    name: str
    config_file: Path
    config: Mapping[str, Any]

    @property
    def local_model(self) -> Path | None:
        """The directory of the model under it, if its settings name one that is here."""
        named = self.config.get("base_model_name_or_path")
        folder = Path(named) if isinstance(named, str) and named else None
        if folder and (folder / "config.json").is_file():
            return folder
        return None

    def scaling(self, module: str, rank: int) -> float:
        """The factor before the product of the matrices of a module."""
        try:
            patterns = self.config.get("alpha_pattern") or {}
            alphas = (value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
            alpha = next(alphas, self.config.get("lora_alpha", 8))
            return float(alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank))
        except (TypeError, AttributeError, re.error):
            raise Unavailable(f"`{self.config_file}` is damaged: its `lora_alpha` is not a number") from None


def adapter_in(stored: Sequence[StoredWeight], folders: Sequence[Path]) -> Adapter | None:
    """Find the adapter among the weights of a checkpoint; its settings are in one of the directories.

    Raise Unavailable for several adapters, or one that is not LoRA, and InputMissing without the settings.
    """
    names = {part["adapter"] for part in _adapter_names(stored).values()}
    if not names and not any(weight.name.startswith(_PREFIX) for weight in stored):
        return None
    files = [folder / ADAPTER_CONFIG for folder in folders if (folder / ADAPTER_CONFIG).is_file()]
    if not files:
        raise InputMissing(
            f"the model has an adapter, and there is no {ADAPTER_CONFIG} in `{folders[0]}`",
            f'write it with `model.peft_config["default"].save_pretrained("{folders[0]}")`',
        )
    config = read_object(files[0])
    if not names or config.get("peft_type") != "LORA":
        raise Unavailable(f"the adapter is {config.get('peft_type')}, and only LoRA can be exported")
    if "default" in names:
        return Adapter("default", files[0], config)
    if len(names) > 1:
        raise Unavailable(
            f"the model has several adapters ({', '.join(sorted(names))}), and none is `default`"
        )
    return Adapter(min(names), files[0], config)


def _adapter_names(stored: Sequence[StoredWeight]) -> dict[str, re.Match[str]]:
    matches = {weight.name: _PART.fullmatch(weight.name) for weight in stored}
    return {name: match for name, match in matches.items() if match is not None}


def read_object(file: Path) -> Mapping[str, Any]:
    """Read a JSON object. Raise Unavailable if the file is damaged, or has another value."""
    try:
        config = json.loads(read_regular(file))
        if isinstance(config, dict):
            return config
    except (OSError, ValueError, RecursionError):
        pass
    raise Unavailable(f"`{file}` is damaged")


def adapter_weights(adapter: Adapter, stored: Sequence[StoredWeight]) -> list[StoredWeight]:
    """Choose the weights of the adapter, with the names that peft gives them in a file."""
    parts, chosen = _adapter_names(stored), []
    biases = _trained_biases(adapter, stored, parts)
    for weight in stored:
        part = parts.get(weight.name)
        if part is not None and part["adapter"] == adapter.name:
            chosen.append(replace(weight, name=_name_in_file(part)))
        elif part is None and weight.name in biases:
            chosen.append(weight)
    return chosen


def _trained_biases(
    adapter: Adapter, stored: Sequence[StoredWeight], parts: Mapping[str, re.Match[str]]
) -> set[str]:
    match adapter.config.get("bias"):
        case "all":
            return {weight.name for weight in stored if weight.name.endswith(".bias")}
        case "lora_only":
            return {f"{part['module']}.base_layer.bias" for part in parts.values()}
    return set()


def name_in_file(name: str) -> str:
    """Return the name that peft gives a parameter of an adapter in a file; empty for one of the model."""
    part = _PART.fullmatch(name)
    return "" if part is None else _name_in_file(part)


def _name_in_file(part: re.Match[str]) -> str:
    module, kind, rest = part["module"], part["kind"], part["rest"]
    if kind == "modules_to_save":
        return f"{module}.{rest}"
    if kind == "lora_magnitude_vector":  # a module in newer releases, and a parameter in files
        return f"{module}.{kind}"
    if rest:
        return f"{module}.{kind}.{rest}"
    return f"{module}.{kind}"


@dataclass(frozen=True)
class MergedWeight(StoredWeight):
    """A parameter of the model, to which the product of an adapter's matrices is added in fp32."""

    left: StoredWeight
    right: StoredWeight
    scaling: float
    is_transposed: bool
    base_dtype: str
    dtype: str = field(default="float32", init=False)

    def read(self) -> "Iterator[np.ndarray[Any, Any]]":
        """Compute its numbers, in order and in blocks."""
        left, right = _matrix(self.left, self.left.shape[0]), _matrix(self.right, self.right.shape[0])
        if self.is_transposed:
            left, right = right.T, left.T
        columns, at = right.shape[1], 0
        for numbers in super().read():
            for start in range(0, len(numbers), BLOCK):
                block = convert(numbers[start : start + BLOCK], self.base_dtype, "float32")
                first, last = at // columns, -(-(at + len(block)) // columns)
                product = (left[first:last] @ right).reshape(-1)[at - first * columns :]
                yield block + product[: len(block)] * self.scaling
                at += len(block)


def _matrix(weight: StoredWeight, rows: int) -> "np.ndarray[Any, Any]":
    import numpy as np

    return np.concatenate([convert(part, weight.dtype, "float32") for part in weight.read()]).reshape(
        rows, -1
    )


def merged_weights(
    adapter: Adapter, stored: Sequence[StoredWeight], base: Path | None, tied: Collection[str | int]
) -> list[StoredWeight]:
    """Compute the weights of the model itself, with the adapter in them.

    Those that the checkpoint does not have are those of a model in the directory `base`. Adapters of `tied`
    weights, by name or number of rows, would change two of them, and are refused. Raise Unavailable
    for adapters that are more than a product of matrices, InputMissing if weights are missing.

    peft's `merge_and_unload` would need the whole model in memory, and the class that it is made of.
    """
    if unusual := [key for key in _NOT_MERGED if adapter.config.get(key)]:
        raise Unavailable(f"an adapter with `{unusual[0]}` cannot be merged here", _BY_HAND)
    saved, matrices = _separated(adapter, stored)
    model = dict(saved)
    if base is not None:
        model = {**_weights_in(base), **saved}
    init = adapter.config.get("init_lora_weights")
    for (module, kind), first in matrices.items():
        if kind not in _MATRICES:
            continue
        name, second = f"{module}.weight", matrices.get((module, _MATRICES[kind]))
        if name not in saved and isinstance(init, str) and init.startswith(_CHANGES_BASE):
            raise Unavailable(
                f"`{init}` changed the weights of the model, which the checkpoint does not have"
            )
        if name not in model:
            raise _missing_weight(adapter, name, base)
        if not {name, _PREFIX + module + ".base_layer.weight", model[name].shape[0]}.isdisjoint(tied):
            raise Unavailable(
                f"`{name}` is tied to another parameter, so nothing is merged into it", _BY_HAND
            )
        if second is None:
            raise BadArchive(f"`{module}` has one of two matrices of its adapter")
        model[name] = _product(adapter, model[name], (module, kind), first, second)
    return list(model.values())


def _separated(
    adapter: Adapter, stored: Sequence[StoredWeight]
) -> tuple[dict[str, StoredWeight], dict[tuple[str, str], StoredWeight]]:
    """Separate what belongs to the model, by its own names, from matrices, by module and kind."""
    model: dict[str, StoredWeight] = {}
    replaced: dict[str, StoredWeight] = {}
    matrices: dict[tuple[str, str], StoredWeight] = {}
    parts = _adapter_names(stored)
    for weight in stored:
        part = parts.get(weight.name)
        if part is None:
            name = _name_in_model(weight.name)
            model[name.replace(".original_module.", ".")] = replace(weight, name=name)
        elif part["adapter"] == adapter.name and part["kind"] == "modules_to_save":
            name = _name_in_model(_name_in_file(part))
            replaced[name] = replace(weight, name=name)
        elif part["adapter"] == adapter.name:
            matrices[part["module"].removeprefix(_PREFIX), part["kind"]] = weight
    return {**model, **replaced}, matrices


def _name_in_model(name: str) -> str:
    return name.removeprefix(_PREFIX).replace(".base_layer.", ".")


def _missing_weight(adapter: Adapter, name: str, base: Path | None) -> Exception:
    if base is not None:
        return Unavailable(f"`{base}` has no `{name}` to merge the adapter into", _BY_HAND)
    model = adapter.config.get("base_model_name_or_path")
    of = ""
    if model:
        of = f", which is `{model}`"
    return InputMissing(
        f"the checkpoint has no weights of the model under the adapter{of}",
        "name the directory of that model: `--model DIR`",
    )


def _product(
    adapter: Adapter, base: StoredWeight, place: tuple[str, str], first: StoredWeight, second: StoredWeight
) -> StoredWeight:
    module, kind = place
    is_embedding = kind == "lora_embedding_A"
    is_transposed = is_embedding or bool(adapter.config.get("fan_in_fan_out"))
    rank = first.shape[0]
    if base.dtype not in FLOATS:
        raise Unavailable(f"`{base.name}` is quantized, and nothing can be merged into it", _BY_HAND)
    fits = (
        rank
        and base.numel
        and first.numel // rank * second.shape[0] == base.numel
        and second.numel == second.shape[0] * rank
    )
    if not fits:
        raise Unavailable(f"the adapter of `{module}` does not fit `{base.name}`", _BY_HAND)
    scaling = adapter.scaling(module, rank)
    return MergedWeight(base.name, base.shape, base.pieces, second, first, scaling, is_transposed, base.dtype)


def most_common_type(weights: Sequence[StoredWeight]) -> str:
    """The type of most parameters of a model, before an adapter is merged."""
    types = Counter(getattr(weight, "base_dtype", weight.dtype) for weight in weights)
    return next((dtype for dtype, _ in types.most_common() if dtype in FLOATS), "float32")


def _weights_in(folder: Path) -> dict[str, StoredWeight]:
    files = [file for file in weight_files(folder) if not file.name.startswith(ADAPTER_MODEL)]
    safe = [file for file in files if file.suffix == ".safetensors"]
    weights: dict[str, StoredWeight] = {}
    for path in safe:
        file = SafetensorsFile(path)
        weights |= {name: StoredWeight.whole(name, tensor, file) for name, tensor in file.tensors.items()}
    for path in () if safe else files:
        archive = Archive(path)
        for name, tensor in archive.value.items() if isinstance(archive.value, Mapping) else ():
            if isinstance(tensor, Tensor):
                weights[name] = StoredWeight.whole(name, tensor, archive)
    return weights
