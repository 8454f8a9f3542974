"""Validate a ds_config: its text, keys, values and the rules between them."""

import copy
from collections.abc import Mapping
from dataclasses import replace

from zlaunch.config.rules import apply_rules
from zlaunch.config.rules.rule import UNKNOWN, Context, Subject
from zlaunch.dsconfig.releases import NEWEST, Release
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema_check import Checked, check
from zlaunch.dsconfig.strict_numbers import imprecise_numbers
from zlaunch.dsconfig.text.document import Document, leaves, value_at
from zlaunch.dsconfig.text.edit import fix_value
from zlaunch.errors import FATAL, Finding, FixKind, Severity, in_order
from zlaunch.job.script import ConfigInterface


def validate_document(document: Document, context: Context = UNKNOWN) -> list[Finding]:
    """Find everything wrong with a document, in the order of its lines."""
    findings = [*_about_text(document, context), *validate_mapping(document.value, context)]
    return sorted(map(document.locate, findings), key=in_order)


def validate_mapping(value: dict[str, object], context: Context = UNKNOWN) -> list[Finding]:
    """Find everything wrong with a plain value; the findings have no place."""
    return list(validate_value(value, context).findings)


def validate_value(value: dict[str, object], context: Context) -> Checked:
    """Apply the rules to a plain value, as it was meant and as DeepSpeed reads it."""
    checked = check(value, context.release)
    rules, found = _by_rules(checked.config, value, context), list(checked.findings)
    if context.interface is ConfigInterface.DEEPSPEED:
        found = [_without_trainer(one, context.release or NEWEST) for one in found]
    if checked.as_read != checked.config:
        codes = {finding.code for finding in rules}
        read = _by_rules(checked.as_read, value, context)
        fatal = {finding.code for finding in read if finding.severity in FATAL}
        rules = [one if one.code in fatal else _once_mended(one) for one in rules]
        found, follows = _with_blame(
            value, found, [one for one in read if one.severity in FATAL and one.code not in codes], context
        )
        rules = [*rules, *follows]
        rules = [one for one in rules if one.code in fatal or _stands_in(value, one)]
    told = {finding.where: finding.severity for finding in found if finding.where}
    return replace(checked, findings=(*found, *(one for one in rules if _is_news(one, told))))


def _is_news(finding: Finding, told: Mapping[str, Severity]) -> bool:
    """Whether nothing as bad was told of its key, nor of a key in it, which then only seems to be missing."""
    if any(where.rpartition(".")[0] == finding.where for where in told if told[where] in FATAL):
        return not finding.where
    return finding.where not in told or (finding.severity in FATAL and told[finding.where] not in FATAL)


def _once_mended(finding: Finding) -> Finding:
    """Judge what DeepSpeed will only refuse once a key that it does not know is mended."""
    if finding.severity is Severity.ERROR:
        return replace(finding, severity=Severity.FAILS_LATER)
    return finding


def _with_blame(
    value: dict[str, object], found: list[Finding], follows: list[Finding], context: Context
) -> tuple[list[Finding], list[Finding]]:
    """Attribute to a misspelled key the findings that fixing it removes."""
    told = []
    for one in found:
        if follows and one.fix is not None and one.fix.kind in (FixKind.RENAME, FixKind.MOVE):
            mended = copy.deepcopy(value)
            fix_value(mended, one.path or (), one.fix)
            still = check(mended, context.release).as_read
            left = {each.code for each in _by_rules(still, value, context)}
            gone = [each for each in follows if each.code not in left]
            follows = [each for each in follows if each.code in left]
            told.append(_blamed_for(gone, one))
        else:
            told.append(one)
    return told, follows


def _blamed_for(follows: list[Finding], finding: Finding) -> Finding:
    worst = min((one.severity for one in (finding, *follows)), key=list(Severity).index)
    message = ": ".join([finding.message, *(one.message for one in follows)])
    return replace(finding, severity=worst, message=message)


def _by_rules(config: DsConfig | None, value: dict[str, object], context: Context) -> list[Finding]:
    says_auto = any(leaf == "auto" for _, leaf in leaves(value))
    if config is None:
        return []
    return apply_rules(Subject(config, context, says_auto))


def _without_trainer(finding: Finding, release: Release) -> Finding:
    """Say what an "auto" means to DeepSpeed alone, which drops it from the sections that it validates."""
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
    if context.interface is ConfigInterface.DEEPSPEED:
        return [one for one in document.remarks if one.severity is not Severity.ADVICE]
    return [*(_for_reader(one, context) for one in document.remarks), *imprecise_numbers(document)]


def _for_reader(remark: Finding, context: Context) -> Finding:
    """Judge a remark by the reader of the text; comments are only deleted if it surely refuses them."""
    if context.strict_json and remark.severity is Severity.ADVICE:
        return replace(remark, severity=Severity.FAILS_LATER)
    is_comment = remark.fix is not None and remark.fix.kind is FixKind.UNCOMMENT
    if is_comment:
        return replace(remark, fix=None)
    return remark
