"""Read an accelerate config: the ds_config file that it names, or the ds_config from its fields.

`accelerate launch` hands the fields of `deepspeed_config` to the ranks as environment variables, from
which `DeepSpeedPlugin` makes a ds_config (accelerate 1.x: `utils/launch.py`, `utils/dataclasses.py`).
This reads them the same way; only `steps_per_print`, which accelerate sets to infinity, is left out,
because no JSON can hold it.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from zlaunch.config.accelerate import checks, yaml_reader
from zlaunch.config.accelerate.fields import (
    DEEPSPEED,
    FIELDS,
    FILE,
    NO_PATH,
    NVME_PATHS,
    PREFIXES,
    SECTION,
    amount_to,
)
from zlaunch.dsconfig.text.document import Document, KeyPath, Span
from zlaunch.errors import Finding, Place, in_order
from zlaunch.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """One field, under the name of the flag of `accelerate launch`."""

    name: str
    value: object
    place: Place


@dataclass(frozen=True)
class AccelerateConfig:
    """An accelerate config and what is wrong with it."""

    source: Document
    ds_config: Document | str | None
    """Its fields as a ds_config, or the name of the file, relative to the working directory as accelerate
    opens it. None if accelerate would not use DeepSpeed."""
    findings: tuple[Finding, ...]
    """Findings about the YAML, without those about the ds_config."""

    def settings(self) -> Iterator[Setting]:
        """List every field that is set; fields of a section as if they were at the top level."""
        for key, value in self.source.value.items():
            if not isinstance(value, dict):
                yield from self._setting((key,), key, value)
                continue
            prefix = PREFIXES.get(key, "")
            for name, member in value.items():
                yield from self._setting((key, name), prefix + name.removeprefix(prefix), member)

    def _setting(self, path: KeyPath, name: str, value: object) -> Iterator[Setting]:
        if value is not None:
            yield Setting(name, value, self.source.place(path))


def read(file: Path) -> AccelerateConfig:
    """Read an accelerate config; raise InputMissing if it cannot be read, Refused if it is something else."""
    return interpret(yaml_reader.read(file))


def default_file(environ: Mapping[str, str]) -> Path:
    """The default file of `accelerate config` and `accelerate launch`."""
    cache = os.path.join(environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")  # noqa: PTH118
    home = Path(environ.get("HF_HOME", cache)).expanduser()
    return home / "accelerate" / "default_config.yaml"


def interpret(source: Document) -> AccelerateConfig:
    """Interpret a YAML document as accelerate does."""
    ds_config, findings = _understood(source)
    return AccelerateConfig(source, ds_config, tuple(sorted(findings, key=in_order)))


def _understood(source: Document) -> tuple[Document | str | None, list[Finding]]:
    checks.refuse_another_kind(source)
    findings = [*source.remarks, *checks.at_the_top(source)]
    section = source.value.get(SECTION) or {}
    if not isinstance(section, dict):
        return None, [*findings, checks.no_section(source)]
    fields = {name: value for name, value in section.items() if value is not None}
    if source.value.get("distributed_type") != DEEPSPEED:
        findings += checks.unused_section(source) if fields else ()
        return None, findings
    findings += checks.in_the_section(source, fields)
    named = str(fields.get(FILE, NO_PATH))
    if named != NO_PATH:
        findings += checks.beside_a_file(source, fields)
        return named, findings
    document, of_fields = _embedded(source, fields)
    return document, [*findings, *of_fields]


def _embedded(source: Document, fields: Mapping[str, object]) -> tuple[Document, list[Finding]]:
    """Build the ds_config from the fields; each key has the place of its field."""
    findings: list[Finding] = []
    values = {name: field.default for name, field in FIELDS.items()}
    for name in [name for name in FIELDS if name in fields]:
        try:
            values[name] = FIELDS[name].read(str(fields[name]))
        except ValueError:
            findings.append(checks.wrong_type(source, (SECTION, name), FIELDS[name].kind))
    on_nvme = [name for name in NVME_PATHS if values[name.replace("nvme_path", "device")] == "nvme"]
    findings += [checks.lost_path(source, name) for name in on_nvme]
    precision = str(source.value.get("mixed_precision") or ("fp16" if source.value.get("fp16") else "no"))
    value = amount_to(values, precision.lower())
    return Document(source.file, source.text, value, _spans(source)), findings


def _spans(source: Document) -> dict[KeyPath, Span]:
    """Give the keys and sections of the ds_config the places of their fields."""
    places: dict[KeyPath, KeyPath] = {
        **{(SECTION, name): field.path for name, field in FIELDS.items()},
        **{(SECTION, name): path for name, path in NVME_PATHS.items()},
    }
    spans: dict[KeyPath, Span] = {(): source.spans.get((SECTION,), source.spans[()])}
    for field_path, path in places.items():
        for length in range(1, len(path) + 1) if field_path in source.spans else ():
            spans.setdefault(path[:length], source.spans[field_path])
    if precision := source.spans.get(("mixed_precision",)):
        spans |= dict.fromkeys([("bf16",), ("bf16", "enabled"), ("fp16",), ("fp16", "enabled")], precision)
    return spans
