"""What a settled ds_config says about swapping to NVMe, and what it leaves to the user."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.asking import model
from tests.making import CPU_MACHINE, TWO_GPUS
from zlaunch.checks.config_at_hand import find_at_hand
from zlaunch.cli.views.settings_text import precision_words
from zlaunch.config.report import ReportOptions, inspect_config
from zlaunch.config.resolve.autos import MICRO
from zlaunch.config.resolve.compose import PREFETCH, REUSE, SURE_BUFFERS
from zlaunch.config.resolve.job import ResolveContext, resolve_config
from zlaunch.config.resolve.nvme_buffers import COUNT, SIZE
from zlaunch.config.resolve.values import Values
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import ExitStatus, Refused, WrongUsage
from zlaunch.hosts.machine.resources import Machine
from zlaunch.job.file_kinds import read_ds_config
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import STAGES, JobSpec, Offload, Stage
from zlaunch.job.stack import SoftwareStack
from zlaunch.job.trainer_args import TrainerArgs

NVME: dict[str, Any] = {"offload": Offload("nvme"), "nvme_dir": Path("/nvme")}
LAYER = 4 * 256 * 256 + 3 * 256 * 512 + 2 * 256
LARGEST_SHARE = 256 * 1000 // 2


def settled(
    shape: ModelConfig | None = None,
    file: dict[str, Any] | str | None = None,
    interface: ConfigInterface = ConfigInterface.TRAINER,
    **job: Any,
) -> Values:
    base = None
    if file is not None:
        base = parse(file if isinstance(file, str) else json.dumps(file), "ds_config.json")
    spec = JobSpec(script=Path("train.py"), **job)
    given = ResolveContext(base, TrainerArgs({}), shape or model(), TWO_GPUS, 2, interface)
    return resolve_config(spec, given).values


def test_a_model_that_is_known_gets_the_buffers_it_needs() -> None:
    values = settled(stage=3, **NVME)
    assert values[COUNT] == 5
    assert values[REUSE] == 2 * LAYER
    assert values[SIZE] == LARGEST_SHARE + LARGEST_SHARE // 16
    assert values[PREFETCH] == 0


WITHOUT_WIDTH = ModelConfig({"model_type": "t5gemma"}, "", "m/config.json")
BUCKETS = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")


@pytest.mark.parametrize("interface", [ConfigInterface.TRAINER, ConfigInterface.ACCELERATE])
def test_a_preset_leaves_the_buckets_of_a_model_without_a_width_to_deepspeed(
    interface: ConfigInterface,
) -> None:
    values = settled(WITHOUT_WIDTH, interface=interface, stage=3)
    assert not any(values.has((ZERO, key)) for key in BUCKETS)


def test_an_auto_that_the_trainer_cannot_fill_in_is_refused_at_its_line() -> None:
    with pytest.raises(Refused) as refused:
        settled(WITHOUT_WIDTH, file={ZERO: {"stage": 2, "reduce_bucket_size": "auto"}})
    (finding,) = refused.value.findings
    assert (finding.code, finding.hint) == (
        "no-hidden-size",
        "write a number: DeepSpeed's default is 500000000",
    )
    assert finding.place is not None


def test_an_auto_that_only_zlaunch_cannot_fill_in_is_left_to_the_trainer() -> None:
    unknown = ModelConfig({"model_type": "made-up"}, "", "m/config.json")
    file = {ZERO: {"stage": 2, "reduce_bucket_size": "auto"}}
    assert settled(unknown, file=file)[(ZERO, "reduce_bucket_size")] == "auto"


def test_every_number_about_buffers_says_where_it_comes_from() -> None:
    values = settled(stage=3, **NVME)
    assert all("m/config.json" in str(values.leaves[path].source) for path in (COUNT, REUSE, SIZE))


def test_a_model_of_unknown_sizes_gets_what_is_enough_for_every_model() -> None:
    values = settled(
        ModelConfig({"hidden_size": 64, "vocab_size": 256}, "", "m/config.json"), stage=3, **NVME
    )
    assert (values[COUNT], values[REUSE], values[PREFETCH]) == (SURE_BUFFERS, 0, 0)
    assert not values.has(SIZE)


@pytest.mark.parametrize("path", [COUNT, SIZE, REUSE, PREFETCH])
def test_what_the_user_sets_stays(path: tuple[str, ...]) -> None:
    values = settled(stage=3, overrides=((".".join(path), 7_777_777),), **NVME)
    assert values[path] == 7_777_777


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("zero.stage", 3, "zero_optimization.stage=3"),
        ("stage", 3, "zero_optimization.stage=3"),
        ("optimiser.type", "Adam", "optimizer.type=Adam"),
        ("zero_optimization.ofload_param.device", "cpu", "zero_optimization.offload_param.device=cpu"),
    ],
)
def test_a_misspelled_key_of_an_override_is_answered_with_the_whole_option(
    key: str, value: object, meant: str
) -> None:
    with pytest.raises(Refused) as caught:
        settled(overrides=((key, value),))
    hints = [finding.hint for finding in caught.value.findings]
    assert f"did you mean `--set {meant}`?" in hints


def swapped(**zero: Any) -> dict[str, Any]:
    param = {"device": "nvme", "nvme_path": "/nvme", **zero.pop("offload_param", {})}
    return {"zero_optimization": {"stage": 3, "offload_param": param, **zero}}


def test_a_users_file_gets_the_buffers_it_leaves_out_and_nothing_else() -> None:
    values = settled(file=swapped())
    assert values[COUNT] >= 5
    assert not values.has(REUSE)
    assert not values.has(PREFETCH)


def test_a_users_file_keeps_its_buffers() -> None:
    values = settled(file=swapped(offload_param={"buffer_count": 6}, stage3_max_reuse_distance=9))
    assert (values[COUNT], values[REUSE]) == (6, 9)


def test_more_is_gathered_where_the_users_file_keeps_more() -> None:
    few, many = (
        settled(model(num_hidden_layers=40, hidden_size=1024), file=swapped(**zero))[COUNT]
        for zero in ({"stage3_max_reuse_distance": 0}, {})
    )
    assert few < many


def test_both_formats_of_two_bytes_swap_the_same_parameters_and_fp32_more() -> None:
    one = model(num_hidden_layers=40, hidden_size=800, intermediate_size=800)
    counts = [settled(one, file=swapped(), precision=name)[COUNT] for name in ("bf16", "fp16", "fp32")]
    assert counts[0] == counts[1] < counts[2]


@pytest.mark.parametrize(("said", "then"), [({}, 0), ({"stage3_prefetch_bucket_size": 5}, 5)])
def test_an_offload_over_a_users_file_reads_nothing_ahead_unless_the_file_says_so(
    said: dict[str, Any], then: int
) -> None:
    assert settled(file={"zero_optimization": {"stage": 3, **said}}, **NVME)[PREFETCH] == then


def test_parameters_on_the_cpu_are_read_ahead() -> None:
    values = settled(stage=3, offload=Offload("cpu"))
    assert values[PREFETCH] > 0
    assert not values.has((ZERO, "offload_param", "buffer_count"))


@pytest.mark.parametrize(
    ("interface", "clipping"), [(ConfigInterface.DEEPSPEED, 1.0), (ConfigInterface.ACCELERATE, "auto")]
)
def test_clipping_stays_auto_only_if_something_else_can_fill_it_in(
    interface: ConfigInterface, clipping: float | str
) -> None:
    given = ResolveContext(None, TrainerArgs({}), model(), TWO_GPUS, 2, interface, is_sure=False)
    values = resolve_config(JobSpec(script=Path("train.py"), stage=2), given).values
    assert values["gradient_clipping",] == clipping


@pytest.mark.parametrize(("cpu_fp16", "codes"), [(False, ["fp16-unsupported"]), (True, []), (None, [])])
def test_fp16_is_refused_only_on_a_cpu_that_is_known_to_lack_it(
    cpu_fp16: bool | None, codes: list[str]
) -> None:
    given = ResolveContext(
        None, TrainerArgs({}), model(), replace(CPU_MACHINE, cpu_fp16=cpu_fp16), world_size=2
    )
    found: list[str] = []
    try:
        resolve_config(JobSpec(script=Path("train.py"), stage=2, precision="fp16"), given)
    except Refused as error:
        found = [finding.code for finding in error.findings]
    assert found == codes


@pytest.mark.parametrize("interface", [ConfigInterface.TRAINER, ConfigInterface.DEEPSPEED])
def test_a_cpu_without_instructions_for_bf16_trains_in_fp32_and_the_plan_says_why(
    interface: ConfigInterface,
) -> None:
    slow = replace(CPU_MACHINE, cpu_bf16=False)
    resolved = resolve_config(
        JobSpec(script=Path("train.py"), stage=2),
        ResolveContext(None, TrainerArgs({}), model(), slow, 2, interface),
    )
    expected = "fp32, the best format of a CPU without instructions for bf16"
    assert (resolved.precision, precision_words("fp32", resolved.values)) == ("fp32", expected)
    assert [word for word, _ in resolved.agreement.added if word in ("bf16", "fp16")] == []


LION: dict[str, Any] = {"optimizer": {"type": "Lion", "params": {"lr": 1e-4}}, "train_batch_size": 2}
OFFLOADED = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}


@pytest.mark.parametrize(
    ("machine", "more", "codes"),
    [
        (CPU_MACHINE, {}, ["optimizer-needs-a-gpu"]),
        (CPU_MACHINE, {"optimizer": {**LION["optimizer"], "type": "Lamb"}}, ["optimizer-needs-a-gpu"]),
        (CPU_MACHINE, OFFLOADED, []),
        (CPU_MACHINE, {"optimizer": {**LION["optimizer"], "type": "Adagrad"}}, []),
        (TWO_GPUS, {}, []),
    ],
)
def test_an_optimizer_that_the_cpu_accelerator_does_not_have_is_refused_there(
    machine: Machine, more: dict[str, Any], codes: list[str]
) -> None:
    file = parse(json.dumps({**LION, **more}), "ds_config.json")
    given = ResolveContext(file, TrainerArgs({}), model(), machine, 2, ConfigInterface.DEEPSPEED)
    found: list[str] = []
    try:
        resolve_config(JobSpec(script=Path("train.py")), given)
    except Refused as error:
        found = [finding.code for finding in error.findings]
    assert found == codes


def test_ranks_that_share_a_sequence_count_as_one_in_the_batch_of_a_script_of_its_own() -> None:
    """As DeepSpeed counts them; what the Trainer makes of it depends on accelerate."""
    mesh = {"sequence_parallel_size": 2, "data_parallel_size": 1, "gradient_accumulation_steps": 2}
    file = {"train_batch_size": 8, **mesh}
    raw = settled(file=file, interface=ConfigInterface.DEEPSPEED)
    assert raw[MICRO] == 4
    wrong = {**file, "train_micro_batch_size_per_gpu": 2}
    with pytest.raises(Refused) as refused:
        settled(file=wrong, interface=ConfigInterface.DEEPSPEED)
    assert [one.code for one in refused.value.findings] == ["batch-equation"]


OFFLOADS = [
    Offload("cpu"),
    Offload("nvme"),
    Offload("cpu", "cpu"),
    Offload("none", "nvme"),
    Offload("cpu", "nvme"),
]


@pytest.mark.parametrize("offload", OFFLOADS)
@pytest.mark.parametrize("stage", STAGES.values())
def test_a_finding_names_a_key_that_the_user_chose(stage: Stage, offload: Offload) -> None:
    try:
        settled(stage=stage, offload=offload, nvme_dir=Path("/nvme"))
    except Refused as error:
        sections = {finding.where.split(".")[1] for finding in error.findings}
        assert sections <= {"offload_optimizer", "offload_param"}


def test_a_directory_of_nvme_may_have_any_name() -> None:
    assert settled(stage=3, offload=Offload("nvme"), nvme_dir=Path("/nvme/$a"))[COUNT] is not None


def refused(file: dict[str, Any], **job: Any) -> list[str]:
    with pytest.raises(Refused) as caught:
        settled(file=file, **job)
    return [finding.code for finding in caught.value.findings]


def test_a_file_is_refused_once_for_all_its_mistakes() -> None:
    file = {"bf16": {"enabled": True}, "fp16": {"enabled": True}, "gradient_cliping": 1.0}
    assert set(refused(file)) == {"both-formats", "unknown-key"}


def test_mistakes_are_listed_in_the_order_of_the_file() -> None:
    file = {"gradient_cliping": 1.0, "optimizer": {"type": "AdamWW"}, "zero_optimisation": {"stage": 3}}
    text = json.dumps(file, indent=2)
    with pytest.raises(Refused) as caught:
        settled(file=text)
    lines = [finding.place.line for finding in caught.value.findings if finding.place]
    assert lines == sorted(lines)
    assert len(lines) == 3


def test_a_stage_that_an_option_chooses_is_not_a_mistake_of_a_file_with_others() -> None:
    offloaded = {
        "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}},
        "gradient_cliping": 1.0,
    }
    assert refused(offloaded, stage=3) == ["unknown-key"]


FILES = {
    "a key that means nothing": {"favourite": 1},
    "a misspelled key": {"gradient_cliping": 1.0},
    "a misplaced key": {"stage": 3},
    "a key that its stage ignores": {"zero_optimization": {"stage": 2, "sub_group_size": 1000}},
    "a value that DeepSpeed converts": {"zero_optimization": {"stage": 2, "overlap_comm": "true"}},
    "a value that DeepSpeed refuses": {"zero_optimization": {"stage": 7}},
    "a value that nothing can be computed with": {
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "true"}},
    },
}


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_train_refuses_a_file_exactly_if_validate_and_doctor_do(file: dict[str, Any], tmp_path: Path) -> None:
    whole = {"train_micro_batch_size_per_gpu": 1, **file}
    (path := tmp_path / "ds_config.json").write_text(json.dumps(whole))
    try:
        settled(file=whole)
        trains = True
    except Refused:
        trains = False
    config = find_at_hand(path, None, None).needs.config
    assert config is not None
    assert (not config.findings) == trains
    assert (inspect_config(str(path), ReportOptions()).status(strict=False) == ExitStatus.OK) == trains


@pytest.mark.parametrize("name", ["lf.yaml", "lf.json"])
def test_a_config_of_another_program_is_one_sentence_in_train_validate_and_doctor(
    name: str, tmp_path: Path
) -> None:
    (path := tmp_path / name).write_text('{"finetuning_type": "lora", "stage": "sft"}')
    with pytest.raises(WrongUsage) as refused:
        read_ds_config(path)
    at_hand = find_at_hand(path, None, None).needs.config
    assert at_hand is not None
    for findings in (at_hand.findings, inspect_config(str(path), ReportOptions()).findings):
        assert [(item.message, item.hint) for item in findings] == [
            (refused.value.message, refused.value.hint)
        ]


OLD = SoftwareStack({"deepspeed": "0.18.2"})


def test_a_known_defect_is_a_warning_in_train_even_of_a_preset_and_in_doctor(tmp_path: Path) -> None:
    job = JobSpec(script=Path("train.py"), stage=2, overrides=(("gradient_accumulation_steps", 4),))
    given = ResolveContext(None, TrainerArgs({}), model(), TWO_GPUS, 2, ConfigInterface.DEEPSPEED, stack=OLD)
    in_train = [finding.code for finding in resolve_config(job, given).warnings]
    (path := tmp_path / "ds_config.json").write_text(
        '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2}}'
    )
    config = find_at_hand(path, None, None, OLD).needs.config
    assert config is not None
    assert [finding.code for finding in config.warnings] == ["known-defect"]
    assert "known-defect" in in_train


def test_a_known_defect_that_fades_is_named_in_train_too() -> None:
    new = SoftwareStack({"deepspeed": "0.19.8"})
    given = ResolveContext(None, TrainerArgs({}), model(), TWO_GPUS, 2, ConfigInterface.DEEPSPEED, stack=new)
    job = JobSpec(script=Path("train.py"), stage=0, precision="bf16")
    warnings = resolve_config(job, given).warnings
    assert [(finding.code, finding.severity.value) for finding in warnings] == [("known-defect", "advice")]


def test_an_engine_loop_may_leave_the_learning_rate_to_the_optimizer() -> None:
    chosen: dict[str, Any] = {"stage": 2, "overrides": (("optimizer.type", "AdamW"),)}
    assert settled(interface=ConfigInterface.DEEPSPEED, **chosen)["optimizer", "type"] == "AdamW"
    with pytest.raises(Refused) as refused:  # where the Trainer has another one, which would be ignored
        settled(**chosen)
    assert refused.value.findings[0].code == "no-learning-rate"
