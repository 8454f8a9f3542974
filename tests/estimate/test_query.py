from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.asking import model, question
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.estimate.changes import Options
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.query import (
    USUAL_SEQ_LEN,
    Estimate,
    EstimateQuery,
    Rejected,
    training_of,
    workload_of,
)
from zlaunch.estimate.workload import Lora, Workload, parse_lora
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import Offload


def workload(one: EstimateQuery) -> Workload:
    return workload_of(one, one.resolve())


@pytest.mark.parametrize(
    ("argv", "resumes"),
    [
        ((), False),
        (("--resume_from_checkpoint", "runs/checkpoint-5"), True),
        (("--resume_from_checkpoint", "True"), True),
        (("--resume_from_checkpoint", "False"), False),
    ],
)
def test_a_script_is_told_when_it_resumes(argv: tuple[str, ...], resumes: bool) -> None:
    assert question(*argv).training.resumes is resumes


def why_not(one: EstimateQuery) -> str:
    (answer,) = Estimator().closed_form([one])
    assert isinstance(answer, Rejected)
    assert isinstance(answer.error, Unavailable)
    return answer.error.message


@pytest.mark.parametrize(
    ("key", "value", "does"),
    [
        ("expert_parallel.enabled", True, "distributes experts among ranks"),
        ("hybrid_engine.enabled", True, "keeps the model in two layouts, to generate and to train"),
    ],
)
def test_of_a_model_that_is_split_otherwise_than_by_zero_nobody_can_tell(
    key: str, value: Any, does: str
) -> None:
    said = why_not(question(stage=1, overrides=((key, value),)))
    assert said == (
        f"cannot tell how much memory this job takes: `{key.removesuffix('.enabled')}` {does}, "
        "and zlaunch does not rehearse that"
    )


@pytest.mark.parametrize("key", ["tensor_parallel.autotp_size", "sequence_parallel_size"])
def test_what_deepspeed_itself_splits_is_estimated(key: str) -> None:
    (answer,) = Estimator().closed_form([question(stage=1, overrides=((key, 2),))])
    assert isinstance(answer, Estimate)
    assert answer.workload.groups.are_split


def test_an_argument_of_a_program_that_splits_sequences_names_the_key_that_is_estimated() -> None:
    (answer,) = Estimator().closed_form([question("--sp_size", "4", stage=2)])
    assert isinstance(answer, Rejected)
    assert "`--set sequence_parallel_size=4`" in str(answer.findings[0].hint)


@pytest.mark.parametrize(
    ("argv", "does"),
    [
        (("--tensor_parallel_size", "2"), "`--tensor_parallel_size 2` splits each layer"),
        (("--tensor-model-parallel-size=4",), "`--tensor_model_parallel_size 4` splits each layer"),
        (("--pp_size", "10"), "`--pp_size 10` distributes layers"),
        (("--ulysses_sequence_parallel_size", "2"), "splits each sequence"),
        (("--context_parallel_size", "2"), "splits each sequence"),
        (("--ep_size", "8"), "distributes experts"),
        (("--parallelism_config", "p.json"), "`--parallelism_config` splits the model or its sequences"),
    ],
)
def test_an_argument_that_splits_the_model_leaves_its_memory_open(argv: tuple[str, ...], does: str) -> None:
    assert does in why_not(question(*argv, stage=2))


@pytest.mark.parametrize(
    "argv",
    [
        ("--tensor_parallel_size", "1"),
        ("--vllm_tensor_parallel_size", "2"),  # of another program, which only generates
        ("--step_size", "2"),
    ],
)
def test_an_argument_that_splits_nothing_leaves_the_estimate_as_it_is(argv: tuple[str, ...]) -> None:
    (answer,) = Estimator().closed_form([question(*argv, stage=2)])
    assert isinstance(answer, Estimate)


@pytest.mark.parametrize(
    ("asked", "method"),
    [({"quant_method": "gptq", "bits": 4}, "gptq"), ({"load_in_4bit": True}, "bitsandbytes"), (None, None)],
)
def test_of_quantized_weights_nobody_can_tell(asked: Any, method: str | None) -> None:
    (answer,) = Estimator().closed_form([replace(question(stage=2), model=model(quantization_config=asked))])
    if method is None:
        assert isinstance(answer, Estimate)
        return
    assert isinstance(answer, Rejected)
    assert isinstance(answer.error, Unavailable)
    assert f"uses `{method}`" in answer.error.message


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("16", Lora(16)),
        ("8:q_proj", Lora(8, ("q_proj",))),
        ("8:q_proj,v.proj", Lora(8, ("q_proj", "v.proj"))),
    ],
)
def test_adapters_are_a_rank_and_modules(text: str, meant: Lora) -> None:
    assert parse_lora(text) == meant


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "8:", "8:a,,b", "8:a b", "1" * 9])
def test_anything_else_is_no_adapter(text: str) -> None:
    with pytest.raises(WrongUsage, match="RANK"):
        parse_lora(text)


@pytest.mark.parametrize(
    ("argv", "option", "changes", "length"),
    [
        ((), None, {}, USUAL_SEQ_LEN),
        ((), None, {"max_position_embeddings": 512}, 512),
        (("--block_size", "1024"), None, {}, 1024),
        (("--max-seq-length=1024",), None, {}, 1024),
        (("--max_seq_length", "long"), None, {}, USUAL_SEQ_LEN),
        (("--block_size", "1024"), 300, {}, 300),
    ],
)
def test_a_length_is_the_option_then_the_scripts_then_what_the_model_takes(
    argv: tuple[str, ...], option: int | None, changes: dict[str, Any], length: int
) -> None:
    assert training_of(model(**changes), ScriptArgs.of(argv), Options(seq_len=option)).seq_len.value == length


@pytest.mark.parametrize(
    ("argv", "on"),
    [
        ((), False),
        (("--activation_checkpointing",), True),
        (("--gradient_checkpointing", "true"), True),
        (("--gradient_checkpointing", "False"), False),
    ],
)
def test_checkpointing_is_read_from_the_scripts_arguments(argv: tuple[str, ...], on: bool) -> None:
    assert training_of(model(), ScriptArgs.of(argv), Options()).activation_checkpointing is on


@pytest.mark.parametrize(
    ("argv", "changes", "dtype"),
    [
        ((), {}, "bf16"),
        ((), {"dtype": None, "torch_dtype": "float16"}, "fp16"),
        ((), {"dtype": None}, "fp32"),
        (("--dtype", "float32"), {}, "fp32"),
    ],
)
def test_weights_are_loaded_in_the_format_that_somebody_named(
    argv: tuple[str, ...], changes: dict[str, Any], dtype: str
) -> None:
    assert training_of(model(**changes), ScriptArgs.of(argv), Options()).load_dtype == dtype


def test_no_auto_is_left_for_deepspeed() -> None:
    scheduler = {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}
    one = workload(question(stage=2, overrides=(("scheduler", scheduler),)))
    assert "auto" not in str(one.ds_config)
    assert one.ds_config["scheduler"]["params"]["total_num_steps"] > 0


def test_buckets_that_were_set_are_those_of_the_workload() -> None:
    key = "zero_optimization.reduce_bucket_size"
    one = workload(question(stage=2, overrides=((key, 123_456),)))
    assert one.ds_config["zero_optimization"]["reduce_bucket_size"] == 123_456


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_only_stage_3_partitions_a_model_as_it_is_made(stage: int) -> None:
    assert workload(question(stage=stage)).zero_init is (stage == 3)


def test_a_directory_on_nvme_reaches_the_workload() -> None:
    one = workload(question(stage=3, offload=Offload("nvme", "nvme"), nvme_dir=Path("/drive")))
    assert one.ds_config["zero_optimization"]["offload_param"]["nvme_path"] == "/drive"
