"""Find what accelerate refuses or ignores in a config."""

import difflib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zlaunch.config.accelerate.fields import (
    CHOICES,
    DEEPSPEED,
    FILE,
    FOR_SEVERAL_HOSTS,
    KEYS,
    NO_PATH,
    OLD_KEYS,
    REFUSED_BESIDE_A_FILE,
    SECTION,
    SECTION_KEYS,
)
from zlaunch.dsconfig.keys.lookup import known_keys
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import Document, KeyPath, dotted, value_at
from zlaunch.errors import Finding, Refused, Severity
from zlaunch.job.file_kinds import config_of_other_program, ds_config_in_yaml
from zlaunch.other_values import value_meant


def refuse_another_kind(source: Document) -> None:
    """Raise Refused if this is YAML of another kind, such as a ds_config."""
    keys = source.value.keys()
    if source.value.get("compute_environment") == "AMAZON_SAGEMAKER":
        message, hint = "this config is for SageMaker, not for your own machines", None
    elif keys & {"compute_environment", "distributed_type", SECTION}:
        return
    elif (other := config_of_other_program(source.file, keys)) is not None:
        raise Refused([replace(other, place=source.place(()))])
    elif not keys & DsConfig.model_fields.keys():
        message, hint = "not an accelerate config", "create one with `accelerate config`"
    elif (in_yaml := ds_config_in_yaml(source.file, source.text, source.value)) is not None:
        raise Refused([replace(in_yaml, place=source.place(()))])
    else:
        message, hint = (
            "this is a ds_config",
            f"`zlaunch train --ds-config {shlex.quote(source.file)}` uses it",
        )
    raise Refused([Finding("not-accelerate-config", message, hint, place=source.place(()))])


def at_the_top(source: Document) -> Iterator[Finding]:
    """Find what accelerate refuses in the top-level fields."""
    for key in [key for key in source.value if key not in (*KEYS, *OLD_KEYS)]:
        hint = f"move it into `{SECTION}`" if key in SECTION_KEYS else _field(key, KEYS)
        yield _finding(source, (key,), "unknown-key", f"accelerate has no field `{key}` here", hint)
    for key in ("num_processes", "num_machines"):
        if not isinstance(source.value.get(key), int | None):
            yield wrong_type(source, (key,), "a whole number")
    yield from _not_among_the_choices(source)
    if "distributed_type" not in source.value:
        hint = f"write `distributed_type: {DEEPSPEED}`"
        message = "accelerate refuses a config without this field"
        yield _finding(source, ("distributed_type",), "missing-key", message, hint)


def in_the_section(source: Document, fields: Mapping[str, Any]) -> Iterator[Finding]:
    """Find DeepSpeed fields that accelerate ignores."""
    for key in source.value.get(SECTION) or ():
        if key not in SECTION_KEYS:
            hint = "move it to the top" if key in KEYS else _field(key, SECTION_KEYS)
            message = f"accelerate ignores `{key}` in `{SECTION}`"
            yield _finding(source, (SECTION, key), "unknown-key", message, hint, severity=Severity.IGNORED)
    if source.value.get("num_machines") in (None, 1):
        for key in FOR_SEVERAL_HOSTS:
            if key in fields:
                message = f"accelerate ignores `{key}` while `num_machines` is 1"
                yield _finding(source, (SECTION, key), "ignored-field", message, severity=Severity.IGNORED)


def beside_a_file(source: Document, fields: Mapping[str, Any]) -> Iterator[Finding]:
    """Find fields that accelerate refuses together with a ds_config file."""
    paths: list[KeyPath] = [(SECTION, key) for key in REFUSED_BESIDE_A_FILE if key in fields]
    if source.value.get("mixed_precision") is not None:
        paths.append(("mixed_precision",))
    for path in paths:
        message = f"accelerate refuses `{path[-1]}` together with `{FILE}`, which sets it"
        yield _finding(source, path, "beside-a-file", message, "delete it")


def unused_section(source: Document) -> Iterator[Finding]:
    """Report that accelerate does not use DeepSpeed at all."""
    message = f"accelerate ignores `{SECTION}` unless `distributed_type` is {DEEPSPEED}"
    hint = f"write `distributed_type: {DEEPSPEED}`"
    yield _finding(source, (SECTION,), "ignored-field", message, hint, severity=Severity.IGNORED)


def no_section(source: Document) -> Finding:
    """Report a section that is not a group of fields."""
    given = source.value[SECTION]
    hint = None
    if isinstance(given, str):
        hint = f"write `{FILE}: {given}` below it"
    return wrong_type(source, (SECTION,), "a group of fields", hint)


def wrong_type(source: Document, path: KeyPath, kind: str, hint: str | None = None) -> Finding:
    """Report a field of the wrong type."""
    message = f"`{path[-1]}` is {_quoted_value(source, path)}, not {kind}"
    return _finding(source, path, "bad-type", message, hint)


def lost_path(source: Document, name: str) -> Finding:
    """Report a path that accelerate does not pass on."""
    message = f"accelerate does not pass on `{name}`, so DeepSpeed swaps to `./{NO_PATH}`"
    hint = "use `zlaunch train --nvme DIR`, or a ds_config file with `nvme_path`"
    path = (SECTION, name)
    return _finding(source, path, "lost-nvme-path", message, hint, severity=Severity.IGNORED)


def _not_among_the_choices(source: Document) -> Iterator[Finding]:
    for key, choices in CHOICES.items():
        given = source.value.get(key)
        plain = str(given).lower() if key == "mixed_precision" and given is not False else given
        if given is None or plain in choices:
            continue
        hint = _close(str(given), choices)
        if given is False:
            hint = f"write `{key}: 'no'`, in quotes"
        elif key == "mixed_precision" and (meant := value_meant("precision", str(given), choices)):
            hint = f"write `{key}: {meant}`"
        message = f"`{key}` is {_quoted_value(source, (key,))}; it can be {', '.join(choices)}"
        yield _finding(source, (key,), "bad-value", message, hint)


def _finding(
    source: Document,
    path: KeyPath,
    code: str,
    message: str,
    hint: str | None = None,
    *,
    severity: Severity = Severity.ERROR,
) -> Finding:
    return Finding(code, message, hint, dotted(path), severity, source.place(path))


FIELDS_FOR_KEYS: Mapping[str, str] = {
    "max_grad_norm": "gradient_clipping",
    "nvme_path": "offload_optimizer_nvme_path",
    "offload_optimizer": "offload_optimizer_device",
    "offload_param": "offload_param_device",
    "stage": "zero_stage",
    "stage3_gather_16bit_weights_on_model_save": "zero3_save_16bit_model",
    "zero_optimization": "zero_stage",
}
"""Key of a ds_config, or Trainer argument → the field of the section with the same meaning."""


def _field(key: str, known: Sequence[str]) -> str:
    """Name the intended field of the section, or where a key of a ds_config belongs."""
    if key in FIELDS_FOR_KEYS:
        return f"the field is `{SECTION}.{FIELDS_FOR_KEYS[key]}`"
    if key in {*known_keys({}, ()), *known_keys({}, (ZERO,))}:
        return f"write it in a ds_config, and name that in `{FILE}`"
    return _close(key, known) or "`accelerate launch --help` lists the fields, as flags"


def _close(word: str, known: Sequence[str]) -> str | None:
    spelled = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), spelled, n=1, cutoff=0.6)
    if close:
        return f"did you mean `{spelled[close[0]]}`?"
    return None


def _quoted_value(source: Document, path: KeyPath) -> str:
    """Quote a value from the YAML, with what YAML reads where that is surprising."""
    span = source.spans[path]
    written = " ".join(source.text[span.start : span.end].split())
    value = value_at(source.value, path)
    if isinstance(value, dict | list):
        return "a group"
    if isinstance(value, bool):
        return f"`{written}` ({str(value).lower()} to YAML)"
    return f"`{written}`"
