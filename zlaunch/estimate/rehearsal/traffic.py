"""The collectives of a step, counted where the process groups of a rehearsal run them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from deepspeed.utils import groups
from torch import distributed
from torch._ops import OpOverload

from zlaunch.estimate.forecast import CountedCollective

_KINDS: Final = {
    "allreduce": "all-reduce",
    "reduce": "reduce",
    "reduce_scatter": "reduce-scatter",
    "_reduce_scatter_base": "reduce-scatter",
    "reduce_scatter_tensor_coalesced": "reduce-scatter",
    "allgather": "all-gather",
    "_allgather_base": "all-gather",
    "allgather_into_tensor_coalesced": "all-gather",
    "alltoall": "all-to-all",
    "alltoall_base": "all-to-all",
    "dim_zero_all_to_all": "all-to-all",
}
"""Operator, without the `_` of those that write to their arguments → the kind of collective."""

_Key = tuple[str, str, int]
"""Kind, what it is of, ranks."""


@dataclass
class TrafficCounter:
    """Counts the collectives of micro-steps, each from its `begin` on."""

    _steps: list[dict[_Key, tuple[int, int]]] = field(default_factory=list)

    def begin(self) -> None:
        """Begin a micro-step."""
        self._steps.append({})

    def note(self, func: OpOverload, args: Sequence[Any]) -> None:
        """Count what an operator does, if it is a collective."""
        if self._steps and (kind := _KINDS.get(func.__name__.partition(".")[0].removesuffix("_"))):
            self.add(kind, max(map(_nbytes, args)), _group_of(args))

    def add(self, kind: str, nbytes: int, group: "distributed.ProcessGroup | None") -> None:
        """Count a collective of a group with so many bytes, summed over its ranks."""
        if not self._steps:
            return
        key = kind, _what(kind, group), distributed.get_world_size(group)
        calls, total = self._steps[-1].get(key, (0, 0))
        self._steps[-1][key] = calls + 1, total + nbytes

    def counted(self) -> Iterator[CountedCollective]:
        """Yield what was counted in each micro-step."""
        for number, step in enumerate(self._steps, 1):
            for (kind, of, ranks), (calls, nbytes) in step.items():
                if ranks > 1:
                    yield CountedCollective(kind, of, ranks, nbytes, calls, number == len(self._steps))


def _nbytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return int(value.numel() * value.element_size())
    if isinstance(value, (list, tuple)):
        return sum(map(_nbytes, value))
    return 0


def _group_of(args: Sequence[Any]) -> "distributed.ProcessGroup | None":
    """Return the process group among the arguments of an operator; None for all ranks."""
    for value in args:
        if isinstance(value, torch.ScriptObject) and value._type().name() == "ProcessGroup":
            return distributed.ProcessGroup.unbox(value)
        if isinstance(value, str):  # an operator of DeepSpeed names its group
            from deepspeed.sequence.layer import _all_to_all_groups

            group: distributed.ProcessGroup = _all_to_all_groups[value]
            return group
    return None


def sequence_group() -> "distributed.ProcessGroup | None":
    """Return the ranks that share a sequence; None if each has its own."""
    sharing = getattr(groups.mpu, "get_sequence_parallel_group", None)
    if sharing is None or groups._get_sequence_parallel_world_size() == 1:
        return None
    group: distributed.ProcessGroup = sharing()
    return group


def _what(kind: str, group: "distributed.ProcessGroup | None") -> str:
    """Say what a collective is of: ranks that share layers or sequences exchange activations."""
    sharing_layers = getattr(groups, "_TENSOR_MODEL_PARALLEL_GROUP", None)  # since DeepSpeed 0.16.4
    if group is not None and group in (sharing_layers, sequence_group()):
        return "activations"
    if kind == "all-gather":
        return "parameters"
    return "gradients"
