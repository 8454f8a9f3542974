import json
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from tests.facts import facts_of, on_machine
from tests.making import CPU_MACHINE, LAYOUT, PYTHON, SHAPE, TWO_GPUS, interpreter, local, over_ssh, script
from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL, OpenReason
from zlaunch.config.resolve.compose import to_json
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, Refused
from zlaunch.hosts.cluster.topology import Host
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.interpreter import Interpreter, Package
from zlaunch.hosts.machine.op_cache import OpCache
from zlaunch.job.args import ScriptArgs
from zlaunch.job.evaluating_source import Evaluation
from zlaunch.job.model import ModelConfig
from zlaunch.job.recipes import FOLDER
from zlaunch.job.script import FSDP, ConfigInterface
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec, Launcher, Offload
from zlaunch.job.trainer_args import ONE_RATE
from zlaunch.launch.facts import JobFacts
from zlaunch.launch.make_plan import make_plan

ZERO = "zero_optimization"
HOSTS = over_ssh(Host("w0", (0, 1)), Host("w1", (0,)))
NVME: dict[str, Any] = {"stage": 3, "offload": Offload(optimizer="nvme"), "nvme_dir": Path("/nvme")}
BUFFER = (ZERO, "offload_param", "buffer_size")
DEFAULTS = facts_of(
    job=JobSpec(script=Path("train.py")),
    script=script(),
    ds_config=None,
    model=SHAPE,
    machine=TWO_GPUS,
    topology=local(0, 1),
    layout=LAYOUT,
    environ={"PATH": "/usr/bin"},
    python=PYTHON,
)
ON_CPU = on_machine(DEFAULTS, CPU_MACHINE)


def _asked(inputs: JobFacts = DEFAULTS, *argv: str, **asked: Any) -> JobFacts:
    return replace(inputs, job=JobSpec(script=Path("train.py"), args=ScriptArgs.of(argv), **asked))


def _with_file(text: str, *argv: str, **asked: Any) -> JobFacts:
    return replace(_asked(DEFAULTS, *argv, **asked), ds_config=parse(text, "ds.json"))


def _findings(inputs: JobFacts) -> tuple[Finding, ...]:
    with pytest.raises(Refused) as caught:
        make_plan(inputs)
    return caught.value.findings


def _codes(inputs: JobFacts) -> list[str]:
    return [finding.code for finding in _findings(inputs)]


def _with_fsdp(facts: JobFacts, source: str, *argv: str) -> JobFacts:
    trainer = replace(script(source), interface=ConfigInterface.NONE, without_deepspeed=FSDP)
    newest = replace(PYTHON, packages={**PYTHON.packages, "accelerate": Package("/venv", "1.15.0")})
    facts = replace(facts, here=replace(facts.here, python=newest))
    return replace(_asked(facts, "--fsdp", "full_shard", *argv), script=trainer)


def test_fsdp_on_a_machine_without_a_gpu_is_refused_where_the_trainer_certainly_does() -> None:
    assert _codes(_with_fsdp(ON_CPU, "Trainer(model)")) == ["fsdp-without-gpu"]


def test_fsdp_without_a_gpu_is_not_refused_where_a_variable_asks_for_the_cpu() -> None:
    facts = _with_fsdp(ON_CPU, "Trainer(model)")
    asked = replace(facts, job=replace(facts.job, env=("ACCELERATE_USE_CPU=true",)))
    assert "fsdp-without-gpu" in [finding.code for finding in make_plan(asked).warnings]


@pytest.mark.parametrize(
    ("facts", "source", "argv", "codes"),
    [
        (DEFAULTS, "Trainer(model)", (), []),
        (ON_CPU, "Trainer(model)", ("--use_cpu",), ["fsdp-without-gpu"]),
        (ON_CPU, "Trainer(model)", ("--fsdp_config", "xla.json"), []),
        (ON_CPU, "train(model)", (), ["fsdp-without-gpu"]),
    ],
)
def test_fsdp_elsewhere_starts(facts: JobFacts, source: str, argv: tuple[str, ...], codes: list[str]) -> None:
    plan = make_plan(_with_fsdp(facts, source, *argv))
    assert [finding.code for finding in plan.warnings if finding.where == "--fsdp"] == codes


def test_a_plan_is_a_function_of_its_inputs() -> None:
    assert make_plan(DEFAULTS) == make_plan(DEFAULTS)


def test_torchrun_starts_a_job_on_one_machine() -> None:
    assert make_plan(DEFAULTS).launcher == "torchrun"


def test_the_launcher_that_was_asked_for_starts_the_job() -> None:
    assert "deepspeed.launcher.runner" in make_plan(_asked(launcher="deepspeed")).argv


def test_torchrun_starts_a_job_on_other_hosts() -> None:
    assert make_plan(replace(DEFAULTS, topology=HOSTS)).launcher == "torchrun"


def test_deepspeed_reads_the_hosts_from_the_run_directory() -> None:
    asked = replace(_asked(launcher="deepspeed"), topology=HOSTS)
    assert f"--hostfile={LAYOUT.hostfile}" in make_plan(asked).argv


def test_the_script_gets_its_own_arguments_first() -> None:
    plan = make_plan(_asked(DEFAULTS, "--lr", "1", precision="fp32"))
    assert plan.script_words == ("train.py", "--lr", "1", "--deepspeed", str(LAYOUT.ds_config))


def test_the_launcher_runs_the_script_with_all_its_arguments() -> None:
    plan = make_plan(DEFAULTS)
    assert plan.argv[-len(plan.script_words) :] == plan.script_words


def test_zlaunch_watches_each_rank() -> None:
    assert make_plan(DEFAULTS).watched_argv[-2:] == ("zlaunch.worker.rank", str(LAYOUT.root))


@pytest.mark.parametrize(
    ("version", "switches"), [("3.10.14", ["-m"]), ("3.11.0", ["-P", "-m"]), ("3.13.1", ["-P", "-m"])]
)
def test_the_python_of_the_ranks_starts_the_launcher_without_the_working_directory_in_its_path(
    version: str, switches: list[str]
) -> None:
    plan = make_plan(replace(DEFAULTS, here=replace(DEFAULTS.here, python=interpreter("/venv", version))))
    wanted = ("/venv/bin/python", *switches, "torch.distributed.run")
    assert plan.argv[: len(wanted)] == plan.watched_argv[: len(wanted)] == wanted


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_the_rank_program_runs_in_the_python_of_zlaunch(launcher: Launcher) -> None:
    argv = make_plan(_asked(launcher=launcher)).watched_argv
    assert argv[-4:-3] == (sys.executable,)


OWN = interpreter("/own")


def w1(python: Interpreter, path: str) -> dict[str, MachineFacts]:
    return {"w1": replace(DEFAULTS.here, python=python, path=path)}


def _path_on_w1(
    monkeypatch: pytest.MonkeyPatch, others: dict[str, MachineFacts], here: str, *env: str
) -> str | None:
    """Return PATH of the ranks on a host, where zlaunch was started with the PATH `here`."""
    monkeypatch.setenv("PATH", here)
    hosts = over_ssh(Host("w0", (0,)), Host("w1", (0,)))
    asked = replace(_asked(env=env), topology=hosts, environ={"PATH": here}, others=others)
    plan = make_plan(asked)
    common = plan.environment.get("PATH")
    return plan.own_environment(hosts.hosts[1]).get("PATH", None if common is None else common.value)


@pytest.mark.parametrize("here", ["/usr/bin", "/venv/bin:/usr/bin"], ids=["bare", "activated"])
@pytest.mark.parametrize("python", [OWN, PYTHON], ids=["its own Python", "the same Python"])
def test_a_host_keeps_its_path_behind_the_programs_of_its_python(
    python: Interpreter, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _path_on_w1(monkeypatch, w1(python, "/opt/cuda/bin:/bin"), here)
    assert path == f"{python.scripts}:/opt/cuda/bin:/bin"


def test_a_host_whose_path_has_the_programs_of_its_python_gets_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = w1(OWN, "/bin:/own/bin")
    assert _path_on_w1(monkeypatch, there, "/venv/bin:/usr/bin") is None


def test_a_path_that_was_asked_for_is_that_of_every_host(monkeypatch: pytest.MonkeyPatch) -> None:
    there = w1(OWN, "/opt/cuda/bin:/bin")
    assert _path_on_w1(monkeypatch, there, "/usr/bin", "PATH=/chosen") == "/chosen"


def test_a_host_that_was_not_asked_gets_the_path_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _path_on_w1(monkeypatch, {}, "/usr/bin") == "/venv/bin:/usr/bin"


def test_native_ops_are_kept_in_the_directory_of_their_environment() -> None:
    cache = OpCache(Path("/cache/py312_cpu-1"), Path("/cache/py312_cpu"), "")
    plan = make_plan(replace(DEFAULTS, here=replace(DEFAULTS.here, op_cache=cache)))
    assert plan.environment["TORCH_EXTENSIONS_DIR"].value == "/cache/py312_cpu-1"


def test_a_script_without_deepspeed_keeps_its_extensions_where_torch_keeps_them() -> None:
    cache = OpCache(Path("/cache/py312_cpu-1"), Path("/cache/py312_cpu"), "")
    plain = script(interface=ConfigInterface.NONE)
    plan = make_plan(replace(DEFAULTS, here=replace(DEFAULTS.here, op_cache=cache), script=plain))
    assert "TORCH_EXTENSIONS_DIR" not in plan.environment


def test_an_accelerate_script_gets_its_ds_config_from_the_environment() -> None:
    plan = make_plan(replace(DEFAULTS, script=script(interface=ConfigInterface.ACCELERATE)))
    assert plan.environment["ACCELERATE_DEEPSPEED_CONFIG_FILE"].value == str(LAYOUT.ds_config)


def test_a_trainer_script_gets_no_ds_config_from_the_environment() -> None:
    assert "ACCELERATE_DEEPSPEED_CONFIG_FILE" not in make_plan(DEFAULTS).environment


def _named_by(flag: str, source: str, interface: ConfigInterface) -> JobFacts:
    job = JobSpec(Path("train.py"), ds_config=Path("ds.json"), config_flags=(flag,))
    return replace(DEFAULTS, job=job, script=script(source, interface))


def test_a_script_with_a_flag_for_the_ds_config_gets_it_even_if_accelerate_reads_it() -> None:
    named = _named_by("--deepspeed", "add('--deepspeed')", ConfigInterface.ACCELERATE)
    assert make_plan(named).script_words[1:] == ("--deepspeed", str(LAYOUT.ds_config))


def test_a_script_without_deepspeed_keeps_what_the_user_typed() -> None:
    named = _named_by("--deepspeed", "add('--deepspeed')", ConfigInterface.NONE)
    assert make_plan(named).script_words[1:] == ("--deepspeed", "ds.json")


def test_a_script_without_a_flag_for_the_ds_config_gets_none() -> None:
    assert make_plan(_named_by("--deepspeed", "", ConfigInterface.ACCELERATE)).script_words[1:] == ()


@each("interface", [one for one in ConfigInterface if one is not ConfigInterface.TRAINER])
def test_a_flag_of_the_script_is_no_argument_of_the_trainer(interface: ConfigInterface) -> None:
    argv = ("--learning_rate", "auto", "--max_steps", "1e5", "--bf16", "--fp16")
    plan = make_plan(replace(_asked(DEFAULTS, *argv), script=script(interface=interface)))
    assert plan.script_words[1:][: len(argv)] == argv


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_a_plan_has_the_precision_that_was_asked_for(precision: str) -> None:
    assert make_plan(_asked(precision=precision)).precision == precision


def test_a_plan_has_the_precision_of_the_users_file() -> None:
    assert make_plan(_with_file('{"bfloat16": {"enabled": true}}')).precision == "bf16"


def test_a_plan_has_the_precision_that_the_arguments_turn_on() -> None:
    assert make_plan(_with_file("{}", "--bf16")).precision == "bf16"


def test_a_plan_has_no_auto_left() -> None:
    assert make_plan(_asked(stage=3)).values.autos() == []


def test_a_batch_size_that_the_users_file_implies_is_passed_on() -> None:
    plan = make_plan(_with_file('{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}'))
    assert plan.script_words[1:5] == (
        "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "8",
    )  # fmt: skip


def test_an_auto_that_the_script_fills_in_is_left_with_its_reason() -> None:
    assert (
        "filled in by the Trainer"
        in make_plan(replace(DEFAULTS, model=None)).left[f"{ZERO}.reduce_bucket_size"]
    )


def test_each_run_swaps_into_a_directory_of_its_own() -> None:
    (directory,) = make_plan(_asked(**NVME)).swap_dirs
    assert directory.parent == Path("/nvme")
    assert directory.name.startswith(f"zlaunch-{LAYOUT.root.name}-")


def test_the_directory_of_a_run_is_written_into_its_config() -> None:
    plan = make_plan(_asked(**NVME))
    assert plan.values[(ZERO, "offload_param", "nvme_path")] == str(plan.swap_dirs[0])


def test_a_job_that_swaps_nothing_has_no_swap_directory() -> None:
    assert make_plan(_asked(offload=Offload(optimizer="cpu"))).swap_dirs == ()


def _buffer(largest: int | None, **asked: Any) -> Any:
    model = ModelConfig({"hidden_size": 1, "vocab_size": largest}, "", "model/config.json")
    return make_plan(replace(_asked(**NVME, **asked), model=model)).values[BUFFER]


def test_a_staging_buffer_holds_the_largest_share_of_a_matrix() -> None:
    assert _buffer(500_000_001) == 250_000_001


@pytest.mark.parametrize("largest", [200_000_000, None])
def test_a_staging_buffer_that_is_large_enough_stays(largest: int | None) -> None:
    assert _buffer(largest) is None


def test_a_staging_buffer_that_the_user_sized_stays() -> None:
    assert _buffer(500_000_000, overrides=((".".join(BUFFER), 300_000_000),)) == 300_000_000


def _total(inputs: JobFacts) -> Any:
    return make_plan(inputs).values[("train_batch_size",)]


def test_the_trainer_on_a_cpu_lets_deepspeed_count_the_ranks_at_stage_3() -> None:
    assert _total(_asked(ON_CPU, stage=3)) is None


def test_a_total_that_deepspeed_works_out_is_said_to_be_left() -> None:
    assert "DeepSpeed computes" in make_plan(_asked(ON_CPU, stage=3)).left["train_batch_size"]


@pytest.mark.parametrize(
    "inputs",
    [
        _asked(DEFAULTS, stage=3),
        _asked(ON_CPU, stage=2),
        _asked(replace(ON_CPU, script=script("deepspeed.init_distributed()")), stage=3),
        _asked(replace(ON_CPU, script=script(interface=ConfigInterface.DEEPSPEED)), stage=2),
    ],
    ids=["gpus", "stage 2", "joined", "deepspeed"],
)
def test_everywhere_else_the_total_is_written_out(inputs: JobFacts) -> None:
    assert _total(inputs) == 16


_GIVES_NO_TOTAL = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 16}
_OWN_LOOP = script(interface=ConfigInterface.DEEPSPEED)


@pytest.mark.parametrize(
    ("stage", "source"), [(3, ""), (2, "with deepspeed.zero.Init(config_dict_or_path=file):")]
)
def test_zero_init_gets_no_total_to_compare_with_the_batch_of_one_rank(stage: int, source: str) -> None:
    text = json.dumps({**_GIVES_NO_TOTAL, ZERO: {"stage": stage}})
    own = script(source, ConfigInterface.DEEPSPEED)
    assert _total(replace(_with_file(text), script=own)) is None


def test_a_total_of_the_users_file_stays_as_the_bare_launcher_leaves_it() -> None:
    text = json.dumps({**_GIVES_NO_TOTAL, "train_batch_size": 64, ZERO: {"stage": 3}})
    assert _total(replace(_with_file(text), script=_OWN_LOOP)) == 64


@pytest.mark.parametrize("sizes", [{}, {"train_batch_size": 64}, {"gradient_clipping": "auto"}])
def test_beside_a_mistake_in_its_file_an_own_loop_is_told_of_no_auto(sizes: dict[str, object]) -> None:
    text = json.dumps({**_GIVES_NO_TOTAL, **sizes, "checkpoint": {"tag_validation_mode": "eager"}})
    assert _codes(replace(_with_file(text), script=_OWN_LOOP)) == ["unknown-key"]


def test_two_learning_rates_that_the_trainer_refuses_are_refused_once_and_with_one_remedy() -> None:
    text = """{"optimizer": {"type": "AdamW", "params": {"lr": 0.0001}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.0006}}, "zero_optimization": {}}"""
    (finding,) = _findings(_with_file(text))
    assert (finding.code, finding.hint) == ("no-learning-rate-suits-both", ONE_RATE)


def _without_bitsandbytes(source: str = "", text: str = "{}") -> JobFacts:
    inputs = replace(_with_file(text, "--optim", "adamw_bnb_8bit"), script=script(source))
    python = replace(PYTHON, packages={**PYTHON.packages, "bitsandbytes": None})
    return replace(inputs, here=replace(inputs.here, python=python))


def test_an_optimizer_whose_package_is_missing_is_refused_with_what_installs_it() -> None:
    (finding,) = _findings(_without_bitsandbytes())
    assert finding.code == "optimizer-needs-a-package"
    assert "-m pip install bitsandbytes`" in (finding.hint or "")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("class Mine(Trainer):\n    def create_optimizer(self): ...", "{}"),
        ("Trainer(optimizers=(mine, None))", "{}"),
        ("", '{"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}'),
    ],
    ids=["own method", "own objects", "section"],
)
def test_the_package_of_an_optimizer_that_is_not_created_is_not_needed(source: str, text: str) -> None:
    assert make_plan(_without_bitsandbytes(source, text))


_OPEN_SCHEDULE = '{"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}}}'


def test_an_auto_that_only_a_dummy_of_the_script_fills_in_is_refused_without_one() -> None:
    inputs = _with_file(_OPEN_SCHEDULE)
    assert _codes(replace(inputs, script=script("", ConfigInterface.ACCELERATE))) == ["no-dummy"]
    assert make_plan(replace(inputs, script=script("DummyScheduler(optimizer)", ConfigInterface.ACCELERATE)))


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("create_optimizer", '{"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}'),
        ("create_scheduler", _OPEN_SCHEDULE),
    ],
)
def test_a_method_of_the_trainer_that_the_ds_config_replaces_is_named(method: str, text: str) -> None:
    source = script(f"class Mine(Trainer):\n    def {method}(self): ...\n")
    plan = make_plan(replace(_with_file(text), script=source))
    assert [finding.code for finding in plan.warnings] == ["method-without-effect"]
    assert not make_plan(replace(_with_file("{}"), script=source)).warnings


def test_one_rank_on_a_cpu_counts_itself() -> None:
    assert _total(_asked(replace(ON_CPU, topology=local(0)), stage=3)) == 8


@pytest.mark.parametrize(
    ("inputs", "ops"),
    [
        (DEFAULTS, []),
        (ON_CPU, ["deepspeed_shm_comm"]),
        (_asked(**NVME), ["cpu_adam", "async_io"]),
        (replace(ON_CPU, script=script(interface=ConfigInterface.NONE)), []),
    ],
    ids=["gpus", "cpu", "nvme", "no DeepSpeed"],
)
def test_a_plan_names_the_ops_it_needs(inputs: JobFacts, ops: list[str]) -> None:
    assert [op.name for op in make_plan(inputs).ops] == ops


def test_offload_at_stage_0_is_refused_only_where_there_is_a_gpu() -> None:
    offload = Offload(optimizer="cpu")
    assert _codes(_asked(DEFAULTS, stage=0, offload=offload)) == ["offload-needs-partitioning"]
    assert (
        make_plan(_asked(ON_CPU, stage=0, offload=offload)).values.config()["zero_optimization"]["stage"] == 0
    )


def test_every_reason_is_given_at_once() -> None:
    argv = ["--max_steps=many", "--max_grad_norm=1"]
    overrides = (("gradient_clipping", 7),)
    inputs = _asked(DEFAULTS, *argv, stage=0, offload=Offload(optimizer="cpu"), overrides=overrides)
    assert _codes(inputs) == ["bad-argument", "differs-from-argument", "offload-needs-partitioning"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"stage": 2, "offload": Offload(optimizer="nvme"), "nvme_dir": Path("/n")}, "nvme-needs-stage-3"),
        ({"stage": 3, "offload": Offload(optimizer="nvme")}, "nvme-needs-a-path"),
        ({"overrides": (("zero_optimization.stag", 3),)}, "unknown-key"),
        ({"overrides": (("train_batch_size", 7),)}, "batch-equation"),
        ({"overrides": (("steps_per_print", "many"),)}, "bad-type"),
        ({"overrides": (("zero_optimization.offload_param.nvme_path", "auto"),)}, "auto-nobody-fills"),
    ],
)
def test_a_job_that_cannot_work_is_refused_for_one_reason(asked: dict[str, Any], code: str) -> None:
    assert _codes(_asked(**asked)) == [code]


@pytest.mark.parametrize(
    "inputs",
    [
        _asked(overrides=(("zero_optimization.sub_group_size", "auto"),)),
        _asked(overrides=(("bf16.enabled", "yes"),)),
        _asked(DEFAULTS, "--bf16", precision="fp16"),
    ],
    ids=["auto", "type", "precision"],
)
def test_one_mistake_is_told_once(inputs: JobFacts) -> None:
    assert len(_findings(inputs)) == 1


def test_an_auto_in_an_object_that_nobody_fills_in_is_refused() -> None:
    overrides = (("zero_optimization.offload_param", {"device": "cpu", "nvme_path": "auto"}),)
    assert "auto-nobody-fills" in _codes(_asked(stage=3, overrides=overrides))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{\n"gradient_cliping": 1, "zero_optimization": {}}', "ds.json:2:1"),
        ('{"bf16": {},\n"bf16": {}}', "ds.json:2:1"),
        ('{"train_batch_size": 7,\n"zero_optimization": {"stage": 0,\n"offload_param": {"device": "cpu"}}}',
         "ds.json:1:2"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_users_file_has_its_place(text: str, place: str) -> None:
    assert str(_findings(_with_file(text))[0].place) == place


def test_a_dispute_about_the_users_file_has_its_place() -> None:
    inputs = _with_file('{\n"gradient_clipping": 0.5}', "--max_grad_norm=1")
    assert str(_findings(inputs)[0].place) == "ds.json:2:1"


@pytest.mark.parametrize("text", ["{} // mine", '{"_comment": "mine"}'])
def test_a_comment_in_the_users_file_is_not_refused(text: str) -> None:
    assert make_plan(_with_file(text)).left == {}


@pytest.mark.parametrize(
    ("text", "argv", "asked"),
    [
        ('{"gradient_clipping": 1e999}', [], {}),
        ("{}", ["--max_grad_norm=inf"], {}),
        ("{}", [], {"overrides": (("gradient_clipping", float("nan")),)}),
    ],
    ids=["file", "argument", "override"],
)
def test_a_number_that_json_cannot_write_is_refused_or_written(
    text: str, argv: list[str], asked: dict[str, Any]
) -> None:
    with suppress(Refused):
        to_json(make_plan(_with_file(text, *argv, **asked)).values.config())


UNEVEN = '{"train_batch_size": 3, "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 1}'
SPLITS = [
    "net = PipelineModule(layers)",
    "deepspeed.initialize(mpu=mine)",
    "pc = ParallelismConfig(sp_size=2)",
]


@pytest.mark.parametrize("source", SPLITS)
def test_a_batch_is_not_refused_if_the_script_divides_the_ranks(source: str) -> None:
    raw = script(source, ConfigInterface.DEEPSPEED)
    assert make_plan(replace(_with_file(UNEVEN), script=raw)).values[("train_batch_size",)] == 3


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ('{"train_micro_batch_size_per_gpu": 4}', [None, 4, 1]),
        ('{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}', [None, 8, 1]),
        ('{"train_batch_size": 4}', [4, None, None]),
        ('{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}', [8, 2, None]),
        ('{"train_batch_size": 8, "gradient_accumulation_steps": 2}', [8, None, 2]),
    ],
)
def test_what_deepspeed_derives_from_the_ranks_of_the_script_is_left_to_it(
    text: str, written: list[int | None]
) -> None:
    raw = script("net = PipelineModule(layers)", ConfigInterface.DEEPSPEED)
    plan = make_plan(replace(_with_file(text), script=raw))
    assert [plan.values[path] for path in (TOTAL, MICRO, ACCUMULATION)] == written
    assert plan.left == dict.fromkeys(
        (path[0] for path in (TOTAL, MICRO, ACCUMULATION) if plan.values[path] is None), OpenReason.GROUPS
    )


def test_no_batch_is_refused_for_a_size_that_nobody_gave() -> None:
    raw = script("", ConfigInterface.DEEPSPEED)
    (finding,) = _findings(replace(_with_file('{"train_batch_size": 3}'), script=raw))
    assert finding.message == "train_batch_size 3 is not divisible by 1 accumulated x 2 ranks"


@pytest.mark.parametrize("source", ["# no mpu here\n", "deepspeed.initialize(model, mpu=None)\n"])
def test_a_word_that_divides_no_ranks_leaves_the_batch_known(source: str) -> None:
    raw = script(source, ConfigInterface.DEEPSPEED)
    plan = make_plan(replace(_with_file('{"train_micro_batch_size_per_gpu": 4}'), script=raw))
    assert plan.values[TOTAL] == 4 * plan.topology.world_size


def test_the_plan_names_an_argument_that_the_ds_config_makes_dead() -> None:
    text = '{"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}'
    plan = make_plan(_with_file(text, "--optim", "sgd"))
    assert [(one.code, one.place is not None) for one in plan.warnings] == [("argument-without-effect", True)]


def test_a_recipe_whose_optimizer_cannot_be_offloaded_is_to_be_copied() -> None:
    offloaded = _asked(stage=2, offload=Offload(optimizer="cpu"))
    (finding,) = _findings(replace(offloaded, script=read_script(FOLDER / "own_loop.py")))
    assert str(finding.hint).startswith(
        "`zlaunch recipes copy own_loop` copies the recipe; in the copy, create"
    )


def test_an_optimizer_that_cannot_be_offloaded_is_refused_and_one_that_is_replaced_is_named() -> None:
    on_host = {"stage": 2, "offload": Offload(optimizer="cpu")}
    assert _codes(_asked(DEFAULTS, "--optim", "adafactor", **on_host)) == ["replaced-optimizer-fails"]
    plan = make_plan(_asked(DEFAULTS, "--optim", "sgd", **on_host))
    assert [finding.code for finding in plan.warnings] == ["optimizer-replaced"]


@pytest.mark.parametrize(
    ("argv", "codes"),
    [
        (("--auto_find_batch_size", "True"), ["batch-size-search-at-stage-3"]),
        (("--save_only_model", "--load_best_model_at_end"), ["best-model-is-not-saved"]),
        (("--save_only_model", "--auto_find_batch_size", "False"), []),
    ],
)
def test_what_the_trainer_refuses_with_deepspeed_is_refused_before_the_start(
    argv: tuple[str, ...], codes: list[str]
) -> None:
    inputs = _asked(DEFAULTS, *argv, stage=3)
    if codes:
        assert _codes(inputs) == codes
    else:
        make_plan(inputs)


def test_a_value_that_deepspeed_converts_is_planned_as_it_converts_it() -> None:
    text = '{"zero_optimization": {"stage": 2, "overlap_comm": "false", "reduce_bucket_size": "5000"}}'
    values = make_plan(_with_file(text)).values
    assert (values[(ZERO, "overlap_comm")], values[(ZERO, "reduce_bucket_size")]) == (False, 5000)


def test_what_only_the_trainer_refuses_is_refused_before_the_start() -> None:
    text = '{"zero_optimization": {"stage": 2, "offload_optimizer": null}}'
    assert _codes(_with_file(text)) == ["null-offload"]


def test_a_batch_is_refused_if_it_does_not_match_the_ranks() -> None:
    raw = replace(_with_file(UNEVEN), script=script("", ConfigInterface.DEEPSPEED))
    assert [one.code for one in _findings(raw)] == ["batch-equation"]


_EVALUATES = script(evaluations=(Evaluation(7, "evaluate", "do_eval"),))


@pytest.mark.parametrize(
    ("argv", "asked", "is_refused"),
    [
        (["--do_eval"], {}, True),
        (["--eval_strategy", "steps"], {}, True),
        (["--do_eval"], {"stage": 3}, False),
        (["--do_eval", "--do_train"], {}, False),
        ([], {}, False),
        (["all.json"], {}, False),
    ],
)
def test_an_evaluation_before_any_training_is_refused_below_stage_3(
    argv: list[str], asked: dict[str, Any], *, is_refused: bool
) -> None:
    job = replace(_asked(DEFAULTS, *argv, **asked), script=_EVALUATES)
    if is_refused:
        assert _codes(job) == ["inference-needs-stage-3"]
    else:
        make_plan(job)
