"""`zlaunch.yaml`: what stands in it means the same as on the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.running import Result, zlaunch
from zlaunch.cli import COMMANDS
from zlaunch.cli.job_command import JobCommand
from zlaunch.cli.job_file import NOT_IN_A_FILE, job_at_hand, keys_of
from zlaunch.cli.lazy import LazyCommand
from zlaunch.errors import Finding, InputMissing, Refused
from zlaunch.job.spec import GpuChoice, Offload

LAZY = {one.name: one for one in COMMANDS if isinstance(one, LazyCommand) and one.cls is JobCommand}
LOADED = {name: one.load() for name, one in LAZY.items()}
SCRIPT = 'import os\nopen(os.environ["ZLAUNCH_DS_CONFIG"])\n'


def parsed(command: str, *words: object) -> tuple[dict[str, Any], list[str]]:
    """What a command is called with, and the words of the script."""
    context = LOADED[command].make_context(command, [str(word) for word in words])
    return {**context.params, "job": None}, context.args


def from_file(folder: Path, command: str, content: Mapping[str, object], *words: object) -> Any:
    file = folder / "zlaunch.yaml"
    file.write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return parsed(command, "--job", file, *words)


def refused(folder: Path, text: str) -> tuple[Finding, ...]:
    file = folder / "zlaunch.yaml"
    file.write_text(text)
    with pytest.raises(Refused) as error:
        parsed("train", "--job", file)
    return error.value.findings


WORDS = st.text("abcdefgh_./ '\"#:-$", min_size=1, max_size=8).filter(lambda text: not text.startswith("-"))
NUMBERS = st.floats(1e-8, 1e8, allow_nan=False)
OPTIONS = {
    "script": st.sampled_from(["train.py", "a b.py", "my.recipe"]),
    "stage": st.sampled_from([0, 1, 2, 3, "auto"]),
    "offload": st.sampled_from(["none", "cpu", "nvme", "optimizer:cpu,param:none"]),
    "nvme": WORDS,
    "precision": st.sampled_from(["bf16", "fp16", "fp32"]),
    "gpus": st.sampled_from([1, 4, "0,2", "2,"]),
    "launcher": st.sampled_from(["torchrun", "deepspeed"]),
    "ds_config": WORDS,
    "hostfile": WORDS,
    "hosts": WORDS,
    "include": st.sampled_from(["w0@w1:0,2", "w0"]),
    "resume": WORDS,
    "save": WORDS,
    "run_dir": WORDS,
    "show_ranks": st.sampled_from(["0,3", "all", "none", 0]),
    "on_stall": st.sampled_from(["report", "stop"]),
    "stall_after": st.floats(1.0, 1e4),
    "max_restarts": st.integers(0, 9),
    "on_oom": st.sampled_from(["stop", "retry"]),
    "on_nan": st.sampled_from(["report", "stop", "rollback"]),
    "debug": st.sampled_from([0, "1:5679", "1:59"]),
}
SWITCHES = ("allow_reshard", "force", "rehearse", "no_ask", "dry_run")
KEYS = st.sampled_from(["gradient_clipping", "zero_optimization.sub_group_size", "optimizer.params.lr"])
FLAGS = st.sampled_from(["learning_rate", "bf16", "run_name", "save"])


def on_the_command_line(options: Mapping[str, object], switches: Mapping[str, bool]) -> list[str]:
    words = [str(options[name]) for name in ("script",) if name in options]
    for name, value in options.items():
        if name != "script":
            words += [f"--{name.replace('_', '-')}", str(value)]
    return [*words, *(f"--{name.replace('_', '-')}" for name, on in switches.items() if on)]


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    options=st.fixed_dictionaries({}, optional=OPTIONS),
    switches=st.fixed_dictionaries({}, optional=dict.fromkeys(SWITCHES, st.booleans())),
    overrides=st.dictionaries(KEYS, NUMBERS, max_size=2),
    args=st.dictionaries(FLAGS, WORDS | st.integers(0, 9), max_size=3),
)
def test_a_job_in_the_file_is_the_job_of_its_command_line(
    tmp_path: Path,
    options: dict[str, object],
    switches: dict[str, bool],
    overrides: dict[str, float],
    args: dict[str, object],
) -> None:
    words = on_the_command_line(options, switches)
    for key, value in overrides.items():
        words += ["--set", f"{key}={value!r}"]
    script_args = [str(word) for name, value in args.items() for word in (f"--{name}", value)]
    typed, passed_on = parsed("train", "--job", "none", *words, "--", *script_args)
    written: dict[str, object] = {**options, **switches}
    written |= {"set": [f"{key}={value!r}" for key, value in overrides.items()]} if overrides else {}
    written |= {"args": args} if args else {}
    if written:
        assert from_file(tmp_path, "train", written) == (typed, passed_on)


def test_every_option_of_train_may_stand_in_the_file() -> None:
    names = {max(one.opts, key=len).removeprefix("--").replace("-", "_") for one in LOADED["train"].params}
    assert set(keys_of(LOADED["train"])) == names - {*NOT_IN_A_FILE}
    assert {*OPTIONS, *SWITCHES, "module", "python", "exclude", "set"} <= names


def test_the_command_line_wins(tmp_path: Path) -> None:
    content = {"stage": 3, "gpus": 2, "args": {"lr": 1, "epochs": 2}, "set": {"a": 1, "b": {"c": 1}}}
    params, args = from_file(tmp_path, "train", content, "--stage", 1, "--set", "a=2", "--", "--lr", 5)
    assert (params["stage"], params["gpus"], params["overrides"]) == ("1", GpuChoice(2), ["b.c=1", "a=2"])
    assert args == ["--epochs", "2", "--lr", "5"]


@pytest.mark.parametrize(
    ("option", "written", "typed", "together"),
    [
        ("env", ["A=1", "B=2"], "A=3", ["B=2", "A=3"]),
        ("env", {"A": 1, "B": True}, "A=3", ["B", "A=3"]),
        ("env", "B", "A=3", ["B", "A=3"]),
        ("slurm", ["qos=low", "exclusive"], "qos=high", [("exclusive", None), ("qos", "high")]),
        ("slurm", ["--mail_type=END", "q=low"], "mail-type=FAIL", [("qos", "low"), ("mail-type", "FAIL")]),
        ("volume", ["old:/data/", "out:/out"], "new:/data", [("out", "/out"), ("new", "/data")]),
    ],
)
def test_a_value_on_the_command_line_replaces_that_of_its_name_and_keeps_the_others(
    tmp_path: Path, option: str, written: object, typed: str, together: list[object]
) -> None:
    params, _ = from_file(tmp_path, "train", {option: written}, f"--{option}", typed)
    assert params[option] == together


def test_an_unknown_option_of_the_command_line_wins_over_the_argument_in_the_file(tmp_path: Path) -> None:
    _, args = from_file(tmp_path, "train", {"script": "a.py", "args": "--lr 1 --x y"}, "--lr", "5")
    assert sorted(args) == ["--lr", "--x", "5", "y"]


@pytest.mark.parametrize("words", [["b.py"], ["-m", "b"]])
def test_another_script_has_neither_the_script_nor_the_arguments_of_the_file(
    tmp_path: Path, words: list[str]
) -> None:
    params, args = from_file(tmp_path, "train", {"script": "a.py", "stage": 3, "args": {"lr": 1}}, *words)
    assert ("a.py" in params.values(), params["stage"], args) == (False, "3", [])


LOADS = """
import argparse
from transformers import AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path")
args = parser.parse_args()
AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
"""


@pytest.mark.parametrize(("script", "flag"), [("causal_lm", "--model"), ("a.py", "--model_name_or_path")])
def test_the_model_of_the_file_reaches_the_script_by_its_own_argument(
    tmp_path: Path, script: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text(LOADS)
    content = {"script": script, "model": "gpt2", "args": {"lr": 1}}
    assert from_file(tmp_path, "train", content)[1] == ["--lr", "1", flag, "gpt2"]
    assert from_file(tmp_path, "train", content, "--", flag, "bert")[1] == ["--lr", "1", flag, "bert"]
    assert from_file(tmp_path, "train", content, "b.py")[1] == []


def test_the_gpus_of_a_plan_count_where_nothing_is_started(tmp_path: Path) -> None:
    content = {"on": "8xH100"}
    assert from_file(tmp_path, "train", content)[0]["on"] is None
    assert from_file(tmp_path, "train", content, "--dry-run")[0]["on"] == "8xH100"
    assert from_file(tmp_path, "estimate", content)[0]["on"] == "8xH100"


def test_a_script_that_has_no_argument_for_a_model_gets_none(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(SCRIPT)
    content = {"script": str(tmp_path / "a.py"), "model": "gpt2"}
    assert from_file(tmp_path, "train", content)[1] == []


@pytest.mark.parametrize("own", [{"model": "gpt2"}, {"args": {"model_name_or_path": "gpt2"}}], ids=str)
def test_another_model_is_estimated_without_what_was_chosen_for_that_of_the_file(
    tmp_path: Path, own: dict[str, object]
) -> None:
    content = {**own, "ds_config": "a.json", "stage": 3, "offload": "cpu", "gpus": 2}
    names = ("model", "ds_config", "stage", "offload", "gpus")
    params, _ = from_file(tmp_path, "estimate", content, "bert")
    assert [params[name] for name in names] == ["bert", None, None, None, 2]
    params, _ = from_file(tmp_path, "estimate", content, "gpt2")
    assert [params[name] for name in names] == ["gpt2", Path("a.json"), "3", Offload("cpu"), 2]


def test_the_same_script_keeps_the_arguments_of_the_file(tmp_path: Path) -> None:
    _, args = from_file(tmp_path, "train", {"script": "a.py", "args": {"lr": 1}}, "./a.py")
    assert args == ["--lr", "1"]


def test_what_contradicts_the_command_line_is_left_out(tmp_path: Path) -> None:
    params, _ = from_file(tmp_path, "train", {"hostfile": "hosts", "include": "w0"}, "--gpus", "2")
    assert (params["hostfile"], params["include"]) == (None, None)


def test_a_key_on_the_command_line_wins_over_the_option_that_sets_it(tmp_path: Path) -> None:
    words = ("--set", "zero_optimization.stage=1")
    params, _ = from_file(tmp_path, "train", {"stage": 3, "offload": "cpu"}, *words)
    assert (params["stage"], params["offload"], params["overrides"]) == (None, Offload("cpu"), [words[1]])


def test_an_option_on_the_command_line_wins_over_the_key_that_it_sets(tmp_path: Path) -> None:
    content = {"set": {"zero_optimization": {"stage": 3, "overlap_comm": True}}}
    params, _ = from_file(tmp_path, "train", content, "--stage", 1)
    assert params["overrides"] == ["zero_optimization.overlap_comm=true"]


def test_a_ds_config_among_the_arguments_wins_over_that_of_the_file(tmp_path: Path) -> None:
    params, _ = from_file(tmp_path, "train", {"ds_config": "a.json"}, "--", "--deepspeed", "b.json")
    assert params["ds_config"] is None


ARGS = {
    "a mapping": "args:\n  lr: 3e-4\n  bf16: true\n  fp16: false\n  names: [a, b]\n  kwargs: {x: 1}\n",
    "a list": "args: [--lr, 3e-4, --bf16, --fp16, 'False', --names, a, b, --kwargs, '{\"x\": 1}']\n",
    "a text": "args: >-\n  --lr 3e-4 --bf16 --fp16 False --names a b --kwargs '{\"x\": 1}'\n",
}


@pytest.mark.parametrize("text", ARGS.values(), ids=ARGS)
def test_arguments_are_words_however_they_are_written(tmp_path: Path, text: str) -> None:
    file = tmp_path / "zlaunch.yaml"
    file.write_text(text)
    expected = '--lr 3e-4 --bf16 --fp16 False --names a b --kwargs {"x": 1}'
    assert " ".join(parsed("train", "--job", file)[1]) == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"gpus": [0, 2]}, {"gpus": GpuChoice(devices=(0, 2))}),
        ({"gpus": [2]}, {"gpus": GpuChoice(devices=(2,))}),
        ({"offload": {"optimizer": "cpu", "param": "none"}}, {"offload": Offload("cpu", "none")}),
        ({"run-dir": "out"}, {"run_dir": Path("out")}),
    ],
    ids=str,
)
def test_values_may_be_written_as_yaml_does(
    tmp_path: Path, content: dict[str, object], words: dict[str, object]
) -> None:
    params, _ = from_file(tmp_path, "train", content)
    assert {key: params[key] for key in words} == words


@pytest.mark.parametrize(("named", "is_a_file"), [("zero3", False), ("ds.json", True)])
def test_the_ds_config_at_hand_is_not_one_that_the_program_knows_by_name(
    named: str, is_a_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zlaunch.yaml").write_text(f"script: train.py\nargs: {{deepspeed: {named}}}\n")
    job = job_at_hand()
    assert job is not None
    assert job.ds_config == (Path(named) if is_a_file else None)
    assert job.args.words == (() if is_a_file else ("--deepspeed", named))


def test_an_estimate_takes_what_it_knows_and_leaves_the_options_of_train(tmp_path: Path) -> None:
    content = {"script": "a.py", "stage": "auto", "max_restarts": 3, "gpus": [0, 2], "seq_len": 512}
    params, args = from_file(tmp_path, "estimate", {**content, "args": {"model": "gpt2", "lr": 1}})
    assert (params["model"], params["gpus"], params["seq_len"], params["stage"]) == ("gpt2", 2, 512, None)
    assert args == ["--model", "gpt2", "--lr", "1"]


ONE_JOB = "a file has one job: write each into a file of its own, and start it with `--job FILE`"
WRONG = {
    "a misspelled key": ("stgae: 3", "unknown-option", "did you mean `stage`?"),
    "the name of another launcher": ("num_processes: 2", "unknown-option", "did you mean `gpus`?"),
    "a key of the ds_config": (
        "zero_optimization: {stage: 2}",
        "unknown-option",
        "keys of the ds_config go below `set:`",
    ),
    "a job with a name": ("small: {script: a.py}", "unknown-option", ONE_JOB),
    "a job whose name is like an option": ("job_a: {script: a.py}", "unknown-option", ONE_JOB),
    "a job with options alone": ("small: {stage: 2, gpus: 1}", "unknown-option", ONE_JOB),
    "jobs below a key": ("jobs: {small: {args: {lr: 1}}}", "unknown-option", ONE_JOB),
    "a list of jobs": ("jobs: [{script: a.py}]", "unknown-option", ONE_JOB),
    "arguments in a misspelled section": ("arg: {model: gpt2}", "unknown-option", "did you mean `args`?"),
    "a stage as another tool spells it": (
        "stage: 3-offload",
        "bad-option",
        "did you mean `stage: 3` and `offload: cpu`?",
    ),
    "a word that is none of them": ("on_oom: retri", "bad-option", "did you mean `retry`?"),
    "a word for a switch": ("force: maybe", "bad-option", None),
    "a number that is too small": ("max_restarts: -1", "bad-option", None),
    "text for a number": ("stall_after: soon", "bad-option", None),
    "nothing": ("nvme:", "bad-option", "write one, or leave the key out"),
    "an empty name": ('hostfile: ""', "bad-option", "write one, or leave the key out"),
    "an empty item": ('env: [""]', "bad-option", "write one, or leave the key out"),
    "a word that YAML takes for false": ("offload: off", "bad-option", "put it in quotes"),
    "what an option refuses": (
        "gpus: many",
        "bad-option",
        "write `--gpus 2` or `--gpus 0,2`; without it, all are used",
    ),
    "what one of several refuses": (
        "slurm: [=x]",
        "bad-option",
        "write `--slurm qos=high` or `--slurm exclusive`",
    ),
    "several values": ("stage: [1, 2]", "bad-option", None),
    "an override without a value": (
        "set: [a]",
        "bad-option",
        "write `--set zero_optimization.sub_group_size=1e8`",
    ),
    "arguments that are a number": ("args: 3", "bad-option", "write `NAME: VALUE` lines below `args:`"),
    "arguments with a quote that is not closed": (
        """args: "--name 'a b\"""",
        "bad-option",
        "close it, or write a list: `args: [--name, VALUE]`",
    ),
    "a script with a null character": ('script: "a\\0"', "bad-option", "write it without `\\0`"),
    "a variable with a null character": ('env: {A: "a\\0"}', "bad-option", "write it without `\\0`"),
    "an argument with a null character": ('args: {a: "a\\0"}', "bad-option", "write it without `\\0`"),
    "arguments with a null character": ('args: "--a a\\0"', "bad-option", "write it without `\\0`"),
    "what only the command line has": (
        "job: other.yaml",
        "bad-option",
        "leave it out; `--job` stands on the command line",
    ),
    "a key twice": ("gpus: 2\nforce: true\ngpus: 3", "duplicate-key", "keep one of the two"),
    "a key in two spellings": ("run_dir: a\nrun-dir: b", "duplicate-key", "keep one of them"),
    "a tab": ("set:\n\ta: 1", "not-yaml", None),
    "a list": ("- stage", "not-yaml", "write `key: value` lines"),
    "a tag": ("stage: !!python/object/apply:os.getpid []", "not-yaml", None),
}


@pytest.mark.parametrize(("text", "code", "hint"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_at_its_place(
    tmp_path: Path, text: str, code: str, hint: str | None
) -> None:
    (finding,) = refused(tmp_path, f"{text}\n")
    assert finding.place is not None
    assert (finding.code, finding.hint, finding.place.line) == (code, hint, len(text.splitlines()))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("finetuning_type: lora\nstage: sft\nmodel_name_or_path: m\n", "of-another-program"),
        ("script: a.py\nstage: 2\nbase_model: m\n", "unknown-option"),
    ],
)
def test_a_whole_file_of_another_program_is_named_and_a_key_of_it_is_unknown(
    tmp_path: Path, text: str, code: str
) -> None:
    (finding,) = refused(tmp_path, text)
    assert finding.code == code


def test_all_mistakes_are_refused_at_once(tmp_path: Path) -> None:
    assert len(refused(tmp_path, "stgae: 3\nforce: 1\nargs: {lr: }\n")) == 3


def test_a_file_that_is_a_link_to_nothing_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("zlaunch.yaml").symlink_to("gone.yaml")
    with pytest.raises(InputMissing, match=r"cannot read `zlaunch\.yaml`"):
        parsed("train")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "zlaunch.yaml").write_bytes(b"save: \xff\n")
    with pytest.raises(Refused):
        parsed("train", "--job", tmp_path / "zlaunch.yaml")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "zlaunch.yaml").write_text(
        "script: train.py\nstage: 3\ngpus: 2\nset: {gradient_clipping: 0.5}\n"
    )
    return tmp_path


def planned(project: Path, *words: object) -> Result:
    return zlaunch("train", "--dry-run", "--no-ask", *words, cwd=project)


def test_the_file_of_the_directory_is_used_and_named(project: Path) -> None:
    done = planned(project)
    assert (done.status, done.err.splitlines()[0]) == (0, "using zlaunch.yaml: script, stage, gpus, set")


def test_the_plan_names_the_line_of_a_value(project: Path) -> None:
    words = " ".join(planned(project).out.split())
    assert "stage = 3 `stage` in zlaunch.yaml:2" in words
    assert "gradient_clipping = 0.5 `set.gradient_clipping` in zlaunch.yaml:4" in words


def test_the_plan_names_the_option_that_won_over_the_file(project: Path) -> None:
    assert "stage = 1 `--stage`" in " ".join(planned(project, "--stage", 1).out.split())


def test_the_plan_names_where_each_variable_and_each_key_comes_from(project: Path) -> None:
    with (project / "zlaunch.yaml").open("a") as file:
        file.write("env:\n  - A=1\n  - B=2\n")
    typed = ("--env", "B=3", "--set", "train_micro_batch_size_per_gpu=2", "--full")
    words = " ".join(planned(project, *typed).out.split())
    of_variables = [source in words for source in ("A=1 `env.A` in zlaunch.yaml:6", "B=3 `--env`")]
    assert (of_variables, "train_micro_batch_size_per_gpu = 2 `--set`" in words) == ([True, True], True), (
        words
    )


def test_a_variable_of_the_file_that_is_not_set_is_named_with_its_line(project: Path) -> None:
    with (project / "zlaunch.yaml").open("a") as file:
        file.write("env:\n  ZL_DEPTH: true\n")
    done = planned(project)
    assert "zlaunch.yaml:6: `env: ZL_DEPTH`: ZL_DEPTH is not set here" in " ".join(done.err.split())


def test_the_file_is_ignored_on_request(project: Path) -> None:
    assert "zlaunch.yaml" not in planned(project, "--job", "none", "train.py").err


def test_help_does_not_read_the_file(project: Path) -> None:
    (project / "zlaunch.yaml").write_text("stage: [")
    assert zlaunch("train", "--help", cwd=project).status == 0


@pytest.mark.job
def test_a_run_is_recorded_and_repeated_as_the_same_job_without_the_file(project: Path) -> None:
    zlaunch("train", "--run-dir", "first", "--no-ask", cwd=project)
    (project / "zlaunch.yaml").write_text("stage: 0\nprecision: fp32\nmax_restarts: 3\n")
    zlaunch("runs", "rerun", "./first", "--run-dir", "second", cwd=project)
    first, second = ((project / name / "ds_config.json").read_text() for name in ("first", "second"))
    shown = zlaunch("runs", "show", "./first", cwd=project).out.split()
    assert first == second
    assert "zlaunch train --job none train.py --stage 3 --gpus 2 --set gradient_clipping=0.5" in " ".join(
        shown
    )
