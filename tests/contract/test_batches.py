"""zlaunch and DeepSpeed agree about batches, however the ranks are arranged."""

import functools
import itertools
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from tests.contract.deepspeed_side import Ranks, as_rank, rank_of
from tests.each import each
from zlaunch.config.resolve.compose import to_json
from zlaunch.config.resolve.resolve import batch_equation, resolve_file
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_mapping
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import FATAL
from zlaunch.job.script import ConfigInterface

TOTALS, PARTS = (None, 1, 2, 4, 6, 8, 16), (None, 1, 2, 3)
KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
BATCHES = [
    {key: size for key, size in zip(KEYS, sizes, strict=True) if size}
    for sizes in itertools.product(TOTALS, PARTS, PARTS)
]
Sizes = tuple[float, float, float]
WORLDS = (1, 2, 4, 8)


class Kind(NamedTuple):
    """How the ranks of a job are arranged."""

    config: Callable[[int], Mapping[str, Any]] = lambda _: {}
    unit: Callable[[int], Any] = lambda _: None
    """World size → the model-parallel unit of the script."""
    sharing: int = 1
    """Ranks that share a batch because the script says so."""


def pipeline(world_size: int) -> Any:
    from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipelineParallelGrid

    return PipelineParallelGrid(PipeDataParallelTopology(num_pp=2, num_dp=world_size // 2))


def ulysses(_: int) -> Any:
    from deepspeed.runtime.sequence_parallel import parallel_state_sp

    parallel_state_sp._release_sequence_parallel_groups()
    parallel_state_sp.initialize_sequence_parallel(2)
    return parallel_state_sp


KINDS: Mapping[str, Kind] = {
    "none": Kind(),
    "sequence": Kind(lambda _: {"sequence_parallel_size": 2}),
    "sequence of 4": Kind(lambda _: {"sequence_parallel_size": 4}),
    "data size alone": Kind(lambda _: {"data_parallel_size": 2}),
    "tensor": Kind(lambda _: {"tensor_parallel": {"autotp_size": 2}}),
    "expert": Kind(lambda _: {"expert_parallel": {"enabled": True, "autoep_size": 2}}),
    "mesh": Kind(lambda world: {"sequence_parallel_size": 2, "data_parallel_size": max(world // 2, 1)}),
    "mesh of 2": Kind(lambda _: {"sequence_parallel_size": 2, "data_parallel_size": 1}),
    "mesh without sharing": Kind(lambda world: {"sequence_parallel_size": 1, "data_parallel_size": world}),
    "pipeline": Kind(lambda _: {"pipeline": {"activation_checkpoint_interval": 1}}, pipeline, 2),
    "mpu": Kind(unit=lambda world: Ranks(world // 2), sharing=2),
    "mpu of Ulysses": Kind(unit=ulysses, sharing=2),
}
OF_GROUPS = "groups-do-not-divide-the-ranks"
"""Its engine fails with these ranks, whatever the batch."""

each_arrangement = each(
    ("name", "world_size"),
    [(name, world) for name, kind in KINDS.items() for world in WORLDS if world >= kind.sharing],
)


@functools.cache
def _verdicts(name: str, world_size: int) -> list[tuple[dict[str, Any], Sizes | None]]:
    """Go through the batches: the sizes that DeepSpeed reads, or None if it refuses on any rank."""
    kind = KINDS[name]
    configs = [{**batch, **kind.config(world_size)} for batch in BATCHES]
    by_rank = []
    for rank in {0, world_size - 1}:
        with rank_of(world_size, rank):
            unit = kind.unit(world_size)
            by_rank.append([_sizes(config, unit) for config in configs])
    agreed = [found[0] if None not in found else None for found in zip(*by_rank, strict=True)]
    return list(zip(configs, agreed, strict=True))


def _sizes(config: dict[str, Any], unit: Any) -> Sizes | None:
    try:
        read = as_rank(config, unit)
    except Exception:  # noqa: BLE001 - whatever it raises is a refusal
        return None
    return read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps


def _is_refused(config: dict[str, Any], context: Context) -> bool:
    findings = (one for one in validate_mapping(config, context) if one.code != OF_GROUPS)
    return any(one.severity in FATAL for one in findings)


def _context(world_size: int, **more: Any) -> Context:
    return Context(world_size, interface=ConfigInterface.DEEPSPEED, **more)


@each_arrangement
def test_a_batch_is_refused_exactly_if_deepspeed_refuses_it(name: str, world_size: int) -> None:
    context = _context(world_size // KINDS[name].sharing)
    verdicts = _verdicts(name, world_size)
    assert [config for config, read in verdicts if (read is None) != _is_refused(config, context)] == []


@each_arrangement
def test_the_sizes_that_are_shown_are_those_of_deepspeed(name: str, world_size: int) -> None:
    context = _context(world_size // KINDS[name].sharing)
    wrong = []
    for config, sizes in _verdicts(name, world_size):
        if sizes is None:
            continue
        resolved = resolve_file(parse(to_json(config), "ds_config.json"), context)
        shown = batch_equation(resolved.values, context)
        total, micro, accumulation = map(Fraction, sizes)
        if not shown.startswith(f"{total} = {micro} per rank x {accumulation} accumulated x "):
            wrong.append((config, shown, sizes))
    assert wrong == []


@each_arrangement
def test_no_batch_of_a_script_that_divides_its_ranks_is_refused_falsely(name: str, world_size: int) -> None:
    context = _context(world_size, has_own_groups=True)
    verdicts = _verdicts(name, world_size)
    assert [config for config, read in verdicts if read and _is_refused(config, context)] == []
