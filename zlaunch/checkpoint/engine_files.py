"""The files of DeepSpeed's engine in a checkpoint: names, and what they contain.

Sources: `_get_ckpt_name`, `_get_zero_ckpt_name` and `save_checkpoint` in deepspeed/runtime/engine.py,
`state_dict` in deepspeed/runtime/zero/stage_1_and_2.py, stage3.py and ../bf16_optimizer.py, and
deepspeed/utils/zero_to_fp32.py.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from zlaunch.checkpoint.flat_groups import Shapes, can_be_reordered
from zlaunch.checkpoint.torch_file import Archive, BadArchive, Tensor, Unknown, UnknownLayout
from zlaunch.frozen import dataclass
from zlaunch.units import whole

_MODEL = re.compile(r"(?:zero_pp_rank_(?P<dp>\d+)_)?mp_rank_(?P<mp>\d+)(?:_\d+)?_model_states\.pt")
_BF16 = "bf16_"
_OPTIM = re.compile(rf"(?:{_BF16}|fp16_)?zero_pp_rank_(?P<dp>\d+)_mp_rank_(?P<mp>\d+)_optim_states\.pt")
_EXPERT = re.compile(r"layer_(?P<layer>\d+)_expert_(?P<expert>\d+)_mp_rank_00_model_states\.pt")
_EXPERT_OPTIM = re.compile(r"expp_rank_\d+_mp_rank_00_optim_states\.pt")
_LAYER = re.compile(r"layer_(?P<layer>\d+)-(?:.+-)?model_states\.pt")
_OTHER = re.compile(r"(layer_.*|expp_rank_.*|.*expert.*)[_-](model|optim)_states\.pt")

_DTYPES = {"bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16"}
"""Section of a ds_config → the type in which it trains."""

_MOMENTS = ("exp_avg", "exp_avg_sq")
_FP32_GROUPS = "single_partition_of_fp32_groups"
"""Where stages 1 and 2 have the fp32 parameters of a rank."""

Part = TypeVar("Part")

OFFLOADED = "offloaded_tensors"
"""Where the engine copies what was on NVMe, in a directory `rank00` for each rank."""

MOST_STEPS, MOST_RANKS = 1e18, 1 << 20
"""Larger numbers cannot be steps or ranks."""


@dataclass(frozen=True)
class EngineFiles:
    """The files of one save, by the rank of data parallelism and that of model parallelism."""

    folder: Path
    model: Mapping[tuple[int | None, int], Path]
    """None as the first rank: the model is whole, as it is below stage 3."""
    optim: Mapping[tuple[int, int], Path]
    other: Sequence[Path]
    """Files of experts and of pipeline layers."""

    @property
    def fits_all_stages(self) -> bool:
        """Whether the model's file has the names that all stages look for, as `fit_all_stages` gives them."""
        return {dp for dp, _ in self.model} >= {None, 0}

    @property
    def is_bf16(self) -> bool | None:
        """Whether its names are those that a job in bf16 looks for; None without an optimizer of ZeRO."""
        if not self.optim:
            return None
        return any(file.name.startswith(_BF16) for file in self.optim.values())

    @property
    def first_model(self) -> "ModelFile":
        """What one of the files says of the model; raise StopIteration if there is none."""
        return ModelFile(next(iter(self.model.values())))

    @property
    def layers(self) -> dict[int, Path]:
        """The files of the layers of a pipeline; of several parts of a layer, one."""
        names = {file: _LAYER.fullmatch(file.name) for file in self.other}
        return {int(name["layer"]): file for file, name in names.items() if name}

    @property
    def unknown(self) -> list[Path]:
        """Files that are neither of experts nor of layers."""
        known = (_EXPERT, _EXPERT_OPTIM, _LAYER)
        return [file for file in self.other if not any(name.fullmatch(file.name) for name in known)]

    def obstacle(self, model: "ModelFile", shard: "OptimFile") -> str | None:
        """Say why its optimizer cannot be converted."""
        if self.layers:
            return "it is of a pipeline, which zlaunch does not convert"
        if len({mp for _, mp in self.model}) > 1 and not model.says_how_it_is_cut:
            return "it does not say how model parallelism has cut its parameters"
        names = chain(model.module, model.frozen, *model.shapes, shard.slices)
        if (name := next(filter(_is_path, names), None)) is not None:
            return f"the conversion makes a directory for each parameter, and `{name}` cannot be its name"
        return shard.obstacle

    @property
    def experts(self) -> dict[tuple[int, int], Path]:
        """The files of experts of DeepSpeed's own MoE layer, by layer and expert."""
        names = {file: _EXPERT.fullmatch(file.name) for file in self.other}
        return {(int(name["layer"]), int(name["expert"])): file for file, name in names.items() if name}


def engine_files(folder: Path) -> EngineFiles | None:
    """Find the files that the engine has saved in a directory; None if there are none."""
    model: dict[tuple[int | None, int], Path] = {}
    optim: dict[tuple[int, int], Path] = {}
    other = []
    for file in sorted(filter(Path.is_file, folder.glob("*_states.pt"))):
        if (name := _MODEL.fullmatch(file.name)) is not None:
            dp = name["dp"]
            model[None if dp is None else int(dp), int(name["mp"])] = file
        elif (name := _OPTIM.fullmatch(file.name)) is not None:
            optim[int(name["dp"]), int(name["mp"])] = file
        elif _OTHER.fullmatch(file.name):
            other.append(file)
    return EngineFiles(folder, model, optim, other) if model or optim or other else None


class ModelFile:
    """One `*_model_states.pt`. Raise BadArchive if it is damaged, UnknownLayout if it is another file."""

    def __init__(self, file: Path) -> None:
        """Read the structure, not the numbers."""
        self.archive = Archive(file)
        self._state: Mapping[str, Any] = _dict(self.archive.value, file)
        if not isinstance(self._state.get("module"), dict) and not self.is_of_pipeline:
            raise UnknownLayout("it has no model in it")

    @property
    def module(self) -> Mapping[str, Tensor]:
        """All parameters and buffers, empty ones where stage 3 has partitioned them."""
        return _members_of_type(self._state["module"], Tensor)

    @property
    def is_of_pipeline(self) -> bool:
        """Whether the parameters are in files of layers."""
        return "dp_world_size" in self._state and self._state.get("module", ()) is None

    @property
    def says_how_it_is_cut(self) -> bool:
        """Whether DeepSpeed can put together what tensor parallelism has cut."""
        return isinstance(self._state.get("universal_checkpoint_info"), dict)

    @cached_property
    def shapes(self) -> list[Shapes]:
        """The whole shapes of all trained parameters, by group of the optimizer."""
        return list(map(_shapes, _items_of(self._state.get("param_shapes"), dict)))

    @property
    def trained(self) -> set[str]:
        """Names of all trained parameters."""
        return set(chain.from_iterable(self.shapes))

    @cached_property
    def frozen(self) -> Shapes:
        """The whole shapes of all frozen parameters."""
        return _shapes(self._state.get("frozen_param_shapes"))

    @cached_property
    def frozen_fragments(self) -> Mapping[str, Tensor]:
        """What this rank has of all frozen parameters."""
        return _members_of_type(self._state.get("frozen_param_fragments"), Tensor)

    @cached_property
    def shared(self) -> Mapping[str, str]:
        """Name of a shared parameter → the name under which it is kept."""
        return _members_of_type(self._state.get("shared_params"), str)

    @cached_property
    def buffers(self) -> Mapping[str, Tensor]:
        """The buffers, whole in every file."""
        names = set(_items_of(self._state.get("buffer_names"), str))
        return {name: tensor for name, tensor in self.module.items() if name in names}

    @property
    def num_experts(self) -> list[int]:
        """How many experts each MoE layer of DeepSpeed has."""
        counts = _items_of(self._state.get("num_experts"), int)
        return [count for count in counts if 0 <= count <= MOST_RANKS]

    @property
    def step(self) -> int | None:
        """Steps of the optimizer so far."""
        return whole(self._state.get("global_steps"))

    @property
    def ranks(self) -> int | None:
        """Ranks of data parallelism."""
        return _rank_count(self._state.get("dp_world_size"))

    @property
    def model_ranks(self) -> int | None:
        """Ranks of tensor and pipeline parallelism."""
        return _rank_count(self._state.get("mp_world_size"))

    @property
    def release(self) -> str | None:
        """The version of DeepSpeed."""
        release = self._state.get("ds_version")
        return release if isinstance(release, str) else None

    @property
    def config(self) -> Mapping[str, Any]:
        """The ds_config."""
        config = self._state.get("ds_config")
        return config if isinstance(config, dict) else {}

    @property
    def has_writer(self) -> bool:
        """Whether the ds_config has a checkpoint writer, with which an engine cannot load this either."""
        section = self.config.get("checkpoint")
        return isinstance(section, dict) and section.get("writer") is not None

    @property
    def _zero(self) -> Mapping[str, Any]:
        zero = self.config.get("zero_optimization")
        return zero if isinstance(zero, dict) else {}

    @property
    def stage(self) -> int | None:
        """The stage in the ds_config."""
        return whole(self._zero.get("stage", 0))

    @property
    def dtype(self) -> str | None:
        """The type in which it trained, or else that of most of its tensors.

        At stage 3 an adapter has the type in which peft made it: its tensors are empty, and say nothing.
        """
        for name, dtype in _DTYPES.items():
            section = self.config.get(name)
            if isinstance(section, dict) and section.get("enabled") is True:
                return dtype
        types = Counter(tensor.dtype for name, tensor in self.module.items() if name not in self.buffers)
        return types.most_common(1)[0][0] if types else None

    @property
    def is_round_robin(self) -> bool | None:
        """Whether `round_robin_gradients` deals the parameters out to the ranks; None if they are too few."""
        if self.stage not in (1, 2) or not can_be_reordered(self.shapes, self.ranks or 1):
            return None
        return self._zero.get("round_robin_gradients", False) is True

    @property
    def offload(self) -> str:
        """Where the ds_config keeps the optimizer: none, cpu or nvme."""
        offload = self._zero.get("offload_optimizer")
        device = offload.get("device") if isinstance(offload, dict) else None
        if device == "nvme" and self.stage != 3:  # as DeepSpeed takes it
            return "cpu"
        return device if isinstance(device, str) else "none"

    @property
    def not_restored(self) -> list[str]:
        """Buffers and frozen parameters: DeepSpeed does not load those of a universal checkpoint."""
        return [*self.buffers, *self.frozen]

    @property
    def has_fp32_master(self) -> bool:
        """Whether the optimizer trains in fp32, as it does unless the ds_config says otherwise."""
        for name in ("bf16", "fp16"):
            section = self.config.get(name)
            if isinstance(section, dict) and section.get(f"{name}_master_weights_and_grads"):
                return False
        return True

    @property
    def is_partitioned(self) -> bool:
        """Whether the parameters are in the files of the optimizer, as at stage 3, and only empty here."""
        if self.is_of_pipeline or not self.shapes:
            return False
        trained = self.trained
        return not any(tensor.numel for name, tensor in self.module.items() if name in trained)

    @property
    def has_optimizer(self) -> bool:
        """Whether the state of the optimizer is in this file, as it is at stage 0."""
        return self._state.get("optimizer") is not None


class OptimFile:
    """One `*_optim_states.pt`: what a rank has of the optimizer.

    Raise BadArchive if it is damaged, UnknownLayout if it is another file.
    """

    def __init__(self, file: Path) -> None:
        """Read the structure, not the numbers."""
        self.archive = Archive(file)
        content = _dict(self.archive.value, file)
        self._state: Mapping[str, Any] = _dict(content.get("optimizer_state_dict"), file)
        stage = self._state.get("zero_stage")
        if isinstance(stage, Unknown) and stage.args:  # an enum
            stage = stage.args[0]
        self.is_of_bf16_optimizer = stage is None and isinstance(self._state.get(_FP32_GROUPS), list)
        """Whether `BF16_Optimizer` saved it, which cuts the optimizer as stage 1 does, and names no stage."""
        if self.is_of_bf16_optimizer:
            stage = 1
        if not isinstance(stage, int):
            raise UnknownLayout("it has no state of a ZeRO optimizer in it")
        self.stage = int(stage)

    @cached_property
    def _partition_counts(self) -> list[int]:
        count = self._state.get("partition_count")
        counts = map(_rank_count, count if isinstance(count, list) else [count])
        return [ranks for ranks in counts if ranks is not None]

    @property
    def ranks(self) -> int | None:
        """Ranks of data parallelism, among which the optimizer is partitioned; the most, if groups differ."""
        return max(self._partition_counts, default=None)

    @property
    def is_elastic(self) -> bool:
        """Whether `elastic_checkpoint` was on, with which a list takes the place of the optimizer's state."""
        return isinstance(self._state.get("base_optimizer_state"), list)

    @property
    def cannot_load(self) -> str | None:
        """Say why DeepSpeed cannot load it.

        It asks an elastic one for the step that its own Adam on GPUs counts for a group, and others do not
        (`state_dict` and `_restore_step_from_elastic_checkpoint` in runtime/zero/stage_1_and_2.py).
        """
        if self.is_elastic and "base_optimizer_state_step" not in self._state:
            return (
                "`zero_optimization.elastic_checkpoint` saved it without the step, and DeepSpeed needs that"
            )
        return None

    @property
    def obstacle(self) -> str | None:
        """Say why DeepSpeed cannot convert it."""
        if self.is_elastic:
            return "`zero_optimization.elastic_checkpoint` saved it, and DeepSpeed converts none of those"
        if not self.has_adam_states:
            return "it has no moments of Adam, and DeepSpeed converts no other optimizer"
        if len(set(self._partition_counts)) > 1:  # then the experts of different ranks have the same names
            return "its ranks trained different experts, which DeepSpeed takes for parts of the same ones"
        return None

    @cached_property
    def groups(self) -> list[Tensor]:
        """The fp32 parameters of this rank, flat, by group of the optimizer."""
        groups = self._state.get("fp32_flat_groups" if self.stage == 3 else _FP32_GROUPS)
        if not isinstance(groups, list) or not all(isinstance(group, Tensor) for group in groups):
            raise UnknownLayout("it has no master weights")
        return groups

    @property
    def is_swapped(self) -> bool:
        """Whether some of its numbers were on NVMe, and are files of `OFFLOADED`."""
        groups = _items_of(self._state.get("fp32_flat_groups"), Tensor)
        return any(not group.numel and group.ds_id for group in groups)

    def empty_states(self, group: int) -> list[str]:
        """Name the states of a group of parameters that were on NVMe, and are empty here."""
        base = self._state.get("optimizer_state_dict")
        states = base.get("state") if isinstance(base, dict) else None
        state = states.get(group) if isinstance(states, dict) else None
        return [name for name, tensor in _members_of_type(state, Tensor).items() if not tensor.numel]

    @cached_property
    def paddings(self) -> list[list[int]] | None:
        """Elements after each parameter of each group, for alignment; None if the release has none."""
        paddings = self._state.get("param_alignment_paddings")
        if not isinstance(paddings, list):
            return None
        return [_items_of(group, int) for group in _items_of(paddings, list)]

    @cached_property
    def slices(self) -> Mapping[str, Unknown]:
        """Where stages 1 and 2 have what this rank has of each parameter, by its name."""
        slices: dict[str, Unknown] = {}
        for group in _items_of(self._state.get("param_slice_mappings"), dict):
            slices.update(_members_of_type(group, Unknown))
        return slices

    @cached_property
    def shares(self) -> list[int]:
        """The elements that a rank has of each group at stages 1 and 2, with the padding at its end."""
        if self.is_of_bf16_optimizer:  # it saves the padding, too
            return [group.numel for group in self.groups]
        paddings = _items_of(self._state.get("group_paddings"), int)
        return [group.numel + padding for group, padding in zip(self.groups, paddings, strict=True)]

    @cached_property
    def _optimizer(self) -> Mapping[str, Any]:
        saved = self._state.get("base_optimizer_state") or self._state.get("optimizer_state_dict")
        return saved if isinstance(saved, dict) else {}

    @cached_property
    def _states(self) -> list[Mapping[str, Any]]:
        """What the optimizer keeps for each group, or each part of one at stage 3."""
        states = self._optimizer.get("state")
        return _items_of(list(states.values()), dict) if isinstance(states, dict) else []

    @cached_property
    def optimizer_step(self) -> float | None:
        """The step that Adam counts, which is that of this shard."""
        for state in self._states:
            step = state.get("step")
            if isinstance(step, Tensor):
                with contextlib.suppress(BadArchive):
                    return self.archive.first(step)
            if isinstance(step, int | float) and abs(step) < MOST_STEPS:
                return float(step)
        return None

    @property
    def settings(self) -> frozenset[str]:
        """Names of the settings that all groups of the optimizer have."""
        groups = _items_of(self._optimizer.get("param_groups"), dict)
        names = [{name for name in group if isinstance(name, str)} for group in groups]
        return frozenset(set.intersection(*names)) if names else frozenset()

    @property
    def is_deepspeeds_adam(self) -> bool:
        """Whether DeepSpeed's Adam can load it: it needs a setting that torch's does not have."""
        return "bias_correction" in self.settings

    @property
    def has_adam_states(self) -> bool:
        """Whether both moments of Adam are in this file, or in those of `OFFLOADED`."""
        moments = list(chain.from_iterable(map(_moments, self._states)))
        tensors = _items_of(moments, Tensor)
        if not moments or len(tensors) < len(moments):
            return False
        return self.is_swapped or all(tensor.numel for tensor in tensors)

    @property
    def state_types(self) -> list[str]:
        """The types of the parameters and of both moments of Adam."""
        moments = _moments(self._states[0]) if self._states else []
        return [tensor.dtype for tensor in (*self.groups[:1], *_items_of(moments, Tensor))]


def _moments(state: Mapping[str, Any]) -> list[object]:
    return [state.get(name) for name in _MOMENTS]


def _is_path(name: str) -> bool:
    """Whether the name of a parameter would be another directory than one of its own, such as `../other`."""
    return name in ("", ".", "..") or "/" in name


def _dict(value: object, file: Path) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UnknownLayout(f"`{file.name}` has no named parts")
    return value


def _rank_count(value: object) -> int | None:
    count = whole(value)
    return count if count is not None and 0 < count <= MOST_RANKS else None


def _items_of(value: object, kind: type[Part]) -> list[Part]:
    if not isinstance(value, list | tuple):
        return []
    return [item for item in value if isinstance(item, kind)]


def _members_of_type(value: object, kind: type[Part]) -> dict[str, Part]:
    if not isinstance(value, dict):
        return {}
    return {name: item for name, item in value.items() if isinstance(name, str) and isinstance(item, kind)}


def _shapes(value: object) -> Shapes:
    return {name: tuple(_items_of(shape, int)) for name, shape in _members_of_type(value, tuple).items()}
