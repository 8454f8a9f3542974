"""The verdict of a check: which differences rounding explains, and which it does not.

docs/parity.md derives the tolerances.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Final, Literal

from zlaunch.errors import ExitStatus
from zlaunch.frozen import dataclass
from zlaunch.job.spec import Precision

ROUNDING: Final[Mapping[Precision, float]] = {"fp32": 1e-5, "bf16": 2**-7, "fp16": 2**-10}
"""Relative difference that rounding explains in a sum of gradients, whatever the model.

The last bit of a sum depends on the order of its terms: ZeRO adds up gradients bucket by bucket and their
norm share by share. In fp32, the last bit is 6e-8 of a number, and 1e-5 also holds for losses after some tens
of steps, which carry each difference on. In bf16 and fp16, an addition rounds a sum by up to 2**-9 and 2**-12
of it; four of them stay below this.
"""
FACTOR: Final = 4.0
"""How much more than plain torch loses to rounding the engine may lose."""
UNTOLD: Final = 0.25
"""Where rounding moves numbers by more than this part of them, nothing can be told."""

Quantity = Literal[
    "loss",
    "output",
    "gradient norm",
    "gradient",
    "momentum",
    "update",
    "weights",
    "resumed",
    "resumed on 1 rank",
    "exported",
]
EXACT: Final = ("weights", "exported")
"""Quantities whose numbers are the same in every bit."""
_OF_STEPS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("momentum", "update"), ROUNDING["fp32"]),
    **dict.fromkeys(("resumed", "resumed on 1 rank"), 1e-4),
}
"""Quantities that come of the same gradients, in fp32 in any precision, and what rounding explains of them.

An optimizer that goes on rounds its factors otherwise than one that was resumed.
"""


class ParityAnswer(Enum):
    """What a check found."""

    SAME = "the same"
    DIFFERS = "differs"
    CANNOT_TELL = "cannot tell here"

    @property
    def status(self) -> ExitStatus:
        """The exit status of the command."""
        statuses = {ParityAnswer.SAME: ExitStatus.OK, ParityAnswer.DIFFERS: ExitStatus.REFUSED}
        return statuses.get(self, ExitStatus.UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far a quantity is from plain torch in one step, relative to it."""

    quantity: Quantity
    step: int
    """From 1."""
    distance: float
    rounding: float
    """How far plain torch is from itself in another precision, or with its sums in another order."""
    parameter: str = ""
    """Empty for quantities of the whole model."""
    ratio: float = 1.0
    """Length of the engine's vector, as a part of torch's."""
    cancels: float = 1.0
    """How many times as long the summands are together as their sum: rounding is a part of the summands."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the program measured."""

    distances: tuple[Distance, ...]
    parameters: int
    """Elements of the small model."""
    layers: int
    """Of the small model; 0 for a program's own."""
    optimizer: str
    """The engine's class of optimizer."""
    unreached: tuple[str, ...] = ()
    """Parameters that the data does not reach."""
    seconds: float = 0.0
    unsaved: tuple[str, ...] = ()
    """What of the checkpoint was not checked, and why."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A distance and what the arithmetic allows."""

    distance: Distance
    allowed: float

    @property
    def differs(self) -> bool:
        """Whether rounding does not explain it."""
        return not self.distance.distance <= self.allowed  # NaN differs

    @property
    def is_untold(self) -> bool:
        """Whether rounding alone may change the quantity so much that nothing can be told."""
        return self.allowed > UNTOLD


@dataclass(frozen=True, slots=True)
class ParityVerdict:
    """What a check found, and the quantities that differ: of each, the first step in which it does."""

    answer: ParityAnswer
    differing: tuple[Judged, ...] = ()
    untold: tuple[str, ...] = ()
    """Quantities of parameters of which nothing can be told."""
    largest: Mapping[str, Judged] = field(default_factory=dict)
    """Quantity → the distance that comes closest to what is allowed."""


def allowed(distance: Distance, precision: Precision) -> float:
    """Return the distance that rounding explains."""
    if distance.quantity in EXACT:
        return 0.0
    rounding = _OF_STEPS.get(distance.quantity, ROUNDING[precision])
    return max(rounding * max(1.0, distance.cancels), FACTOR * distance.rounding)


def judge(distances: Sequence[Distance], precision: Precision) -> ParityVerdict:
    """Compare each distance with what the arithmetic allows."""
    judged = [Judged(distance, allowed(distance, precision)) for distance in distances]
    told = [item for item in judged if not item.is_untold]
    first: dict[tuple[str, str], Judged] = {}
    for item in sorted(told, key=lambda item: item.distance.step):
        if item.differs:
            first.setdefault((item.distance.quantity, item.distance.parameter), item)
    largest: dict[str, Judged] = {}
    for item in told:
        known = largest.get(item.distance.quantity)
        if known is None or _share(item) > _share(known):
            largest[item.distance.quantity] = item
    names = {item: f"{item.distance.quantity} of {item.distance.parameter}" for item in judged}
    of_told = {names[item] for item in told}
    untold = dict.fromkeys(name for name in names.values() if name not in of_told)
    answer = ParityAnswer.SAME
    if first:
        answer = ParityAnswer.DIFFERS
    elif 2 * sum(item.is_untold for item in judged) > len(judged):
        answer = ParityAnswer.CANNOT_TELL
    return ParityVerdict(answer, tuple(first.values()), tuple(untold), largest)


def _share(item: Judged) -> float:
    if not item.allowed:
        return item.distance.distance
    return item.distance.distance / item.allowed
