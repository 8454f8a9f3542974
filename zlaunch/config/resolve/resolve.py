"""Resolve a ds_config: reconcile it with the Trainer arguments and fill in every "auto".

`train` and `estimate` resolve the ds_config of a job (see `job`), `config resolve` and `config validate
--deep` that of a file. All call `resolve_values`, so the same values are estimated, shown and run.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from zlaunch.config.resolve.autos import (
    ACCUMULATION,
    MICRO,
    TOTAL,
    derive_batch,
    equal_samples,
    ranks_of,
    resolve_autos,
)
from zlaunch.config.resolve.compose import as_written
from zlaunch.config.resolve.trainer_agreement import (
    TrainerAgreement,
    leave_out_evaluation,
    reconcile_with_trainer,
    write_formats,
)
from zlaunch.config.resolve.values import AUTO, Sourced, Values
from zlaunch.config.rules.rule import Context
from zlaunch.dsconfig.batch import BatchSizes
from zlaunch.dsconfig.text.document import Document, KeyPath
from zlaunch.frozen import dataclass
from zlaunch.job.script import ConfigInterface, Handover
from zlaunch.job.spec import Precision
from zlaunch.job.trainer_args import TrainerArgs
from zlaunch.units import plural, whole

if TYPE_CHECKING:
    from zlaunch.hosts.machine.resources import Machine


@dataclass(frozen=True)
class ResolvedValues:
    """A ds_config with every "auto" filled in that can be known before the job starts."""

    written: Values
    """The config before."""
    values: Values
    left: Mapping[str, str]
    """Keys that stay "auto" → who fills them in, and from what."""
    agreement: TrainerAgreement

    @property
    def filled(self) -> Mapping[KeyPath, Sourced]:
        """Select what was filled in or added, in the order of the config."""
        return {
            path: leaf for path, leaf in self.values.leaves.items() if leaf != self.written.leaves.get(path)
        }


def resolve_file(document: Document, context: Context) -> ResolvedValues:
    """Resolve the ds_config of a file for the program that reads it."""
    return resolve_values(as_written(document), context)


def resolve_values(
    written: Values,
    context: Context,
    machine: "Machine | None" = None,
    precision: Precision | None = None,
) -> ResolvedValues:
    """Derive the batch, reconcile the Trainer arguments, and fill in every "auto" that can be known.

    `machine` and `precision` are those of a job; without them nothing but the config chooses the precision.
    """
    args, values = context.args or TrainerArgs(release=context.trainer), written
    values = derive_batch(values, args, context)
    if context.interface is ConfigInterface.TRAINER:
        values = leave_out_evaluation(values, args, precision, machine)
    may_add = context.handover is Handover.ARGUMENTS
    agreement = reconcile_with_trainer(values, args, precision, machine, context.interface, may_add=may_add)
    values = write_formats(values, agreement.args)
    resolved = resolve_autos(values, replace(context, args=agreement.args))
    return ResolvedValues(written, resolved.values, resolved.left, agreement)


def batch_equation(values: Values, context: Context) -> str:
    """Spell out the global batch; missing sizes are those that DeepSpeed and accelerate take."""
    ranks, written = ranks_of(values, context), [values[path] for path in (TOTAL, MICRO, ACCUMULATION)]
    batch = BatchSizes(*map(whole, written))
    if values[ACCUMULATION] is None and context.interface is not ConfigInterface.DEEPSPEED:
        batch = batch._replace(accumulation=1)
    if ranks and AUTO not in written:
        batch = batch.completed(ranks)
    sizes = [str(number or "?") for number in batch[1:]]
    factor = "the number of ranks"
    if ranks:
        factor = plural(ranks, "rank")
    equation = f"{sizes[0]} per rank x {sizes[1]} accumulated x {factor}"
    if batch.total is None:
        return equation
    return f"{batch.total} = {equation}{equal_samples(values, batch.total)}"
