import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.asking import model
from tests.each import each
from tests.making import TWO_GPUS, json_objects, json_values
from zlaunch.config.fix import Deletion, fix_document
from zlaunch.config.resolve.job import ResolveContext, resolve_config
from zlaunch.config.rules import RULES
from zlaunch.config.rules.rule import Context
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.text.document import Document
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Refused, Severity
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import JobSpec
from zlaunch.job.trainer_args import TrainerArgs

NOTHING_KNOWN = Context()
BATCH = '"train_micro_batch_size_per_gpu": 1'

MENDED = [
    ('{"zero_optimisation": {"stage": 2}, %s}', '{"zero_optimization": {"stage": 2}, %s}'),
    ('{"zero_optimization": {"stage": "3"}, %s}', '{"zero_optimization": {"stage": 3}, %s}'),
    ('{"fp16": {"enabled": "true"}, %s}', '{"fp16": {"enabled": true}, %s}'),
    ('{"elasticity": {"enabled": false}, %s}', "{%s}"),
    ('{"gradient_clipping": "0.5", %s}', '{"gradient_clipping": 0.5, %s}'),
    (
        '{"zero_optimization": {"stage": 3, "aio": {"queue_depth": 8}}, %s}',
        '{"zero_optimization": {"stage": 3}, %s, "aio": {"queue_depth": 8}}',
    ),
    (
        '{"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1e3}}, %s}',
        '{"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1000}}, %s}',
    ),
    ('{"bf16": {"enabled": True}, %s}', '{"bf16": {"enabled": true}, %s}'),
    ("{'bf16': {'enabled': true,}, %s}  // mine", '{"bf16": {"enabled": true}, %s}  // mine'),
    ('{"bf16": {"enabled": true, "loss_scale": 0}, %s}', '{"bf16": {"enabled": true}, %s}'),
    (
        '{ // mine\n"deepspeed": /* all */ {"bf16": {"enabled": true}, %s} // end\n}\n',
        '// mine\n/* all */\n{"bf16": {"enabled": true}, %s}\n// end\n',
    ),
    ('{"deepspeed": {"bf16": {"enabled": true}, %s}}\n', '{"bf16": {"enabled": true}, %s}\n'),
    (
        '{"optimizer": {"type": "AdamW", "lr": 1e-4, "eps": 1e-8}, %s}',
        '{"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "eps": 1e-8}}, %s}',
    ),
    (
        '{"optimizer": {"type": "AdamW", "params": {"eps": 1e-8}, "lr": 1e-4}, %s}',
        '{"optimizer": {"type": "AdamW", "params": {"eps": 1e-8, "lr": 1e-4}}, %s}',
    ),
]

CHOICES = [
    '{"elasticity": {"enabled": true}, %s}',
    '{"gradient_clipping": "much", %s}',
    '{"zero_optimization": {"stage": 4}, %s}',
    '{"optimizer": {"type": "Adaam", "params": {}}, %s}',
    '{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}, %s}',
    '{"wandb": {}, "wandb": {}, %s}',
    '{"optimizer": {"type": "FusedAdam", "params": {"lr": 1e-4}}, %s}',
    '{"zero_optimization": {}, "zero_optimisation": {"stage": 3}, %s}',
]

_keys = st.sampled_from([*DsConfig.model_fields, "zero_optimisation", "aio", "elasticity", "stage", "x"])
_simple = st.integers(0, 9) | st.booleans() | st.sampled_from(["true", "3", "auto", "x"])
_plain_configs = st.dictionaries(_keys, _simple | st.dictionaries(_keys, _simple, max_size=3), max_size=4)
configs = st.dictionaries(_keys, json_values, max_size=4) | json_objects


def _commented(text: str) -> str:
    """Write what people write around JSON."""
    return text.replace(", ", " // a: b, {\n, ").replace(": ", ": /* c: d */ ")


def _mended(text: str) -> str:
    return fix_document(parse(text, "ds.json"), NOTHING_KNOWN).document.text


@pytest.mark.parametrize(("text", "after"), MENDED)
def test_what_has_one_safe_fix_is_fixed(text: str, after: str) -> None:
    assert _mended(text % BATCH) == after % BATCH


@pytest.mark.parametrize("text", CHOICES)
def test_what_is_a_choice_is_left_to_the_user(text: str) -> None:
    assert _mended(text % BATCH) == text % BATCH


@pytest.mark.parametrize("text", CHOICES)
def test_a_choice_is_no_advice(text: str) -> None:
    severities = {finding.severity for finding in validate_document(parse(text % BATCH, "ds.json"))}
    assert severities - {Severity.ADVICE}


@given(configs, st.sampled_from([None, 2]))
def test_fixing_twice_is_fixing_once(config: dict[str, Any], indent: int | None) -> None:
    once = _mended(json.dumps(config, indent=indent))
    assert _mended(once) == once


@given(configs)
def test_what_was_mended_is_no_longer_found(config: dict[str, Any]) -> None:
    document = fix_document(parse(json.dumps(config), "ds.json"), NOTHING_KNOWN).document
    left = [finding for finding in validate_document(document) if finding.fix is not None]
    assert [finding for finding in left if document.path_to(finding) in document.spans] == []


@given(_plain_configs)
def test_comments_keep_nothing_from_being_mended(config: dict[str, Any]) -> None:
    text = json.dumps(config)
    assert parse(_mended(_commented(text)), "ds.json").value == json.loads(_mended(text))


def test_a_file_that_is_surely_for_the_trainer_loses_its_comments() -> None:
    document = parse('{"bf16": {"enabled": "true"} /* c */} // d', "ds.json")
    mended = fix_document(document, replace(NOTHING_KNOWN, strict_json=True)).document.text
    assert mended == '{"bf16": {"enabled": true}}'


@pytest.mark.parametrize(
    ("section", "deletion"),
    [
        ('"elasticity": {"enabled": false, "version": 0.2}', Deletion("elasticity", "off")),
        ('"nebula": {}', Deletion("nebula", "empty")),
        ('"bf16": {"enabled": true}, "bfloat16": {"enabled": true}', Deletion("bfloat16", "on")),
        (
            '"bf16": {"enabled": false}, "bfloat16": {"immediate_grad_update": true}',
            Deletion("bfloat16", "off"),
        ),
        ('"disable_allgather": true', Deletion("disable_allgather", "true")),
    ],
)
def test_a_deletion_is_told_with_what_it_deletes(section: str, deletion: Deletion) -> None:
    fixed = fix_document(parse(f"{{{section}, {BATCH}}}", "ds.json"), NOTHING_KNOWN)
    assert fixed.deletions == (deletion,)


@pytest.mark.parametrize(
    "section",
    [
        '"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}',
        '"sparse_attention": {"mode": "fixed"}',
        '"curriculum_learning": {"enabled": true}',
        '"amp": {"opt_level": "O1"}',
    ],
)
def test_a_removed_section_that_may_be_on_is_not_deleted(section: str) -> None:
    fixed = fix_document(parse(f"{{{section}, {BATCH}}}", "ds.json"), NOTHING_KNOWN)
    assert (fixed.count, section in fixed.document.text) == (0, True)


MISSED_BY_TEXT = [
    '{"bf16": {"enabled": "true"}, "bf16.enabled": false, %s}',
    '{"steps_per_print": Infinity\n, %s}',
]


@pytest.mark.parametrize("text", MISSED_BY_TEXT)
def test_a_fix_touches_no_other_value(text: str) -> None:
    before, after = (parse(one, "ds.json").value for one in (text % BATCH, _mended(text % BATCH)))
    assert {k: v for k, v in after.items() if k != "bf16"} == {k: v for k, v in before.items() if k != "bf16"}


MISTAKEN: dict[str, dict[str, Any]] = {
    **{rule.code: dict(rule.broken) for rule in RULES},
    "misspelled": {"gradient_cliping": 1.0},
    "misplaced": {"stage": 3},
    "in a wrong section": {"optimizer": {"type": "AdamW", "lr": 1e-3}},
    "with a value that nobody can mean": {"zero_optimization": {"stage": 7}},
    "in part": {"zero_optimisation": {"stage": 2}, "bf16": {"enabled": True}, "fp16": {"enabled": True}},
}


def refusal(document: Document, interface: ConfigInterface) -> Refused | None:
    given = ResolveContext(document, TrainerArgs({}), model(), TWO_GPUS, 2, interface)
    try:
        resolve_config(JobSpec(script=Path("train.py")), given)
    except Refused as error:
        return error
    return None


READERS = (ConfigInterface.TRAINER, ConfigInterface.DEEPSPEED)


@each("mistake, interface", [(mistake, interface) for mistake in MISTAKEN for interface in READERS])
def test_a_refusal_names_the_command_that_fixes_it_exactly_if_that_fixes_it(
    mistake: str, interface: ConfigInterface, tmp_path: Path
) -> None:
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps(MISTAKEN[mistake], indent=2))
    refused = refusal(read(file), interface)
    if refused is None:
        return
    left = refusal(fix_document(read(file), NOTHING_KNOWN).document, interface)
    codes = set() if left is None else {finding.code for finding in left.findings}
    is_mended = any(finding.code not in codes for finding in refused.findings)
    assert (f"zlaunch config validate {file} --fix" in (refused.hint or "")) == is_mended
