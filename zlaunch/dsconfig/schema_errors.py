"""Turn pydantic errors into findings that say what DeepSpeed does and what to type."""

import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic_core import ErrorDetails

from zlaunch.dsconfig.keys.auto_keys import READ_BY_TRAINER
from zlaunch.dsconfig.keys.intended import intended, other_names
from zlaunch.dsconfig.releases import REMOVED, Release, history
from zlaunch.dsconfig.schema.optimizer import LAST_ONE_BIT, OPTIMIZERS, is_one_bit
from zlaunch.dsconfig.schema.scheduler import DEEPSPEED_SCHEDULERS
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import KeyPath, dotted, value_at
from zlaunch.errors import Finding, Fix, FixKind, Severity
from zlaunch.other_values import value_meant
from zlaunch.units import narrowed

OWN_NAMES: Mapping[KeyPath, tuple[str, ...]] = {
    ("optimizer", "type"): tuple(name for name, kind in OPTIMIZERS.items() if kind != "<mup>"),
    ("scheduler", "type"): DEEPSPEED_SCHEDULERS,
}
"""Names of DeepSpeed's own classes; it also accepts those of torch."""

BATCH_SIZES = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "sequence_parallel_size",
    }
)
"""Numbers that DeepSpeed computes with as they are: true is 1, and half a sample may come out even."""
USED_AT_ONCE = frozenset(
    {
        *BATCH_SIZES,
        "autotuning.exps_dir",
        "autotuning.results_dir",
        "checkpoint.parallel_write.pipeline_stage",
        "checkpoint.tag_validation",
        "checkpoint.writer.data_parallel",
        "checkpoint.writer.type",
        "communication_data_type",
        "data_efficiency.data_sampling.dynamic_batching.max_batch_size",
        "data_efficiency.data_sampling.dynamic_batching.min_batch_size",
        "data_types.keep_in_fp32_modules",
        "expert_parallel.load_balance_coeff",
        "flops_profiler.enabled",
        "gradient_allreduce_op",
        "seq_parallel_communication_data_type",
        "torch_autocast.dtype",
        "torch_autocast.lower_precision_safe_modules",
        "wall_clock_breakdown",
    }
)
"""Keys outside of the strict sections whose values DeepSpeed uses as soon as it reads them."""


def _is_integer(given: Any) -> bool:
    try:
        int(given)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


NULL_IS_ABSENT = (
    "checkpoint.writer.type",
    "seq_parallel_communication_data_type",
)
ACCEPTED: Mapping[str, Callable[[object], bool]] = {
    ZERO: lambda given: isinstance(given, bool),
    "datastates_ckpt": lambda _: True,
    "torch_autocast.lower_precision_safe_modules": lambda given: isinstance(given, str | dict),
    "checkpoint.parallel_write.pipeline_stage": lambda given: given in (0, 1),
    **dict.fromkeys(NULL_IS_ABSENT, lambda given: given is None),
    "zero_optimization.leaf_module": lambda given: given in (None, "auto"),
    **dict.fromkeys(("tensorboard", "wandb", "csv_monitor", "comet"), lambda given: given == "auto"),
    **dict.fromkeys(
        [f"data_efficiency.data_sampling.dynamic_batching.{key}_batch_size" for key in ("max", "min")],
        _is_integer,
    ),
    **dict.fromkeys(BATCH_SIZES, lambda given: given is True),
    **dict.fromkeys(("autotuning.exps_dir", "autotuning.results_dir"), bool),
    "autotuning.arg_mappings": lambda given: given is not None,
    "expert_parallel": lambda given: not given,
    "timers": lambda given: isinstance(given, str | list),
    **dict.fromkeys(
        [f"zero_optimization.leaf_module.{key}" for key in ("classes", "names", "name_suffixes")],
        lambda given: isinstance(given, str),
    ),
    **dict.fromkeys(("flops_profiler.enabled", "wall_clock_breakdown"), lambda given: isinstance(given, int)),
}
"""Key → which of its wrong values DeepSpeed accepts at once, and for good."""

_NO = frozenset({"false", "no", "off", "n", "f", "0"})
"""Words for false, each of which is a true string."""

NONSENSE = frozenset(ACCEPTED) - {
    ZERO,
    *BATCH_SIZES,
    *NULL_IS_ABSENT,
    "zero_optimization.leaf_module",
    "zero_optimization.leaf_module.classes",
    "zero_optimization.leaf_module.names",
    "zero_optimization.leaf_module.name_suffixes",
    "checkpoint.parallel_write.pipeline_stage",
    "flops_profiler.enabled",
    "wall_clock_breakdown",
}
"""Those of them that nobody means."""

STRICT_ABOUT_BOOLEANS = frozenset({"aio", "expert_parallel", "pipeline"})
"""Sections without a model whose switches must be true or false; of others DeepSpeed asks only the truth."""

NOT_CONVERTED: Mapping[str, type] = {
    **dict.fromkeys(("fp16.loss_scale", "fp16.loss_scale_window", "fp16.min_loss_scale"), bool),
    "tensor_parallel.autotp_size": str,
    "zero_optimization.zenflow.select_interval": str,
    "zero_optimization.zenflow.update_interval": str,
}
"""Key of a strict section → values that DeepSpeed does not convert, although it does so elsewhere."""

_KIND_NAMES = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_type": "an object",
    "none_required": "null",
    "null": "a value; DeepSpeed crashes on null",
    "string_type": "a string",
}


def explain(
    whole: dict[str, object], path: KeyPath, error: ErrorDetails, lax: bool, release: Release
) -> Finding:
    """Explain the error at `path`; `lax` says whether pydantic accepts the value without strict types."""
    kind, given, key = error["type"], error["input"], path[-1]
    where = dotted(path)
    if kind == "extra_forbidden":
        return _unknown_key(whole, path, release)
    if kind == "missing":
        message = f"`{key}` is missing, and DeepSpeed requires it"
        return Finding("missing-key", message, f'add `"{key}": …`', where, Severity.FAILS_LATER)
    lax = lax or _is_taken(kind, given, error)
    severity = _severity(path, error, lax, release)
    if given == "auto":
        message = f'nothing fills in "auto" for `{where}`: the Trainer refuses it, DeepSpeed uses its default'
        is_open = severity is not Severity.ERROR or release.is_closed(path[:-1])
        if is_open and where not in ACCEPTED and not isinstance(given, NOT_CONVERTED.get(where, ())):
            severity = Severity.FAILS_LATER
        return Finding("auto-not-here", message, "write a value, or delete the key", where, severity)
    if kind == "literal_error":
        choose = _no_such_name if path in OWN_NAMES else _not_one_of
        message, hint, fix = choose(path, given, str(error["ctx"]["expected"]))
        if path == _WARMUP_TYPE:
            message += '; for others, DeepSpeed takes "log"'
        return Finding("bad-value", message, hint, where, severity, fix=fix)
    if kind in _KIND_NAMES:
        return _bad_type(path, error, severity, release)
    return Finding("bad-value", f"`{key}` is {_shown(given)}; {_bound(error)}", None, where, severity)


def _bad_type(path: KeyPath, error: ErrorDetails, severity: Severity, release: Release) -> Finding:
    kind, given, expected, where = error["type"], error["input"], _KIND_NAMES[error["type"]], dotted(path)
    hint, fix = _retyped(given, expected)
    if expected == "an object":
        hint, fix = _as_section(path, given, release) or (hint, fix)
    message = f"`{path[-1]}` is {_shown(given)}, not {expected}"
    if severity is not Severity.IGNORED:
        return Finding("bad-type", message, hint, where, severity, fix=fix)
    is_truth = kind == "bool_type" and not release.is_closed(path[:-1])
    if fix is None:
        hint, fix = _read_as(where, is_truth, given) or (hint, fix)
    means_no = isinstance(given, str) and given.strip().lower() in _NO
    is_mistake = where in NONSENSE or (is_truth and means_no)
    truth = "converts it"
    if is_truth:
        truth = f"takes it for {str(bool(given)).lower()}"
    if path in READ_BY_TRAINER and (isinstance(given, str) or path == (ZERO,)):  # true equals 1 for it, too
        truth += ", the Trainer does not"
    elif not is_mistake:
        severity = Severity.ADVICE
    return Finding(
        "bad-type", f"{message}. DeepSpeed {truth}", hint, where, severity, fix=fix, is_mistake=is_mistake
    )


def _is_taken(kind: str, given: object, error: ErrorDetails) -> bool:
    """Whether an enumeration accepts a number that is written as text, or true for 1."""
    if kind == "int_type":
        return isinstance(given, bool)
    return (
        kind == "literal_error"
        and isinstance(given, str)
        and given.isdigit()
        and given in str(error["ctx"]["expected"])
    )


_ARGUMENTS = (("optimizer", "params"), ("scheduler", "params"))
_WARMUP_TYPE = ("scheduler", "params", "warmup_type")


def _severity(path: KeyPath, error: ErrorDetails, lax: bool, release: Release) -> Severity:
    """Say when DeepSpeed notices a wrong value."""
    where, given = dotted(path), error["input"]
    if where in ACCEPTED and ACCEPTED[where](given):
        return Severity.IGNORED
    if where in NOT_CONVERTED and isinstance(given, NOT_CONVERTED[where]):
        return Severity.ERROR
    is_section = error["type"] in ("model_type", "dict_type", "null")
    if is_section and path in release.sections and path not in _ARGUMENTS:
        return Severity.ERROR
    if path[0] in ("optimizer", "scheduler"):
        is_harmless, otherwise = path == _WARMUP_TYPE, Severity.FAILS_LATER
    elif release.is_closed(path[:-1]):
        is_harmless, otherwise = lax, Severity.ERROR
    elif where in USED_AT_ONCE:
        is_late = where in BATCH_SIZES and isinstance(given, float)
        is_harmless, otherwise = False, Severity.FAILS_LATER if is_late else Severity.ERROR
    else:
        is_truth = error["type"] == "bool_type" and path[0] not in STRICT_ABOUT_BOOLEANS
        is_harmless, otherwise = is_truth, Severity.FAILS_LATER
    return Severity.IGNORED if is_harmless else otherwise


def _unknown_key(whole: dict[str, object], path: KeyPath, release: Release) -> Finding:
    parent, key, where = path[:-1], str(path[-1]), dotted(path)
    if (advice := REMOVED.get(where)) and release.refuses(path):
        past, fix = history(path), _off(whole, path)
        message = f"DeepSpeed {past.refused} refuses a config with `{key}`, even if it is switched off"
        hint = f"{advice}, or install DeepSpeed {past.until}" if past.until and fix is None else advice
        return Finding("removed-key", message, hint, where, fix=fix)
    if parent in (("optimizer", "params"), ("scheduler", "params")):
        severity, does = (
            Severity.FAILS_LATER,
            f"the {parent[0]} has no argument `{key}`, so creating it fails",
        )
    else:
        place = "at the top level"
        if parent:
            place = f"in `{dotted(parent)}`"
        closed = release.is_closed(parent) and value_at(whole, path) != "auto"  # which it drops at once
        severity = Severity.ERROR if closed else Severity.IGNORED
        does = f"DeepSpeed has no key `{key}` {place} and {'refuses the config' if closed else 'ignores it'}"
    guess = intended(whole, path)
    if guess.is_remark and severity is Severity.IGNORED:
        return Finding("unknown-key", does, "it can stay as a comment", where, Severity.ADVICE)
    finding = Finding(
        "unknown-key", does, guess.hint, where, severity, fix=guess.fix, is_mistake=guess.is_key
    )
    meant = guess.path
    if meant is None or not isinstance(room := value_at(whole, meant[:-1]), dict) or meant[-1] not in room:
        return finding
    return replace(finding, fix=None, beside=meant)


def _off(whole: dict[str, object], path: KeyPath) -> Fix | None:
    """`--fix` deletes a removed section that is switched off; one that may be on, the user must replace."""
    value = value_at(whole, path)
    is_off = not value or (isinstance(value, dict) and value.get("enabled") is False)
    if is_off:
        return Fix(FixKind.DELETE)
    return None


def _no_such_name(path: KeyPath, given: object, expected: str) -> tuple[str, str | None, Fix | None]:
    """List only DeepSpeed's own names; torch has too many classes."""
    if is_one_bit(given):
        message = f"DeepSpeed has no {given} any more: {LAST_ONE_BIT} was the last release with it"
        return message, f"write `AdamW`, or install DeepSpeed {LAST_ONE_BIT}", None
    known = OWN_NAMES[path]
    names = [*known, *re.findall(r"'(\w+)'", expected)]
    message = (
        f"there is no {path[0]} `{given}`; DeepSpeed has {', '.join(known)}, and accepts torch's classes"
    )
    same = other_names().classes_elsewhere[dotted(path)].get(str(given).lower())
    if same is not None:
        return message, f'write `"{same}"`, the nearest that DeepSpeed has', None
    return message, *_nearest(given, names)


def _not_one_of(path: KeyPath, given: Any, expected: str) -> tuple[str, str | None, Fix | None]:
    choices = [choice.strip(" '") for choice in expected.replace(" or ", ", ").split(",")]
    *others, last = choices
    listed = f"{', '.join(others)} or {last}" if others else last
    message = f"`{path[-1]}` is {_shown(given)}; it can be {listed}"
    if str(given) in choices and str(given).isdigit():
        message += ". DeepSpeed converts it to a number, the Trainer does not"
        return message, f"write {given}, without quotes", Fix(FixKind.WRITE, int(given))
    hint, fix = _nearest(given, choices)
    option = _OPTIONS.get(str(path[-1]), "")
    if fix is None and isinstance(given, str) and (meant := value_meant(option, given, choices)):
        if not meant.isdigit():
            meant = f'"{meant}"'
        hint = f"write {meant}"
    return message, hint, fix


_OPTIONS = {"stage": "stage", "device": "offload"}
"""Key → the option of zlaunch with the same values."""


def _nearest(given: object, names: list[str]) -> tuple[str | None, Fix | None]:
    spelled = {name.lower(): name for name in names}
    close = difflib.get_close_matches(str(given).lower(), spelled, n=1, cutoff=0.6)
    if not close:
        return None, None
    name = spelled[close[0]]
    sure = isinstance(given, str) and given.lower() == close[0]
    return f'did you mean `"{name}"`?', Fix(FixKind.WRITE, name) if sure else None


def _shown(value: object) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case bool() | None:
            return {True: "true", False: "false", None: "null"}[value]
        case str():
            return f'the string "{value}"'
    return str(value)


_BOUNDS = {
    "greater_than": "it must be more than {gt:g}",
    "greater_than_equal": "it must be at least {ge:g}",
    "less_than": "it must be less than {lt:g}",
    "less_than_equal": "it must be at most {le:g}",
    "too_short": "it needs {min_length} items, but has {actual_length}",
    "too_long": "it takes {max_length} items, but has {actual_length}",
    "finite_number": "it must be finite",
}


def _bound(error: ErrorDetails) -> str:
    words = _BOUNDS.get(error["type"])
    if words:
        return words.format(**error.get("ctx", {}))
    return f"{error['msg'][0].lower()}{error['msg'][1:]}"


def _retyped(given: object, expected: str) -> tuple[str | None, Fix | None]:
    if given is None:
        return "delete the key", Fix(FixKind.DELETE)
    plain = None
    if isinstance(given, str):
        plain = given.strip().lower()
    if expected == "true or false" and plain in ("true", "false"):
        return f"write {plain}, without quotes", Fix(FixKind.WRITE, plain == "true")
    if plain is not None and expected in ("a number", "a whole number"):
        number = _number(plain)
        if number is not None and (expected == "a number" or isinstance(number, int)):
            return f"write {number}, without quotes", Fix(FixKind.WRITE, number)
    return _SHAPES.get(expected), None


def _as_section(path: KeyPath, given: object, release: Release) -> tuple[str, Fix | None] | None:
    """Write a value into the key of a section that it was meant for: its switch, stage, device or type."""
    keys = {key for key in ("enabled", "stage", "device", "type") if (*path, key) in release.keys}
    plain = str(given).strip().lower()
    meant: dict[str, object] = {}
    if plain in ("true", "false") and "enabled" in keys:
        meant = {"enabled": plain == "true"}
    elif given is True and "device" in keys:
        return 'write an object, such as `{"device": "cpu"}`', None
    elif isinstance(given, str) and plain in ("none", "cpu", "nvme") and "device" in keys:
        meant = {"device": plain}
    elif plain in ("0", "1", "2", "3") and "stage" in keys:
        meant = {"stage": int(plain)}
    elif isinstance(given, str) and path in (key[:-1] for key in OWN_NAMES):
        meant = {"type": given}
    if not meant:
        return None
    return f"write an object, `{json.dumps(meant)}`", Fix(FixKind.WRITE, meant)


def _read_as(where: str, is_truth: bool, given: Any) -> tuple[str, Fix] | None:
    """Write out what DeepSpeed takes a value for."""
    value: object
    if where == ZERO:
        value = {"stage": int(given)}
    elif given is True:
        value = 1
    elif is_truth:
        value = bool(given)
    else:
        return None
    return f"write {json.dumps(value)}, as DeepSpeed reads it", Fix(FixKind.WRITE, value)


_SHAPES = {
    "an object": "write an object, `{…}`",
    "a list": "write a list, `[…]`",
    "true or false": "write true or false",
    "a whole number": "write a whole number",
    "a number": "write a number",
}


def _number(text: str) -> int | float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    if math.isfinite(number):
        return narrowed(number)
    return None
