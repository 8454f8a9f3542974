"""Validate a ds_config: its text, keys, values and the rules between them."""

import copy
from collections.abc import Mapping
from dataclasses import replace

from zlaunch.config.rules import apply_rules
from zlaunch.config.rules.rule import UNKNOWN, Context, Subject
from zlaunch.dsconfig.keys.auto_keys import FILLED, READ_BY_TRAINER
from zlaunch.dsconfig.releases import NEWEST, Release
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.schema_check import Checked, check
from zlaunch.dsconfig.strict_numbers import imprecise_numbers
from zlaunch.dsconfig.text.document import Document, leaves, value_at
from zlaunch.dsconfig.text.edit import fix_value
from zlaunch.dsconfig.text.template import is_placeholder, template_finding
from zlaunch.errors import FATAL, Finding, Fix, FixKind, Severity, in_order
from zlaunch.job.script import ConfigInterface


def validate_document(document: Document, context: Context = UNKNOWN) -> list[Finding]:
    """Find everything wrong with a document, in the order of its lines; of a template, that it is one."""
    of_value = validate_mapping(document.value, context)
    placeholders = [finding.path for finding in of_value if _is_placeholder(finding, document)]
    if placeholders and placeholders[0] is not None:
        first = value_at(document.value, placeholders[0])
        offset = document.spans[placeholders[0]].start
        others = len(placeholders) - 1
        return [template_finding(str(first), others, document.file, document.text, offset)]
    findings = [*_about_text(document, context), *of_value]
    return sorted(map(document.locate, findings), key=in_order)


def _is_placeholder(finding: Finding, document: Document) -> bool:
    """Whether a value is wrong because it is still to be filled in."""
    path = finding.path or ()
    is_value = finding.code in ("bad-type", "bad-value") and path in document.spans
    return is_value and is_placeholder(value_at(document.value, path))


def validate_mapping(value: dict[str, object], context: Context = UNKNOWN) -> list[Finding]:
    """Find everything wrong with a plain value; the findings have no place."""
    return list(validate_value(value, context).findings)


def validate_value(value: dict[str, object], context: Context) -> Checked:
    """Apply the rules to a plain value, as it was meant and as DeepSpeed reads it."""
    checked = check(value, context.release)
    of_rules, of_keys = _by_rules(checked.config, value, context), key_findings(checked, value, context)
    if checked.as_read != checked.config:
        codes = {finding.code for finding in of_rules}
        as_read = [
            finding for finding in _by_rules(checked.as_read, value, context) if finding.severity in FATAL
        ]
        fatal = {finding.code for finding in as_read}
        follows = [finding for finding in as_read if finding.code not in codes]
        of_keys, follows = _with_blame(value, of_keys, follows, context)
        judged = [finding if finding.code in fatal else _once_mended(finding) for finding in of_rules]
        of_rules = [
            finding for finding in (*judged, *follows) if finding.code in fatal or _stands_in(value, finding)
        ]
    severities = {finding.where: finding.severity for finding in of_keys if finding.where}
    news = [finding for finding in of_rules if _is_news(finding, severities)]
    return replace(checked, findings=(*of_keys, *news))


def key_findings(checked: Checked, value: dict[str, object], context: Context) -> list[Finding]:
    """Judge unknown keys and wrong values by what reads the config."""
    if context.interface is ConfigInterface.DEEPSPEED:
        return [_without_trainer(finding, context.release or NEWEST) for finding in checked.findings]
    config = checked.config
    if config is not None and Subject(config, context, _says_auto(value)).for_trainer:
        return [*map(_for_trainer, checked.findings)]
    return [*checked.findings]


def _is_news(finding: Finding, severities: Mapping[str, Severity]) -> bool:
    """Whether nothing as bad was said about its key, nor about a key in it, which then only seems missing."""
    fatal = [where for where, severity in severities.items() if severity in FATAL]
    if any(where.rpartition(".")[0] == finding.where for where in fatal):
        return not finding.where
    if finding.where not in severities:
        return True
    return finding.severity in FATAL and finding.where not in fatal


def _once_mended(finding: Finding) -> Finding:
    """Judge what DeepSpeed will only refuse once a key that it does not know is mended."""
    if finding.severity is Severity.ERROR:
        return replace(finding, severity=Severity.FAILS_LATER)
    return finding


def _with_blame(
    value: dict[str, object], of_keys: list[Finding], follows: list[Finding], context: Context
) -> tuple[list[Finding], list[Finding]]:
    """Attribute to a misspelled key the findings that fixing it removes."""
    blamed = []
    for finding in of_keys:
        if follows and finding.fix is not None and finding.fix.kind.is_guess:
            mended = copy.deepcopy(value)
            fix_value(mended, finding.path or (), finding.fix)
            as_read = check(mended, context.release).as_read
            left = {each.code for each in _by_rules(as_read, value, context)}
            gone = [each for each in follows if each.code not in left]
            follows = [each for each in follows if each.code in left]
            blamed.append(_blamed_for(gone, finding))
        else:
            blamed.append(finding)
    return blamed, follows


def _blamed_for(follows: list[Finding], finding: Finding) -> Finding:
    all_of_them = [finding, *follows]
    worst = min((each.severity for each in all_of_them), key=list(Severity).index)
    return replace(finding, severity=worst, message=": ".join(each.message for each in all_of_them))


def _by_rules(config: DsConfig | None, value: dict[str, object], context: Context) -> list[Finding]:
    if config is None:
        return []
    return apply_rules(Subject(config, context, _says_auto(value)))


def _says_auto(value: dict[str, object]) -> bool:
    return any(leaf == "auto" for _, leaf in leaves(value))


def _is_converted(finding: Finding) -> bool:
    """Whether DeepSpeed converts a value that the Trainer reads as it is written."""
    is_read = finding.path in READ_BY_TRAINER and finding.path != (ZERO, "stage")
    return is_read and (finding.code, finding.severity) == ("bad-type", Severity.IGNORED)


_LEGACY_STAGE = Fix(FixKind.WRITE, {"stage": 1})
"""The fix of `"zero_optimization": true`, which turns on more than it says."""


def _for_trainer(finding: Finding) -> Finding:
    """The Trainer compares such a value with its own arguments, and looks for the stage in a section."""
    if not _is_converted(finding):
        return finding
    message = finding.message.replace(_BOTH, "The Trainer refuses it")
    return replace(finding, message=message, severity=Severity.FAILS_LATER)


_BOTH = "DeepSpeed converts it, the Trainer does not"


def _without_trainer(finding: Finding, release: Release) -> Finding:
    """Say what an "auto" means to DeepSpeed alone, which drops it from the sections that it validates."""
    if _is_converted(finding) and finding.fix != _LEGACY_STAGE:
        message = finding.message.replace(_BOTH, "DeepSpeed converts it")
        return replace(finding, message=message, severity=Severity.ADVICE)
    if (finding.code, finding.severity) != ("auto-not-here", Severity.FAILS_LATER) or not release.is_closed(
        (finding.path or ())[:-1]
    ):
        return finding
    message = f'without the Trainer, "auto" means the default of `{finding.where}`'
    return replace(finding, message=message, severity=Severity.IGNORED)


def _stands_in(value: dict[str, object], finding: Finding) -> bool:
    """Whether a finding is about a written key, not about one that was only meant."""
    return value_at(value, tuple(finding.where.split("."))) is not None


def _about_text(document: Document, context: Context) -> list[Finding]:
    """Find what strict JSON readers do not accept, if one of them reads the file."""
    is_filled = any(leaf == "auto" and path in FILLED for path, leaf in leaves(document.value))
    if context.interface is ConfigInterface.DEEPSPEED:
        return [remark for remark in document.remarks if is_filled or remark.severity is not Severity.ADVICE]
    is_strict = context.strict_json or is_filled
    judged = [_for_reader(remark, context, is_strict) for remark in document.remarks]
    return [*judged, *imprecise_numbers(document)]


def _for_reader(remark: Finding, context: Context, is_strict: bool) -> Finding:
    """Judge a remark by the reader of the text; comments are only deleted if the user named it."""
    if is_strict and remark.severity is Severity.ADVICE:
        remark = replace(remark, severity=Severity.FAILS_LATER)
    if not context.strict_json and remark.fix is not None and remark.fix.kind is FixKind.UNCOMMENT:
        return replace(remark, fix=None)
    return remark
