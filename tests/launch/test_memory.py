from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.asking import MadeUp, answer, forecast, model
from tests.facts import facts_of, on_machine
from tests.making import CPU_MACHINE, TWO_GPUS, local, script
from zlaunch.cli.views.plan_view import PlanView
from zlaunch.errors import Refused, Unavailable, WrongUsage
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected
from zlaunch.estimate.uncounted import Effect, Uncounted
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import JobSpec, Offload
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.memory import SHORT_SEQ_LEN, check_memory, choose_stage, first_that_fits, query_for
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.preflight import show_plan


def prepared(
    *argv: str, source: str = "", interface: ConfigInterface = ConfigInterface.TRAINER, **job: Any
) -> JobFacts:
    spec = JobSpec(script=Path("train.py"), args=ScriptArgs.of(argv), **job)
    read = script(source, interface)
    return facts_of(spec, read, model=model(), machine=TWO_GPUS, topology=local(0, 1))


def of_model(facts: JobFacts, model: ModelConfig | None) -> JobFacts:
    return replace(facts, model=model)


def gpus_that_hold(sizes: dict[int, float]) -> MadeUp:
    """Answer by ZeRO stage; whatever is offloaded or checkpointed is tiny."""

    def told(one: EstimateQuery) -> Estimate:
        zero = one.resolve().config.zero_optimization
        stage = zero.stage if isinstance(zero.stage, int) else 0
        small = bool(zero.offloads) or one.training.activation_checkpointing
        return answer(one, forecast(1.0 if small else sizes[stage]))

    return MadeUp(lambda queries: [told(one) for one in queries])


ROOMY = gpus_that_hold({0: 60, 1: 30, 2: 20, 3: 10})
NARROW = gpus_that_hold({0: 600, 1: 300, 2: 30, 3: 10})


@pytest.mark.parametrize(
    ("argv", "seq_len", "fit"),
    [((), None, Fit.UNKNOWN), ((), 512, Fit.YES), (("--block_size", "512"), None, Fit.YES)],
)
def test_a_job_fits_only_if_the_length_of_its_sequences_is_known(
    argv: tuple[str, ...], seq_len: int | None, fit: Fit
) -> None:
    told = check_memory(prepared(*argv, stage=0), ROOMY, seq_len)
    assert told.fit is fit
    assert ("sequences of more than 128 tokens" in str(told.verdict.reasons)) == (fit is Fit.UNKNOWN)


def test_a_program_that_told_the_length_of_its_sequences_is_believed() -> None:
    facts = prepared(stage=0)
    told = check_memory(replace(facts, script=replace(facts.script, seq_len=512)), ROOMY)
    assert (told.query.training.seq_len.value, told.fit) == (512, Fit.YES)


def test_a_second_model_leaves_open_whether_a_job_fits() -> None:
    facts = prepared("--block_size", "512", source="trainer = DPOTrainer(model)", stage=0)
    assert "second model" in str(check_memory(facts, ROOMY).verdict.reasons)


def test_a_job_that_cannot_fit_is_refused_with_what_to_type_in_train() -> None:
    with pytest.raises(Refused) as caught:
        check_memory(prepared(stage=0), NARROW)
    (finding,) = caught.value.findings
    assert finding.code == "does-not-fit"
    assert finding.hint is not None
    assert "`-- --gradient_checkpointing`, or with `--stage 2`" in finding.hint
    assert finding.hint.endswith("`--force` starts it anyway")


def test_a_job_that_cannot_be_estimated_starts_unless_a_rehearsal_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    split = prepared(stage=1, overrides=(("hybrid_engine.enabled", True),))
    show_plan(split, LaunchOptions(dry_run=True), PlanView())
    said = capsys.readouterr()
    assert "cannot tell how much memory this job takes: `hybrid_engine`" in said.err
    assert "memory check before the start" not in said.out
    with pytest.raises(Unavailable, match="hybrid_engine"):
        show_plan(split, LaunchOptions(dry_run=True, rehearse=True), PlanView())


@pytest.mark.parametrize(
    ("source", "setting"),
    [
        ("model = PipelineModule(layers, num_stages=2)", "PipelineModule"),
        ("engine, *_ = deepspeed.initialize(model=model, mpu=groups)", "mpu"),
        ("from deepspeed.moe.layer import MoE", "deepspeed.moe.layer"),
        ("model = deepspeed.tp_model_init(model, 2, torch.bfloat16)", "tp_model_init"),
        ("Accelerator(parallelism_config=ParallelismConfig(sp_size=2))", "ParallelismConfig"),
    ],
)
def test_of_a_script_that_splits_its_model_nobody_can_tell(source: str, setting: str) -> None:
    with pytest.raises(Unavailable, match=f"cannot tell how much memory this job takes: `{setting}`"):
        check_memory(prepared(source=source), Estimator())


def test_a_script_without_an_mpu_is_estimated() -> None:
    check_memory(prepared(source="deepspeed.initialize(model=model, mpu=None)"), ROOMY)


def test_a_model_that_is_not_known_is_not_asked_about() -> None:
    assert query_for(of_model(prepared(), None)) is None


def test_a_length_that_nobody_said_counts_as_a_short_one() -> None:
    for argv, length in (((), SHORT_SEQ_LEN), (("--max_seq_length", "512"), 512)):
        asked = query_for(prepared(*argv))
        assert asked is not None
        assert asked.training.seq_len.value == length


@pytest.mark.parametrize(
    ("interface", "source", "partitioned"),
    [
        (ConfigInterface.TRAINER, "", True),
        (ConfigInterface.DEEPSPEED, "", False),
        (ConfigInterface.DEEPSPEED, "with deepspeed.zero.Init():", True),
    ],
)
def test_a_raw_script_partitions_at_birth_only_if_it_says_so(
    interface: ConfigInterface, source: str, partitioned: bool
) -> None:
    asked = query_for(prepared(source=source, interface=interface))
    assert asked is not None
    assert asked.training.partitioned_at_birth is partitioned


@pytest.mark.parametrize("trusts", [True, False])
def test_the_code_of_a_model_runs_only_if_the_script_would_run_it(trusts: bool, tmp_path: Path) -> None:
    one = prepared("--model_name_or_path", str(tmp_path), source="load_dataset(name, trust_remote_code=True)")
    own = replace(model(), value={**model().value, "auto_map": {"AutoConfig": "own.Config"}})
    asked = query_for(replace(one, model=own, script=replace(one.script, trusts_code=trusts)))
    assert asked is not None
    assert asked.training.remote_code == (str(tmp_path) if trusts else None)


def test_auto_takes_the_first_strategy_that_fits() -> None:
    job, why = choose_stage(prepared(), NARROW)
    assert why.startswith("`--stage 2` is the fastest that fits sequences of 2048 tokens (`--seq-len N`")
    assert (job.stage, job.offload) == (2, None)


def test_auto_offloads_only_where_nothing_else_fits() -> None:
    job, _ = choose_stage(prepared(), gpus_that_hold(dict.fromkeys(range(4), 600.0)))
    assert (job.stage, job.offload) == (2, Offload("cpu", "none"))


def test_a_length_that_changes_nothing_is_said_to_have_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    here = on_machine(of_model(prepared(), None), CPU_MACHINE)
    show_plan(here, LaunchOptions(dry_run=True, seq_len=64), PlanView())
    assert "`--seq-len 64` has no effect: memory is checked on GPUs" in capsys.readouterr().err


def test_what_trains_without_deepspeed_is_not_estimated() -> None:
    plain = replace(prepared(), script=script("", ConfigInterface.NONE))
    with pytest.raises(Unavailable, match=r"train\.py does not use DeepSpeed"):
        choose_stage(plain, ROOMY)


def test_auto_needs_a_model() -> None:
    with pytest.raises(Unavailable, match="needs to know the model"):
        choose_stage(of_model(prepared(), None), ROOMY)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ('parser.add_argument("--base_model")', "name the model: `-- --base_model DIR`"),
        ("model = LlamaForCausalLM(LlamaConfig())", "write `--stage 2`; `zlaunch estimate "),
    ],
)
def test_auto_names_an_argument_for_the_model_only_if_the_script_may_have_it(source: str, hint: str) -> None:
    facts = replace(of_model(prepared(), None), script=script(source))
    with pytest.raises(Unavailable) as raised:
        choose_stage(facts, ROOMY)
    assert str(raised.value.hint).startswith(hint)


def test_auto_chooses_the_offload_too() -> None:
    with pytest.raises(WrongUsage):
        choose_stage(prepared(offload=Offload("cpu", "none")), ROOMY)


def test_auto_refuses_nothing_where_nobody_can_tell() -> None:
    here = on_machine(prepared(), CPU_MACHINE)
    with pytest.raises(Unavailable, match="cannot tell what fits: no GPU named"):
        choose_stage(here, ROOMY)  # answers about a GPU, as the closed form's are


def of_program(facts: JobFacts, *uncounted: Uncounted) -> Estimate:
    """Make up what a program takes: less with each stage."""
    query = query_for(facts)
    assert query is not None
    query = replace(query, training=replace(query.training, assumes_length=False, uncounted=uncounted))
    return answer(query, forecast({0: 600.0, 1: 300.0, 2: 30.0}.get(facts.job.stage or 0, 10.0)))


LINE = Uncounted("train.py:36", "compares a value", Effect.EITHER, is_undecided=True)


def test_auto_takes_the_first_stage_with_which_the_program_fits() -> None:
    found = first_that_fits(prepared(), of_program)
    assert found is not None
    job, why, _ = found
    assert why.startswith("`--stage 2` is the first that fits: ")
    assert (job.stage, job.is_chosen) == (2, True)


def test_auto_names_the_lines_of_a_program_that_leave_open_whether_it_fits() -> None:
    found = first_that_fits(prepared(), lambda facts: of_program(facts, LINE))
    assert found is not None
    assert "the first of which what is counted fits: " in found[1]
    assert "train.py:36 compares a value" in found[1]


def test_auto_takes_nothing_of_which_a_part_is_not_counted() -> None:
    second = Uncounted("vLLM", "takes memory, too", Effect.MORE)
    with pytest.raises(Unavailable, match=r"cannot tell what fits: .*vLLM takes memory, too"):
        first_that_fits(prepared(), lambda facts: of_program(facts, second))


def test_auto_is_refused_where_nothing_fits() -> None:
    def reject(queries: Sequence[EstimateQuery]) -> list[Estimate | Rejected]:
        return [Rejected(Refused(())) for one in queries]

    with pytest.raises(Refused):
        choose_stage(prepared(), MadeUp(reject))


@pytest.mark.parametrize(
    ("source", "argv"),
    [("model = get_peft_model(model, config)", ()), ("", ("--use_lora", "True")), ("", ("--load_in_4bit",))],
)
def test_a_job_that_may_train_adapters_only_is_not_refused_for_what_all_of_it_would_need(
    source: str, argv: tuple[str, ...]
) -> None:
    adapted = prepared(*argv, source=source, stage=0)
    for judge_it in (lambda: check_memory(adapted, NARROW), lambda: choose_stage(adapted, NARROW)):
        with pytest.raises(Unavailable, match="cannot estimate this job"):
            judge_it()
