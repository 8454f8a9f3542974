"""Replace each "auto" by a number and record its source.

The Trainer's rules are those of `transformers.integrations.deepspeed` (5.x), the rest those of
`accelerate.utils.dataclasses.DeepSpeedPlugin` (1.x); contract tests compare both. Only values that
depend on the length of the dataset stay "auto", each with the reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from fractions import Fraction
from numbers import Rational
from typing import NamedTuple

from zlaunch.config.resolve.values import AUTO, Sourced, Values
from zlaunch.config.rules.rule import Context
from zlaunch.dsconfig.batch import data_ranks
from zlaunch.dsconfig.keys.auto_keys import FILLED, is_own_word
from zlaunch.dsconfig.keys.lookup import field_at
from zlaunch.dsconfig.releases import NEWEST
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import KeyPath, dotted
from zlaunch.job.script import ConfigInterface
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_args import MATCHED, Match, TrainerArgs, num_warmup_steps
from zlaunch.units import narrowed, plural, whole

MICRO = ("train_micro_batch_size_per_gpu",)
ACCUMULATION = ("gradient_accumulation_steps",)
TOTAL = ("train_batch_size",)


class OpenReason(str, Enum):
    """Why a value stays "auto": what fills it in, and from what."""

    DEEPSPEED = "stays as it is: DeepSpeed takes its own default"
    NEVER_FILLED = 'neither the Trainer nor accelerate fills in this "auto": write a value'
    MODEL = "filled in by the Trainer, from the hidden_size of the model"
    DATASET = "filled in by the Trainer, from the length of the dataset, or give `--max_steps`"
    DATA_LOADER = "filled in when the job runs, from the script's batch size and accumulation"
    OBJECTS = "filled in when the job runs, from the script's own optimizer and scheduler"
    SCRIPT = "filled in when the job runs, as the script sets it"
    GROUPS = "DeepSpeed computes it from the ranks that share a batch, which only the script knows"
    RANKS = "depends on the number of ranks; give `--world-size`"

    __str__ = str.__str__


class ResolvedAutos(NamedTuple):
    """A ds_config with every "auto" that can be known filled in."""

    values: Values
    left: Mapping[str, str]
    """Keys that stay "auto" → who fills them in, and from what."""


def ranks_of(values: Values, context: Context) -> Fraction | None:
    """Count the ranks that multiply a batch for its reader; the Trainer takes all of them.

    None if that is unknown.
    """
    if context.interface is not ConfigInterface.DEEPSPEED:
        return data_ranks(context.world_size, None, None)
    if context.has_own_groups:
        return None
    sizes = whole(values[("sequence_parallel_size",)]), whole(values[("data_parallel_size",)])
    return data_ranks(context.world_size, *sizes)


def equal_samples(values: Values, total: object) -> str:
    """Say after a global batch how much of it is trained, if ranks that share layers get equal samples."""
    sharing = whole(values[("tensor_parallel", "autotp_size")]) or 1
    if sharing <= 1 or not isinstance(total, Rational) or total % sharing:
        return ""
    return f"; {total // sharing} of them differ, since {sharing} ranks share each layer"


def derive_batch(values: Values, args: TrainerArgs, context: Context) -> Values:
    """Compute one of the three batch keys from the other two.

    An argument that was given takes precedence; if the numbers then disagree, a rule reports it. A raw
    DeepSpeed script has no Trainer arguments; with only a total, it takes one forward pass per step.
    """
    ranks = ranks_of(values, context)
    if ranks is None:
        return values
    is_raw = context.interface is ConfigInterface.DEEPSPEED
    if is_raw and whole(values[TOTAL]) and _is_open(values[MICRO]) and _is_open(values[ACCUMULATION]):
        default = Source(SourceKind.DEEPSPEED_DEFAULT, "DeepSpeed's own choice")
        values = values.put(ACCUMULATION, 1, default)
    pairs = (
        (MICRO, ACCUMULATION, "per_device_train_batch_size"),
        (ACCUMULATION, MICRO, "gradient_accumulation_steps"),
    )
    for path, other, name in pairs:
        total, factor = whole(values[TOTAL]), whole(values[other])
        is_ours = _is_open(values[path]) and not args[name].given
        if is_ours and total and factor and total % (factor * ranks) == 0:
            equation = f"{total} / ({factor} x {plural(ranks, 'rank')})"
            values = values.put(path, int(total / (factor * ranks)), Source.computed(equation))
    return values


def leave_derived_sizes(values: Values, context: Context) -> ResolvedAutos:
    """Leave out the batch sizes of a raw script that only DeepSpeed can derive.

    The script may divide the ranks itself, and beside a total no size is zlaunch's to choose.
    """
    if context.interface is not ConfigInterface.DEEPSPEED:
        return ResolvedAutos(values, {})
    args = context.args or TrainerArgs(release=context.trainer)
    derived: list[KeyPath] = []
    if whole(values[TOTAL]) is not None:
        known = derive_batch(values, args, context)
        names = {MICRO: "per_device_train_batch_size", ACCUMULATION: "gradient_accumulation_steps"}
        derived = [path for path, name in names.items() if known[path] == AUTO and not args[name].given]
    elif context.has_own_groups and values[TOTAL] == AUTO:
        derived = [TOTAL]
    for path in derived:
        values = values.without(path)
    return ResolvedAutos(values, {dotted(path): OpenReason.GROUPS for path in derived})


def _is_open(value: object) -> bool:
    return value in (None, AUTO)


def resolve_autos(values: Values, context: Context) -> ResolvedAutos:
    """Fill in every "auto" that can be known."""
    left: dict[str, str] = {}
    for path in [*(path for path in values.autos() if path != TOTAL), TOTAL]:
        if values[path] != AUTO:
            continue
        known = _Known(values, context)
        filled = None
        if path in _FILL:
            filled = _FILL[path](known)
        if known.is_raw and filled is None and FILLED.get(path) == "bucket":
            filled = _deepspeed_default(values, path)
        if filled is not None:
            values = values.put(path, filled.value, filled.source)
        elif not known.is_raw or not is_own_word(path):
            left[dotted(path)] = _reason(path, known)
    return ResolvedAutos(values, left)


_OURS = Source(SourceKind.ZLAUNCH_DEFAULT, "zlaunch's default")


class _Known(NamedTuple):
    values: Values
    context: Context

    @property
    def args(self) -> TrainerArgs:
        return self.context.args or TrainerArgs(release=self.context.trainer)

    @property
    def is_raw(self) -> bool:
        return self.context.interface is ConfigInterface.DEEPSPEED

    def hides(self, *names: str) -> bool:
        """Whether only the script knows what an argument of the Trainer would say."""
        is_accelerate = self.context.interface is ConfigInterface.ACCELERATE
        return is_accelerate and not self.args.arguments.keys() & set(names)

    def argument(self, name: str) -> Sourced:
        """A script without the Trainer has no Trainer default."""
        argument, source = self.args[name], self.args[name].source
        if self.is_raw and name not in self.args.arguments:
            source = _OURS
        return Sourced(argument.value, source)


def _reason(path: KeyPath, known: _Known) -> OpenReason:
    if path == TOTAL and known.context.world_size is None and _batch_sizes(known.values) is not None:
        return OpenReason.RANKS
    if known.is_raw:
        return OpenReason.DEEPSPEED
    reason = _OPEN.get(path, OpenReason.NEVER_FILLED)
    is_accelerate = known.context.interface is ConfigInterface.ACCELERATE and known.context.is_sure
    if is_accelerate and reason is OpenReason.DATASET:
        return OpenReason.OBJECTS
    return reason


def _deepspeed_default(values: Values, path: KeyPath) -> Sourced | None:
    """DeepSpeed drops the word from `zero_optimization` and uses its own bucket size."""
    field = field_at(values.config(), path)
    if field is None:
        return None
    return Sourced(field.default, Source(SourceKind.DEEPSPEED_DEFAULT, "DeepSpeed's own default"))


_Fill = Callable[[_Known], Sourced | None]


def _matched(match: Match) -> _Fill:
    """An accelerate script has these in its own objects, unless its TrainingArguments say otherwise."""

    def fill(known: _Known) -> Sourced | None:
        value = match.expected(known.args)
        if value is None or known.hides(*match.names):
            return None
        sources = [known.argument(name).source for name in match.names]
        text = ", ".join(dict.fromkeys(map(str, sources)))
        return Sourced(value, replace(sources[0], text=text))

    return fill


def _batch_sizes(values: Values) -> tuple[int, int] | None:
    micro, accumulation = whole(values[MICRO]), whole(values[ACCUMULATION])
    if micro is None or accumulation is None:
        return None
    return micro, accumulation


def _total(known: _Known) -> Sourced | None:
    sizes, ranks = _batch_sizes(known.values), ranks_of(known.values, known.context)
    if sizes is None or ranks is None:
        return None
    micro, accumulation = sizes
    equation = f"{micro} per rank x {accumulation} accumulated x {plural(ranks, 'rank')}"
    return Sourced(narrowed(micro * accumulation * ranks), Source.computed(equation))


def _constant(value: object, kind: SourceKind, text: str) -> _Fill:
    def fill(known: _Known) -> Sourced:
        if known.is_raw:
            return Sourced(value, _OURS)
        return Sourced(value, Source(kind, text))

    return fill


def _switch(*names: str) -> _Fill:
    def fill(known: _Known) -> Sourced | None:
        if known.hides(*names):
            return None
        on = next((name for name in names if known.args[name].value), None)
        return Sourced(on is not None, known.argument(on or names[0]).source)

    return fill


def _from_hidden(formula: str, of: Callable[[int], int]) -> _Fill:
    def fill(known: _Known) -> Sourced | None:
        model = known.context.model
        if model is None or model.hidden_size is None:
            return None
        text = f"hidden_size {model.hidden_size} {formula}, {model.source}"
        return Sourced(of(model.hidden_size), Source.computed(text))

    return fill


def _only_at_stage_3(fill: _Fill, default: int) -> _Fill:
    source = Source(SourceKind.DEEPSPEED_DEFAULT, "DeepSpeed's default; not read below stage 3")

    def fill_at_stage_3(known: _Known) -> Sourced | None:
        if known.values[(ZERO, "stage")] == 3:
            return fill(known)
        return Sourced(default, source)

    return fill_at_stage_3


def _warmup(known: _Known) -> Sourced | None:
    number, warmup = num_warmup_steps(known.args), known.args.warmup
    if number is None or known.context.interface is ConfigInterface.ACCELERATE:
        return None
    if known.is_raw and not known.args.arguments.keys() & {"warmup_steps", "warmup_ratio"}:
        return Sourced(number, _OURS)
    if float(warmup.value) >= 1:
        return Sourced(number, warmup.source)
    return Sourced(number, Source.computed(f"{warmup.source}, {known.args['max_steps'].source}"))


def _clip(known: _Known) -> Sourced | None:
    """Accelerate has the same default as the Trainer; without either, nothing fills it in later."""
    if known.context.interface is ConfigInterface.TRAINER or "max_grad_norm" in known.args.arguments:
        if not known.context.is_sure:
            return None
        return known.argument("max_grad_norm")
    if known.is_raw:
        default = (known.context.release or NEWEST).default(_CLIPPING)
        return Sourced(default, Source(SourceKind.DEEPSPEED_DEFAULT, "DeepSpeed's default"))
    if not known.context.is_sure:
        return None
    return Sourced(1.0, Source(*_ACCELERATE))


_ACCELERATE = SourceKind.ACCELERATE_DEFAULT, "accelerate's default"
_CLIPPING: KeyPath = ("gradient_clipping",)
_FILL: Mapping[KeyPath, _Fill] = {
    **{path: _matched(match) for path, match in MATCHED.items()},
    TOTAL: _total,
    _CLIPPING: _clip,
    ("scheduler", "params", "warmup_min_lr"): _constant(
        0, SourceKind.TRAINER_DEFAULT, "the Trainer's constant"
    ),
    ("scheduler", "params", "warmup_num_steps"): _warmup,
    ("bf16", "enabled"): _switch("bf16", "bf16_full_eval"),
    ("fp16", "enabled"): _switch("fp16", "fp16_full_eval"),
    (ZERO, "stage"): _constant(2, *_ACCELERATE),
    (ZERO, "reduce_bucket_size"): _from_hidden("squared", lambda hidden: hidden * hidden),
    (ZERO, "stage3_prefetch_bucket_size"): _only_at_stage_3(
        _from_hidden("squared x 0.9", lambda hidden: int(0.9 * hidden * hidden)), 50_000_000
    ),
    (ZERO, "stage3_param_persistence_threshold"): _only_at_stage_3(
        _from_hidden("x 10", lambda hidden: 10 * hidden), 100_000
    ),
    (ZERO, "stage3_gather_16bit_weights_on_model_save"): _constant(False, *_ACCELERATE),
    (ZERO, "offload_optimizer", "device"): _constant("none", *_ACCELERATE),
    (ZERO, "offload_param", "device"): _constant("none", *_ACCELERATE),
}

_OPEN: Mapping[KeyPath, OpenReason] = {
    **dict.fromkeys((MICRO, ACCUMULATION, TOTAL), OpenReason.DATA_LOADER),
    ("optimizer", "params", "lr"): OpenReason.OBJECTS,
    ("optimizer", "params", "weight_decay"): OpenReason.OBJECTS,
    ("scheduler", "params", "warmup_max_lr"): OpenReason.OBJECTS,
    **dict.fromkeys(
        (("gradient_clipping",), ("bf16", "enabled"), ("fp16", "enabled")),
        OpenReason.SCRIPT,
    ),
    ("scheduler", "params", "total_num_steps"): OpenReason.DATASET,
    ("scheduler", "params", "warmup_num_steps"): OpenReason.DATASET,
    (ZERO, "reduce_bucket_size"): OpenReason.MODEL,
    (ZERO, "stage3_prefetch_bucket_size"): OpenReason.MODEL,
    (ZERO, "stage3_param_persistence_threshold"): OpenReason.MODEL,
}
"""Who fills in what cannot be known here; nothing fills in any other "auto" that is left."""
