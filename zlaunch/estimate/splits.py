"""What splits a model or its sequences in a way that cannot be rehearsed.

AutoTP and Ulysses can: DeepSpeed itself splits what it is given in the ds_config.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from zlaunch.config.resolve.values import Values
from zlaunch.errors import Unavailable
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface, Script


@dataclass(frozen=True, slots=True)
class Split:
    """A setting, and what it does to the job."""

    setting: str
    does: str
    ranks: str | None = None
    """How many share a layer or a sequence, as it was typed."""

    @property
    def runs_in_rehearsals(self) -> bool:
        """Whether a program that does it itself can be rehearsed: shapes decide what its ranks exchange."""
        return self.does in (_LAYERS, _SEQUENCES, _MESH)

    def unavailable(self) -> Unavailable:
        """Say that nothing is known about the memory of such a job."""
        return Unavailable(
            f"cannot tell how much memory this job takes: `{self.setting}` {self.does}, "
            "and zlaunch does not rehearse that",
            self._hint(),
        )

    def _hint(self) -> str:
        key = _KEYS.get(self.does)
        if key is None or self.ranks is None:
            return f"estimate it without `{self.setting}`"
        return f"`--set {key[0]}={self.ranks}` estimates it with {key[1]}"


_LAYERS, _SEQUENCES = "splits each layer among ranks", "splits each sequence among ranks"
_EXPERTS, _STAGES = "distributes experts among ranks", "distributes layers among ranks"
_MESH = "splits the model or its sequences among ranks"

_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    _LAYERS: ("tensor_parallel.autotp_size", "AutoTP"),
    _SEQUENCES: ("sequence_parallel_size", "DeepSpeed's Ulysses"),
}
"""What is split → the key of the ds_config by which DeepSpeed does it, and how it is called."""

_SWITCHED: Final[Mapping[str, str]] = {
    "expert_parallel": _EXPERTS,
    "hybrid_engine": "keeps the model in two layouts, to generate and to train",
}
"""Section of the ds_config that can be enabled → what it does."""

_FLAGS: Final = (
    (r"(tensor(_model)?_parallel|tp)_(size|degree)", _LAYERS),
    (r"(pipeline(_model)?_parallel|pp)_(size|degree)", _STAGES),
    (r"((ulysses_)?sequence_parallel|context_parallel|sp|cp|ulysses)_(size|degree)", _SEQUENCES),
    (r"ring_attn_size|ring_attention_size", _SEQUENCES),
    (r"(expert(_model)?_parallel|ep)_(size|degree)", _EXPERTS),
)
"""Argument of a script with a number of ranks → what more than one does."""

_WORDS: Final[Mapping[str, str]] = {
    "tp_model_init": _LAYERS,
    "set_autotp_mode": _LAYERS,
    "tp_plan": _LAYERS,
    "PipelineModule": _STAGES,
    "UlyssesSPAttentionHF": _SEQUENCES,
    "deepspeed.moe.layer": _EXPERTS,
    "ParallelismConfig": _MESH,
    "mesh_param": _MESH,
}
"""Word in the source of a script → what it does."""


def split_by_config(values: Values, interface: ConfigInterface) -> Split | None:
    """Find a key of a ds_config that splits the job; only a script without the Trainer has pipelines."""
    for section, does in _SWITCHED.items():
        if values[section, "enabled"] is True:
            return Split(section, does)
    if interface is ConfigInterface.DEEPSPEED and values.has(("pipeline",)):
        return Split("pipeline", _STAGES)
    return None


def split_by_arguments(typed: ScriptArgs) -> Split | None:
    """Find an argument that splits the job."""
    return next(_among(typed), None)


def _among(typed: ScriptArgs) -> Iterator[Split]:
    for flag in typed.flags:
        name, value = flag.name, flag.value
        if name == "parallelism_config":
            yield Split(f"--{name}", _MESH)
        elif value is not None and re.fullmatch(r"0*([2-9]|[1-9]\d+)", value):
            yield from (
                Split(f"--{name} {value}", does, value) for names, does in _FLAGS if re.fullmatch(names, name)
            )


def split_by_script(script: Script) -> Split | None:
    """Find a word in a script that splits the job."""
    for word, does in _WORDS.items():
        if script.mentions(word):
            return Split(word, does)
    if re.search(r"\bmpu\s*=\s*(?!None\b)\w", script.source):
        return Split("mpu", _MESH)
    return None
