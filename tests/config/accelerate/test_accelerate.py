import json
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.making import json_values
from zlaunch.config.accelerate import AccelerateConfig, default_file, interpret, read
from zlaunch.config.accelerate.fields import (
    FIELDS,
    FOR_SEVERAL_HOSTS,
    KEYS,
    REFUSED_BESIDE_A_FILE,
    SECTION_KEYS,
)
from zlaunch.config.accelerate.yaml_reader import parse
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.text.document import Document, KeyPath, dotted
from zlaunch.errors import Place, Refused, Severity

ZERO = "zero_optimization"
HEAD = "distributed_type: DEEPSPEED\ndeepspeed_config:\n"


def config(*fields: str, top: str = "") -> AccelerateConfig:
    """Put fields into the section, from line 3 on, and more after it."""
    return interpret(parse(HEAD + "".join(f"  {field}\n" for field in fields) + top, "a.yaml"))


def embedded(*fields: str, top: str = "") -> Document:
    found = config(*fields, top=top).ds_config
    assert isinstance(found, Document)
    return found


def codes(found: AccelerateConfig) -> list[tuple[str, int]]:
    return [(finding.code, finding.place.line) for finding in found.findings if finding.place]


def test_a_named_file_is_found_where_it_is_named() -> None:
    assert config("deepspeed_config_file: ds.json").ds_config == "ds.json"


@pytest.mark.parametrize("name", ["none", "null", ""])
def test_no_file_is_named_by_a_word_for_nothing(name: str) -> None:
    assert isinstance(config(f"deepspeed_config_file: {name}").ds_config, Document)


def test_without_any_field_it_is_what_accelerate_has_by_default() -> None:
    assert embedded("zero_stage:").value == {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "none", "nvme_path": None},
            "offload_param": {"device": "none", "nvme_path": None},
            "stage3_gather_16bit_weights_on_model_save": False,
        },
        "gradient_clipping": "auto",
        "fp16": {"enabled": False},
        "bf16": {"enabled": False},
    }


@pytest.mark.parametrize(
    ("field", "path", "value"),
    [
        ("zero_stage: '3'", (ZERO, "stage"), 3),
        ("offload_param_device: CPU", (ZERO, "offload_param", "device"), "cpu"),
        ("zero3_save_16bit_model: yes", (ZERO, "stage3_gather_16bit_weights_on_model_save"), True),
        ("gradient_accumulation_steps: 4", ("gradient_accumulation_steps",), 4),
        ("gradient_clipping: 5e-1", ("gradient_clipping",), 0.5),
        ("gradient_clipping: auto", ("gradient_clipping",), "auto"),
    ],
)
def test_a_field_becomes_its_key(field: str, path: KeyPath, value: object) -> None:
    found: Any = embedded(field).value
    for part in path:
        found = found[part]
    assert found == value


def test_a_clip_of_nothing_is_left_out() -> None:
    assert "gradient_clipping" not in embedded("gradient_clipping: 0").value


def test_a_path_on_nvme_does_not_reach_the_ds_config() -> None:
    fields = ("offload_param_device: nvme", "offload_param_nvme_path: /nvme")
    assert embedded(*fields).value[ZERO]["offload_param"]["nvme_path"] == "none"


def test_a_path_that_accelerate_loses_is_told() -> None:
    fields = ("offload_param_device: nvme", "offload_param_nvme_path: /nvme")
    assert codes(config(*fields)) == [("lost-nvme-path", 4)]


@pytest.mark.parametrize(("name", "field"), FIELDS.items(), ids=FIELDS)
def test_a_key_stands_where_its_field_stands(name: str, field: Any) -> None:
    assert embedded("zero3_init_flag: true", f"{name}: 1").place(field.path) == Place("a.yaml", 4, 3)


def test_the_formats_stand_where_the_precision_stands() -> None:
    assert embedded("zero_stage: 2", top="mixed_precision: bf16").place(("bf16", "enabled")).line == 4


def test_a_key_that_no_field_names_stands_at_the_section() -> None:
    assert embedded("zero_stage: 2").place(("train_batch_size",)) == Place("a.yaml", 2, 1)


@given(st.dictionaries(st.sampled_from([*KEYS, *SECTION_KEYS]), json_values))
def test_every_key_of_the_ds_config_has_a_place(fields: dict[str, object]) -> None:
    text = json.dumps({"distributed_type": "DEEPSPEED", "deepspeed_config": fields})
    with suppress(Refused):
        found = interpret(parse(text, "a.yaml")).ds_config
        if isinstance(found, Document):
            assert found.place((ZERO, "offload_param", "nvme_path")).file == "a.yaml"


@given(st.dictionaries(st.sampled_from([*KEYS, "x", "zero_stage"]), json_values))
def test_no_values_make_anything_but_a_config_or_a_refusal(value: dict[str, object]) -> None:
    with suppress(Refused):
        [*interpret(parse(json.dumps(value), "a.yaml")).settings()]


def test_what_accelerate_makes_of_its_own_defaults_is_a_valid_ds_config() -> None:
    DsConfig.model_validate(embedded("zero_stage: 3", top="mixed_precision: fp16").value)


MISTAKES = {
    "a misspelled field": (("zero_stge: 3",), "", ("unknown-key", 3), "did you mean `zero_stage`?"),
    "a field of the top": (("num_processes: 3",), "", ("unknown-key", 3), "move it to the top"),
    "a misspelled key": (("zero_stage: 3",), "num_process: 3", ("unknown-key", 4), "did you mean `num_processes`?"),
    "a field of the section": (("zero_stage: 3",), "zero3_init_flag: true", ("unknown-key", 4), "move it into `deepspeed_config`"),
    "a key of a ds_config": (("zero_stage: 3", "overlap_comm: true"), "", ("unknown-key", 4), "write it in a ds_config, and name that in `deepspeed_config_file`"),
    "a key that is a field": (("stage: 3",), "", ("unknown-key", 3), "the field is `deepspeed_config.zero_stage`"),
    "a field of nothing": (("zero_stage: 3", "favourite: 3"), "", ("unknown-key", 4), "`accelerate launch --help` lists the fields, as flags"),
    "a stage in words": (("zero_stage: three",), "", ("bad-type", 3), None),
    "a clip in words": (("gradient_clipping: much",), "", ("bad-type", 3), None),
    "a count in words": (("zero_stage: 3",), "num_machines: two", ("bad-type", 4), None),
    "an unquoted no": (("zero_stage: 3",), "mixed_precision: no", ("bad-value", 4), "write `mixed_precision: 'no'`, in quotes"),
    "an unknown format": (("zero_stage: 3",), "mixed_precision: bf61", ("bad-value", 4), "did you mean `bf16`?"),
    "a hostfile for one host": (("deepspeed_hostfile: h",), "", ("ignored-field", 3), None),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_where_it_stands(name: str) -> None:
    fields, top, expected, _ = MISTAKES[name]
    assert codes(config(*fields, top=top)) == [expected]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_what_to_type(name: str) -> None:
    fields, top, _, hint = MISTAKES[name]
    assert [finding.hint for finding in config(*fields, top=top).findings] == [hint]


@pytest.mark.parametrize("field", REFUSED_BESIDE_A_FILE)
def test_a_field_beside_a_named_file_is_refused(field: str) -> None:
    assert codes(config("deepspeed_config_file: ds.json", f"{field}: 1")) == [("beside-a-file", 4)]


def test_a_precision_beside_a_named_file_is_refused() -> None:
    found = config("deepspeed_config_file: ds.json", top="mixed_precision: bf16")
    assert codes(found) == [("beside-a-file", 4)]


@pytest.mark.parametrize("field", FOR_SEVERAL_HOSTS)
def test_a_field_for_several_hosts_is_right_for_two(field: str) -> None:
    assert codes(config(f"{field}: x", top="num_machines: 2")) == []


def test_a_file_name_for_a_section_is_to_be_written_below_it() -> None:
    found = interpret(parse("distributed_type: DEEPSPEED\ndeepspeed_config: ds.json\n", "a.yaml"))
    assert [finding.hint for finding in found.findings] == ["write `deepspeed_config_file: ds.json` below it"]


def test_a_missing_type_is_told() -> None:
    found = interpret(parse("deepspeed_config:\n  zero_stage: 3\n", "a.yaml"))
    assert ("missing-key", 1) in codes(found)


def test_a_misspelled_type_is_told() -> None:
    found = interpret(parse("distributed_type: DeepSpeed\n", "a.yaml"))
    assert [finding.hint for finding in found.findings] == ["did you mean `DEEPSPEED`?"]


def test_a_config_for_something_else_has_no_ds_config() -> None:
    assert interpret(parse("distributed_type: MULTI_GPU\n", "a.yaml")).ds_config is None


def test_a_section_that_accelerate_would_not_look_at_is_told() -> None:
    text = "distributed_type: MULTI_GPU\ndeepspeed_config:\n  zero_stage: 3\n"
    (finding,) = interpret(parse(text, "a.yaml")).findings
    assert finding.severity is Severity.IGNORED


def test_findings_come_in_the_order_of_the_text() -> None:
    text = "a: 1\ndeepspeed_config:\n  b: 2\n  zero_stage: 2e0\n  c: 3\ndistributed_type: DEEPSPEED\nd: 4\n"
    assert [line for _, line in codes(interpret(parse(text, "a.yaml")))] == [1, 3, 4, 5, 7]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("zero_optimization:\n  stage: 2\n", "`python -c "),
        ('{"zero_optimization": {"stage": 2}}', "`zlaunch train --ds-config a.yaml` uses it"),
        ("train_batch_size: 2\n", "`zlaunch train --ds-config a.yaml` uses it"),
        ("lr: 1\n", "create one with `accelerate config`"),
    ],
)
def test_another_kind_of_file_is_refused_with_what_to_do(text: str, hint: str) -> None:
    with pytest.raises(Refused) as caught:
        interpret(parse(text, "a.yaml"))
    assert str(caught.value.findings[0].hint).startswith(hint)


def test_a_config_for_sagemaker_is_refused() -> None:
    with pytest.raises(Refused, match="1 problem"):
        interpret(parse("compute_environment: AMAZON_SAGEMAKER\n", "a.yaml"))


def test_the_conversion_that_is_advised_converts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("d's config.yaml")
    file.write_text("zero_optimization:\n  stage: 2\n")
    with pytest.raises(Refused) as caught:
        read(file)
    command = str(caught.value.findings[0].hint).strip("`").replace("python", shlex.quote(sys.executable), 1)
    subprocess.run(["sh", "-c", command], check=True)
    assert json.loads(Path("d's config.json").read_text()) == {"zero_optimization": {"stage": 2}}


@pytest.mark.parametrize(
    ("section", "names"),
    [
        ("deepspeed_config", ["zero_stage"]),
        ("dynamo_config", ["dynamo_zero_stage"]),
        ("fsdp_config", ["fsdp_zero_stage"]),
        ("mpirun_config", ["zero_stage"]),
    ],
)
def test_a_setting_has_the_name_of_the_flag(section: str, names: list[str]) -> None:
    found = interpret(parse(f"distributed_type: NO_\n{section}:\n  zero_stage: 2\n  x:\n", "a.yaml"))
    assert [setting.name for setting in found.settings()][1:] == names


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"HF_HOME": "/hf"}, "/hf/accelerate/default_config.yaml"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/accelerate/default_config.yaml"),
        ({}, "~/.cache/huggingface/accelerate/default_config.yaml"),
    ],
)
def test_the_default_config_lies_where_accelerate_writes_it(environ: dict[str, str], path: str) -> None:
    assert default_file(environ) == Path(path).expanduser()


def test_a_finding_names_the_key_as_it_is_nested() -> None:
    (finding,) = config("zero_stge: 3").findings
    assert finding.where == dotted(("deepspeed_config", "zero_stge"))
