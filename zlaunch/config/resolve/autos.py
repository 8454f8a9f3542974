"""Every "auto" → a number, with its source.

The Trainer's rules are those of `transformers.integrations.deepspeed` (5.x), the rest those of
`accelerate.utils.dataclasses.DeepSpeedPlugin` (1.x); contract tests hold both. Only what depends on
the length of the dataset is left, and named.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zlaunch.config.resolve.values import AUTO, Sourced, Values
from zlaunch.dsconfig.keys.autos import FILLED, OWN_WORDS
from zlaunch.dsconfig.keys.lookup import field_at
from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.dsconfig.schema.parallel import data_ranks
from zlaunch.dsconfig.text.document import KeyPath, dotted
from zlaunch.job.model import ModelShape
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import TrainerArgs, num_warmup_steps
from zlaunch.units import plural, whole

MICRO, ACCUMULATION, TOTAL = (
    ("train_micro_batch_size_per_gpu",),
    ("gradient_accumulation_steps",),
    ("train_batch_size",),
)
SHARED = ("sequence_parallel_size",)


@dataclass(frozen=True)
class KnownFacts:
    """All that is known before the job starts."""

    args: TrainerArgs
    model: ModelShape | None
    world_size: int
    interface: ConfigInterface


@dataclass(frozen=True)
class ResolvedAutos:
    """A ds_config whose values are known, and why the few others are not."""

    values: Values
    left: Mapping[str, str]
    """Key → who fills it in, and from what."""


def derive_batch(values: Values, args: TrainerArgs, world_size: int, interface: ConfigInterface) -> Values:
    """Work out one of the three batch keys where the config has the other two.

    An argument that was given goes before: then the numbers may disagree, and a rule will say so.
    A raw DeepSpeed script has no Trainer arguments; its total alone means one forward pass per step.
    """
    world_size = data_ranks(
        world_size, whole(values[SHARED]) if interface is ConfigInterface.DEEPSPEED else None
    )
    if interface is ConfigInterface.DEEPSPEED and whole(values[TOTAL]) and _is_open(values[MICRO]):
        values = (
            values.put(ACCUMULATION, 1, "DeepSpeed's own choice")
            if _is_open(values[ACCUMULATION])
            else values
        )
    pairs = (
        (MICRO, ACCUMULATION, "per_device_train_batch_size"),
        (ACCUMULATION, MICRO, "gradient_accumulation_steps"),
    )
    for path, other, name in pairs:
        total, factor = whole(values[TOTAL]), whole(values[other])
        if (
            _is_open(values[path])
            and total
            and factor
            and not args[name].given
            and total % (factor * world_size) == 0
        ):
            equation = f"{total} / ({factor} x {plural(world_size, 'rank')})"
            values = values.put(path, total // (factor * world_size), equation)
    return values


def _is_open(value: Any) -> bool:
    return value in (None, AUTO)


def resolve_autos(values: Values, known: KnownFacts) -> ResolvedAutos:
    """Fill in every "auto" that can be known."""
    left: dict[str, str] = {}
    for path in [*(path for path in values.autos() if path != TOTAL), TOTAL]:
        if values[path] != AUTO:
            continue
        raw = known.interface is ConfigInterface.DEEPSPEED
        filled = _FILL[path](values, known) if path in _FILL else None
        if raw and filled is None and FILLED.get(path) == "bucket":
            filled = _own_default(values, path)
        if filled is not None:
            values = values.put(path, filled.value, filled.source)
        elif not raw or path not in OWN_WORDS:
            left[dotted(path)] = NOBODY if raw else _LEFT.get(path, "")
    return ResolvedAutos(values, left)


def _own_default(values: Values, path: KeyPath) -> Sourced | None:
    """DeepSpeed drops the word from the section of ZeRO, and takes a size of its own."""
    field = field_at(values.config(), path)
    return None if field is None else Sourced(field.default, "DeepSpeed's own default")


_Fill = Callable[[Values, KnownFacts], Sourced | None]


def _argument(name: str) -> _Fill:
    """An accelerate script has these in its own objects, unless its TrainingArguments tell."""

    def fill(_: Values, known: KnownFacts) -> Sourced | None:
        if known.interface is ConfigInterface.ACCELERATE and name not in known.args.arguments:
            return None
        return Sourced(known.args[name].value, _source(known, name))

    return fill


def _source(known: KnownFacts, name: str) -> str:
    """Say who set an argument; a script without the Trainer has none that could have a default."""
    is_default = known.interface is ConfigInterface.DEEPSPEED and name not in known.args.arguments
    return "zlaunch's default" if is_default else known.args[name].source


def _clip(_: Values, known: KnownFacts) -> Sourced | None:
    """The Trainer's default is accelerate's too."""
    return Sourced(known.args["max_grad_norm"].value, _source(known, "max_grad_norm"))


def _total(values: Values, known: KnownFacts) -> Sourced | None:
    micro, accumulation = whole(values[MICRO]), whole(values[ACCUMULATION])
    if micro is None or accumulation is None:
        return None
    world = known.world_size
    equation = f"{micro} per rank x {accumulation} accumulated x {plural(world, 'rank')}"
    return Sourced(micro * accumulation * world, equation)


def _constant(value: Any, source: str) -> _Fill:
    return lambda _values, _known: Sourced(value, source)


def _switch(*names: str) -> _Fill:
    def fill(_: Values, known: KnownFacts) -> Sourced | None:
        on = next((name for name in names if known.args[name].value), None)
        return Sourced(on is not None, _source(known, on or names[0]))

    return fill


def _betas(_: Values, known: KnownFacts) -> Sourced | None:
    first, second = known.args["adam_beta1"], known.args["adam_beta2"]
    sources = dict.fromkeys(_source(known, name) for name in ("adam_beta1", "adam_beta2"))
    return Sourced([first.value, second.value], ", ".join(sources))


def _from_hidden(formula: str, of: Callable[[int], int]) -> _Fill:
    def fill(_: Values, known: KnownFacts) -> Sourced | None:
        if known.model is None or known.model.hidden_size is None:
            return None
        hidden = known.model.hidden_size
        return Sourced(of(hidden), f"hidden_size {hidden} {formula}, {known.model.source}")

    return fill


def _only_at_stage_3(fill: _Fill, default: int) -> _Fill:
    def fill_or_default(values: Values, known: KnownFacts) -> Sourced | None:
        if values[(ZERO, "stage")] == 3:
            return fill(values, known)
        return Sourced(default, "DeepSpeed's default; not read below stage 3")

    return fill_or_default


def _warmup(_: Values, known: KnownFacts) -> Sourced | None:
    if known.interface is ConfigInterface.ACCELERATE:
        return None
    number, warmup = num_warmup_steps(known.args), known.args["warmup_steps"]
    source = (
        warmup.source if float(warmup.value) >= 1 else f"{warmup.source}, {known.args['max_steps'].source}"
    )
    return None if number is None else Sourced(number, source)


def _total_steps(_: Values, known: KnownFacts) -> Sourced | None:
    steps = known.args["max_steps"]
    return Sourced(steps.value, steps.source) if float(steps.value) > 0 else None


_FILL: Mapping[KeyPath, _Fill] = {
    MICRO: _argument("per_device_train_batch_size"),
    ACCUMULATION: _argument("gradient_accumulation_steps"),
    TOTAL: _total,
    ("gradient_clipping",): _clip,
    ("optimizer", "params", "lr"): _argument("learning_rate"),
    ("optimizer", "params", "betas"): _betas,
    ("optimizer", "params", "eps"): _argument("adam_epsilon"),
    ("optimizer", "params", "weight_decay"): _argument("weight_decay"),
    ("scheduler", "params", "warmup_min_lr"): _constant(0, "the Trainer's constant"),
    ("scheduler", "params", "warmup_max_lr"): _argument("learning_rate"),
    ("scheduler", "params", "warmup_num_steps"): _warmup,
    ("scheduler", "params", "total_num_steps"): _total_steps,
    ("bf16", "enabled"): _switch("bf16", "bf16_full_eval"),
    ("fp16", "enabled"): _switch("fp16", "fp16_full_eval"),
    (ZERO, "stage"): _constant(2, "accelerate's default"),
    (ZERO, "reduce_bucket_size"): _from_hidden("squared", lambda hidden: hidden * hidden),
    (ZERO, "stage3_prefetch_bucket_size"): _only_at_stage_3(
        _from_hidden("squared x 0.9", lambda hidden: int(0.9 * hidden * hidden)), 50_000_000
    ),
    (ZERO, "stage3_param_persistence_threshold"): _only_at_stage_3(
        _from_hidden("x 10", lambda hidden: 10 * hidden), 100_000
    ),
    (ZERO, "stage3_gather_16bit_weights_on_model_save"): _constant(False, "accelerate's default"),
    (ZERO, "offload_optimizer", "device"): _constant("none", "accelerate's default"),
    (ZERO, "offload_param", "device"): _constant("none", "accelerate's default"),
}

NOBODY = "nobody fills it in, and DeepSpeed takes its own default"
_HIDDEN = "the Trainer fills it in from the hidden_size of the model"
_LENGTH = "the Trainer fills it in from the length of the dataset, or give `--max_steps`"
_LOADER = "accelerate fills it in from the script's data loader"
_OBJECTS = "accelerate fills it in from the script's optimizer and scheduler"
_LEFT: Mapping[KeyPath, str] = {
    MICRO: _LOADER,
    ACCUMULATION: _LOADER,
    TOTAL: _LOADER,
    ("optimizer", "params", "lr"): _OBJECTS,
    ("optimizer", "params", "weight_decay"): _OBJECTS,
    ("scheduler", "params", "warmup_max_lr"): _OBJECTS,
    ("scheduler", "params", "total_num_steps"): _LENGTH,
    ("scheduler", "params", "warmup_num_steps"): _LENGTH,
    (ZERO, "reduce_bucket_size"): _HIDDEN,
    (ZERO, "stage3_prefetch_bucket_size"): _HIDDEN,
    (ZERO, "stage3_param_persistence_threshold"): _HIDDEN,
}
"""Who fills in what cannot be known here; any other "auto" that is left, nobody fills in."""
