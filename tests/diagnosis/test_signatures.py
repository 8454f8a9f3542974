import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.diagnosis.deaths import GIB, SITE, frame, machine, printed, raised, run
from tests.diagnosis.table import DEATHS
from tests.each import each
from zlaunch.config.validate import validate_mapping
from zlaunch.diagnosis.diagnose import SIGNATURES, diagnose
from zlaunch.diagnosis.evidence import DiskEvidence, Evidence
from zlaunch.diagnosis.render import LINES, height, verdict_lines
from zlaunch.diagnosis.signatures.nan import idle_steps, skipped_steps
from zlaunch.rundir.record import HeartbeatRecord
from zlaunch.units import duration, gib

CASES = [
    pytest.param(code, evidence, id=f"{code}-{number}")
    for code, evidences in DEATHS.items()
    for number, evidence in enumerate(evidences)
]


@each(("code", "evidence"), CASES)
def test_each_death_is_known_by_its_signs(code: str, evidence: Evidence) -> None:
    assert diagnose(evidence).code == code


def test_a_collective_that_timed_out_is_blamed_on_the_rank_that_fell_behind() -> None:
    """Of a watchdog's messages, that is the rank with the lowest number of the collective."""
    blamed = [diagnose(evidence).rank for evidence in DEATHS["collective-timeout"]]
    assert blamed[3] == 1


def test_an_argument_that_zlaunch_added_is_not_blamed_on_the_user() -> None:
    usage = "sft.py: error: argument --bf16: expected one argument\n"
    died = run(printed(usage, 2, phase="starting"), job={"appended": ("--bf16", "--deepspeed", "ds.json")})
    verdict = diagnose(died)
    assert verdict is not None
    assert "zlaunch added `--bf16`; the other arguments are yours" in verdict.facts


@pytest.mark.parametrize(
    ("kind", "message", "cause"),
    [
        ("ModuleNotFoundError", "No module named 'trl.gone'", "`trl` has no module `trl.gone`"),
        (
            "ModuleNotFoundError",
            "No module named 'datasets.load'; 'datasets' is not a package",
            "`datasets` is a file, so there is no `datasets.load`",
        ),
        ("ModuleNotFoundError", "No module named 'trl'", "`trl` is not installed in the Python of rank 0"),
        (
            "OSError",
            "/data/llama does not appear to have a file named config.json. Checkout https://huggingface.co",
            "`/data/llama` exists, but has no file `config.json`",
        ),
        (
            "EmptyDatasetError",
            "The directory at /data/sft doesn't contain any data files",
            "the folder `/data/sft` exists, but has no data files that `datasets` reads",
        ),
    ],
)
def test_what_is_there_is_not_called_missing(kind: str, message: str, cause: str) -> None:
    verdict = diagnose(run(raised(kind, message)))
    assert verdict is not None
    assert verdict.cause == cause


FROM = "\n\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"


def test_a_missing_module_is_named_though_another_error_was_raised_from_it() -> None:
    within = f"ModuleNotFoundError: No module named 'httpx'{FROM}"
    verdict = diagnose(run(raised("ModuleNotFoundError", "Could not import module 'Trainer'.", within)))
    assert verdict
    assert (verdict.cause.split()[0], verdict.advice) == ("`httpx`", ("`pip install httpx`",))


@pytest.mark.parametrize(
    ("last", "is_told"),
    [
        ("the loader is empty", True),
        ("DeepSpeed deepspeed.ops.comm.deepspeed_shm_comm_op built successfully", False),
        ("Time to load cpu_adam op: 2.4 seconds", False),
    ],
)
def test_a_native_op_that_was_loaded_last_is_no_evidence_of_an_end(last: str, is_told: bool) -> None:
    verdict = diagnose(run(printed(f"step 7\n{last}\n", 3)))
    assert verdict
    assert (f"last line of its log: {last}" in verdict.facts) == is_told


def test_a_checkpoint_that_found_no_room_is_told_with_its_own_disk() -> None:
    death = raised("OSError", "[Errno 28] No space left on device", phase="saving")
    disk = DiskEvidence(Path("small/out"), total=100 << 20, free=0)
    evidence = run(death, machines=machine(disk_free_bytes=17 * GIB), save_disk=disk)
    verdict = diagnose(evidence)
    assert "0 B of 100 MiB free on the file system of small/out" in verdict.facts
    assert not any("run directory" in fact for fact in verdict.facts)
    assert "`zlaunch checkpoint prune small/out --keep 1`" in verdict.advice[0]


def test_an_exception_is_told_with_the_one_it_was_raised_from() -> None:
    verdict = diagnose(run(raised("ValueError", "bad data", f"KeyError: 'text'{FROM}")))
    assert verdict
    assert "caused by KeyError: 'text'" in verdict.facts


def test_every_signature_has_a_death() -> None:
    assert {one.code for one in SIGNATURES} == {*DEATHS}


def test_no_two_signatures_share_a_code() -> None:
    assert len({one.code for one in SIGNATURES}) == len(SIGNATURES)


@each("one", SIGNATURES, ids=lambda one: one.code)
def test_every_signature_says_in_a_line_what_the_death_is(one: object) -> None:
    assert len(one.what) > 15  # type: ignore[attr-defined]


@each(("code", "evidence"), CASES)
def test_no_verdict_is_longer_than_ten_lines(code: str, evidence: Evidence) -> None:
    verdict = diagnose(evidence)
    assert height(verdict) <= LINES
    told = "".join("".join(verdict_lines(verdict, "failed after 3 min 05 s", 80)).split())
    assert [text for text in (*verdict.facts, *verdict.advice) if "".join(text.split()) not in told] == []


def numbers_of(evidence: Evidence) -> Iterator[str]:
    """Every number of the evidence, in each way of writing it."""
    for text in re.findall(r"\d+\.?\d*", repr(evidence)):
        yield text
        number = float(text)
        yield from (gib(number), *duration(number).split(), str(int(number)), str(int(number) >> 20))


@each(("code", "evidence"), CASES)
def test_every_number_of_a_fact_is_found_in_the_evidence(code: str, evidence: Evidence) -> None:
    known = {*numbers_of(evidence), *map(str, range(len(evidence.ranks) + 1)), gib(3 << 30)}
    found = [number for fact in diagnose(evidence).facts for number in re.findall(r"\d+\.?\d*", fact)]
    assert [number for number in found if number.rstrip(".") not in known] == []


@each(("code", "evidence"), CASES)
def test_advice_is_never_canned_for_what_is_already_on(code: str, evidence: Evidence) -> None:
    advice = " ".join(diagnose(evidence).advice)
    assert f"--stage {evidence.job.stage}`" not in advice
    assert not ("optimizer" in evidence.job.offload and "optimizer:cpu`: the optimizer's" in advice)


@each(("code", "evidence"), CASES)
def test_a_cause_is_a_sentence_without_its_full_stop(code: str, evidence: Evidence) -> None:
    assert not diagnose(evidence).cause.endswith(".")


@each(("code", "evidence"), CASES)
def test_a_verdict_can_be_written_as_json(code: str, evidence: Evidence) -> None:
    from dataclasses import asdict

    assert json.loads(json.dumps(asdict(diagnose(evidence))))["code"] == code


def test_a_death_that_a_rule_foresees_is_told_as_the_rule_tells_it() -> None:
    """The rule speaks of the job's own numbers."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/nvme", "buffer_count": 3},
        },
    }
    (foreseen,) = (one for one in validate_mapping(config) if one.code == "too-few-buffers")
    (evidence, _) = DEATHS["too-few-buffers"]
    died = replace(evidence, job=replace(evidence.job, config=config))
    assert diagnose(died).cause == foreseen.message


MODULE = f"{SITE}/torch/nn/modules/module.py"
EMPTY = "index 0 is out of bounds for dimension 0 with size 0"


@pytest.mark.parametrize(
    ("stage", "code", "is_parameter"),
    [
        (3, "row = model.embed_tokens.weight[0]", True),
        (2, "row = model.embed_tokens.weight[0]", False),
        (3, "row = batch[0]", False),
    ],
)
def test_only_a_parameter_of_stage_3_is_empty_because_it_is_partitioned(
    stage: int, code: str, is_parameter: bool
) -> None:
    within = frame("/home/ann/train.py", 7, "f", code)
    verdict = diagnose(run(raised("IndexError", EMPTY, within), job={"stage": stage}))
    assert (verdict.code == "partitioned-parameter") is is_parameter


def test_a_checkpoint_of_empty_tensors_is_told_from_a_model_of_empty_parameters() -> None:
    words = "size mismatch for w: copying a param with shape {} from checkpoint, the shape in current model is {}."
    full, empty = "torch.Size([8, 8])", "torch.Size([0])"
    codes = [
        diagnose(
            run(
                raised("RuntimeError", words.format(*shapes), frame(MODULE, 1, "f", "raise")),
                job={"stage": 3},
            )
        ).code
        for shapes in ((empty, full), (full, empty))
    ]
    assert codes == ["sharded-weights", "partitioned-parameter"]


def test_from_pretrained_under_zero_init_is_told_of_the_config_that_opens_it() -> None:
    within = frame(f"{SITE}/transformers/modeling_utils.py", 9, "from_pretrained", "x") + frame(
        MODULE, 1, "zeros_", "tensor.zero_()"
    )
    verdict = diagnose(run(raised("IndexError", EMPTY, within), job={"stage": 3}))
    assert "HfDeepSpeedConfig" in verdict.advice[0]


@pytest.mark.parametrize(
    "code",
    [
        "engine.module.load_state_dict(weights)",
        "model.weight.data.copy_(weights['weight'])",
        "torch.nn.init.orthogonal_(model.weight)",
    ],
)
def test_weights_are_set_before_the_optimizer_copies_them(code: str) -> None:
    """After `deepspeed.initialize`, the fp32 copy of the optimizer overwrites them at the next step."""
    within = frame("/home/ann/train.py", 7, "main", code) + frame(MODULE, 1, "f", "raise RuntimeError(")
    verdict = diagnose(run(raised("RuntimeError", SHAPES, within, phase="starting"), job={"stage": 3}))
    assert verdict.code == "partitioned-parameter"
    assert "before `deepspeed.initialize`" in verdict.advice[0]
    assert "modifier_rank=0" in verdict.advice[1]


SHAPES = (
    "Error(s) in loading state_dict for Sequential:\n\tsize mismatch for 0.weight: copying a param with shape "
    "torch.Size([16, 16]) from checkpoint, the shape in current model is torch.Size([0])."
)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_model_of_zero_init_is_not_gathered_below_stage_3(stage: int) -> None:
    linear = f"{SITE}/deepspeed/runtime/zero/linear.py"
    applied = "return LinearFunctionForZeroStage3.apply(input, weight, bias)"
    within = frame("/home/ann/train.py", 7, "main", "loss = engine(x)")
    within += frame(linear, 149, "zero3_linear_wrap", applied)
    within += frame(linear, 90, "forward", "ret = torch.addmm(bias, input, weight.t())")
    error = raised("RuntimeError", SAID_OF_EMPTY["F.linear"], within, phase="forward")
    verdict = diagnose(run(error, job={"stage": stage}))
    assert verdict.code == "partitioned-parameter"
    assert verdict.cause == f"`zero.Init` has partitioned a parameter, which is not gathered at stage {stage}"


def test_a_bare_assertion_says_what_it_asserts() -> None:
    within = frame(f"{SITE}/deepspeed/runtime/zero/stage3.py", 9, "f", "assert self.ipg_buckets is not None")
    verdict = diagnose(run(raised("AssertionError", "", within)))
    assert verdict.facts[0] == "AssertionError: `assert self.ipg_buckets is not None`"


SAID_OF_EMPTY = {
    "x + linear.bias": "The size of tensor a (8) must match the size of tensor b (0) at non-singleton dimension 1",
    "F.batch_norm": "weight should contain 8 elements not 0",
    "F.conv2d": "weight should have at least three dimensions",
    "F.embedding": "'weight' must be 2-D",
    "F.layer_norm": "Expected weight to be of same shape as normalized_shape, but got weight of shape [0] and "
    "normalized_shape = [8]",
    "F.linear": "mat2 must be a matrix, got 1-D tensor",
    "F.prelu": "Mismatch of parameter numbers and input channel size. Found parameter numbers = 0 and channel size = 8.",
    "torch.einsum": "einsum(): the number of subscripts in the equation (2) does not match the number of dimensions (1) "
    "for operand 1 and no ellipsis was given",
    "x @ weight": "size mismatch, got input (2), mat (2x8), vec (0)",
    "weight.t() @ x": "mat1 and mat2 shapes cannot be multiplied (1x0 and 2x8)",
    "weight.view(8, 8)": "shape '[8, 8]' is invalid for input of size 0",
    "weight.transpose(0, 1)": "Dimension out of range (expected to be in range of [-1, 0], but got 1)",
    "weight[1, 2]": "too many indices for tensor of dimension 1",
    "weight.shape[1]": "tuple index out of range",
    "weight.max()": "max(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim.",
    "weight.abs().amax(-1)": "amax(): Expected reduction dim -1 to have non-zero size.",
    "torch.linalg.qr(weight)": "linalg.qr: The input tensor A must have at least 2 dimensions.",
    "torch.stack": "stack expects each tensor to be equal size, but got [0] at entry 0 and [8, 8] at entry 1",
    "weight.expand": "The expanded size of the tensor (8) must match the existing size (0) at non-singleton dimension 1.",
    "init.xavier_uniform_": "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions",
    "init.orthogonal_": "Only tensors with 2 or more dimensions are supported",
}
"""Call → what torch 2.13 says if its parameter is one of stage 3."""


@pytest.mark.parametrize("call", SAID_OF_EMPTY)
def test_whatever_torch_says_of_an_empty_parameter_has_one_cause(call: str) -> None:
    within = frame("/home/ann/train.py", 7, "f", f"{call}  # of model.weight")
    evidence = run(raised("RuntimeError", SAID_OF_EMPTY[call], within), job={"stage": 3})
    assert diagnose(evidence).code == "partitioned-parameter"


@pytest.mark.parametrize(
    ("skipped", "taken", "scale", "in_vain"),
    [
        (40, 40, None, True),
        (1, 1, None, True),
        (30, 40, None, True),
        (3, 40, None, False),
        (0, 40, None, False),
        (40, 40, 65536.0, True),
        (5, 5, 65536.0, True),
        (16, 20, 65536.0, False),
        (33, 40, 2.0**32, False),
        (33, 40, 65536.0, True),
    ],
)
def test_a_run_that_skipped_its_steps_finished_in_vain(
    skipped: int, taken: int, scale: float | None, in_vain: bool
) -> None:
    heartbeat: dict[str, Any] = {"taken_steps": taken, "skipped_steps": skipped}
    if scale is not None:
        heartbeat |= {"first_loss_scale": scale, "loss_scale": 1.0}
    verdict = diagnose(run(printed("", 0, heartbeat=heartbeat), launcher_returncode=0))
    assert verdict.code == ("steps-skipped" if in_vain else "finished")


def test_the_first_skips_of_fp16_are_not_reported_while_it_trains() -> None:
    first: HeartbeatRecord = {"first_loss_scale": 65536.0, "loss_scale": 256.0}
    assert skipped_steps({**first, "taken_steps": 8, "skipped_steps": 8}) is None
    lost = skipped_steps({**first, "taken_steps": 30, "skipped_steps": 30})
    assert lost is not None
    assert lost.cause == "all 30 steps were skipped, so no weight has changed"


@pytest.mark.parametrize(
    ("idle", "taken", "is_told"), [(5, 10, True), (2, 4, False), (3, 1000, False), (0, 9, False)]
)
def test_a_schedule_that_ends_before_the_training_is_told(idle: int, taken: int, is_told: bool) -> None:
    lost = idle_steps({"idle_steps": idle, "taken_steps": taken})
    assert (lost is not None) == is_told
    assert lost is None or lost.cause == "the learning rate was 0 in the last 5 of 10 steps"
