"""A ds_config → every "auto" filled in, the batch spelled out, and what only the dataset decides.

As whoever reads the config would fill it in. The Trainer demands that its arguments and the ds_config agree;
so a number in the config counts as the argument that nobody gave, as it does for `zlaunch train`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL, KnownFacts, derive_batch, resolve_autos
from zlaunch.config.resolve.compose import as_written
from zlaunch.config.resolve.trainer_agreement import from_config, write_formats
from zlaunch.config.resolve.values import AUTO, Sourced, Values
from zlaunch.config.rules.rule import Context
from zlaunch.dsconfig.text.document import Document, KeyPath, dotted
from zlaunch.errors import FATAL, Finding, Refused
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import TrainerArgs
from zlaunch.units import plural, whole

NOBODY = "nobody fills it in: write a value"
_RANKS = "depends on the number of ranks; give `--world-size`"


@dataclass(frozen=True)
class FilledConfig:
    """A ds_config as it will be read."""

    values: Values
    args: TrainerArgs
    """The Trainer's arguments, as far as they are known."""
    filled: Mapping[KeyPath, Sourced]
    """What stood as "auto", or was left out and is added, in the order of the file."""
    left: Mapping[str, str]
    """Key → who fills it in, and from what."""
    batch: str
    """The equation between the batch sizes."""


def fill_autos(document: Document, context: Context) -> FilledConfig:
    """Fill in every "auto" that can be known before the job starts."""
    written = as_written(document)
    args = _agreed(written, context)
    values = write_formats(written, args) if context.interface is not ConfigInterface.DEEPSPEED else written
    if context.world_size is not None:
        values = derive_batch(values, args, context.world_size, context.interface)
    known = KnownFacts(args, context.model, context.world_size or 1, context.interface)
    resolved = resolve_autos(values, known)
    values, left = resolved.values, {key: who or NOBODY for key, who in resolved.left.items()}
    if context.world_size is None and written[TOTAL] == AUTO and dotted(TOTAL) not in left:
        values, left = values.put(TOTAL, AUTO, written.leaves[TOTAL].source), {**left, dotted(TOTAL): _RANKS}
    filled = {path: leaf for path, leaf in values.leaves.items() if leaf != written.leaves.get(path)}
    return FilledConfig(values, args, filled, left, _batch(values, context))


def refuse(findings: Iterable[Finding]) -> None:
    """Raise Refused if a job with these findings would fail: then there is nothing to fill in."""
    if grave := [one for one in findings if one.severity in FATAL]:
        raise Refused(grave)


def _agreed(written: Values, context: Context) -> TrainerArgs:
    """Let the numbers of the config count as the arguments that the Trainer would have to be given."""
    args = context.args or TrainerArgs()
    if context.interface is not ConfigInterface.TRAINER:
        return args
    for name, argument in from_config(written, args).items():
        args = args.over(name, argument)
    return args


def _batch(values: Values, context: Context) -> str:
    """Spell out the global batch; what is left out counts as DeepSpeed and accelerate take it."""
    world, total = context.world_size, whole(values[TOTAL])
    micro, accumulated = whole(values[MICRO]), whole(values[ACCUMULATION])
    if values[ACCUMULATION] is None and (
        context.interface is not ConfigInterface.DEEPSPEED or not (total and micro)
    ):
        accumulated = 1
    if world and total and micro is None and accumulated and values[MICRO] is None:
        micro = total // (world * accumulated)
    if world and total and micro and values[ACCUMULATION] is None:
        accumulated = accumulated or total // (world * micro)
    ranks = plural(world, "rank") if world else "ranks"
    if total is None and world and micro and accumulated:
        total = micro * accumulated * world
    sizes = [str(number or "?") for number in (micro, accumulated)]
    equation = f"{sizes[0]} per rank x {sizes[1]} accumulated x {ranks}"
    return equation if total is None else f"{total} = {equation}"
