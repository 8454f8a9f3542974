"""Bad input gets one clear error that says what to type; nothing is started, nothing is written."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.running import run, zlaunch

Case = tuple[list[str], int, str]

CASES: dict[str, Case] = {
    "a missing script": (["nosuch.py"], 66, "nosuch.py"),
    "a folder for a script": (["."], 2, "name a script in it: `broken.py`"),
    "a shell script": (["run.sh"], 2, "run `bash run.sh`"),
    "a pipe for a script": (["-"], 2, "every rank reads the script"),
    "a misspelled script": (["scirpt.py"], 66, "did you mean `script.py`?"),
    "a launcher": (
        ["torchrun", "--nproc-per-node", "2", "script.py", "--x", "1"],
        2,
        "`zlaunch train script.py --gpus 2 -- --x 1`",
    ),
    "a launcher whose flags zlaunch has too": (
        ["deepspeed", "--hostfile", "hosts", "--include", "w0", "script.py"],
        2,
        "`zlaunch train script.py --include w0 --hostfile hosts`",
    ),
    "a launcher after options of zlaunch": (
        ["--stage", "3", "accelerate", "launch", "-m", "pack"],
        2,
        "`zlaunch train -m pack --stage 0 --precision fp32 --stage 3`",
    ),
    "a launcher that cannot be translated": (
        ["torchrun", "--no_python", "x"],
        2,
        "see `zlaunch config translate -- torchrun --no_python x`",
    ),
    "a program that starts ranks": (
        ["llamafactory-cli", "train", "--stage", "sft"],
        2,
        "`zlaunch train -m llamafactory.launcher -- --stage sft`",
    ),
    "the module of such a program": (
        ["-m", "trl.cli", "--", "sft", "--model", "m"],
        2,
        "`zlaunch train -m trl.scripts.sft -- --model m`",
    ),
    "what runs programs, in front of one": (
        ["--stage", "3", "uv", "run", "llamafactory-cli", "train", "x.yaml"],
        2,
        "`uv run zlaunch train --stage 3 -m llamafactory.launcher -- x.yaml`",
    ),
    "a variable in front of a script": (
        ["A=1", "script.py", "--x"],
        2,
        "`A=1 zlaunch train script.py -- --x`",
    ),
    "a shell with a command": (
        ["bash", "-c", "torchrun script.py"],
        2,
        "see `zlaunch config translate -- bash -c",
    ),
    "a script that calls a launcher": (
        ["deepy.py"],
        2,
        "deepy.py starts ranks itself, with DeepSpeed's launcher",
    ),
    "a script that is not Python": (["broken.py"], 65, "broken.py:1"),
    "an unknown stage": (["--stage", "7"], 2, "`--stage 7`: expected 0, 1, 2, 3 or auto"),
    "an unknown option": (
        ["--learning_rate", "3"],
        2,
        "options of the script go after `--`: `",
    ),
    "an unknown offload": (["--offload", "quick"], 2, "optimizer:cpu,param:nvme"),
    "a misspelled part of an offload": (["--offload", "params:cpu"], 2, "did you mean `param:cpu`?"),
    "NVMe without a directory": (["--stage", "3", "--offload", "nvme"], 65, "--nvme DIR"),
    "NVMe below stage 3": (["--stage", "2", "--offload", "nvme", "--nvme", "."], 65, "use stage 3"),
    "an NVMe directory that cannot be made": (
        ["--stage", "3", "--offload", "nvme", "--nvme", "/proc/nvme"],
        69,
        "/proc/nvme",
    ),
    "an NVMe directory below a file": (
        ["--stage", "3", "--offload", "nvme", "--nvme", "script.py/x"],
        69,
        "script.py/x",
    ),
    "an NVMe directory that is no text": (
        ["--stage", "3", "--offload", "nvme", "--set", "zero_optimization.offload_param.nvme_path=3"],
        65,
        "nvme_path",
    ),
    "parameters offloaded below stage 3": (
        ["--stage", "2", "--offload", "optimizer:cpu,param:cpu"],
        65,
        "use stage 3",
    ),
    "a model without config.json": (["--", "--model", "empty"], 66, "config.json"),
    "a model that does not exist": (["--", "--model", "./nosuch/model"], 66, "./nosuch/model"),
    "a model whose config.json is broken": (["--", "--model", "broken"], 65, "broken/config.json:1"),
    "more ranks than the machine can have": (["--gpus", "999"], 69, "--gpus"),
    "no ranks at all": (["--gpus", "0"], 2, "--gpus 0,"),
    "a ds_config that is not there": (["--ds-config", "nosuch.json"], 66, "nosuch.json"),
    "a ds_config that is not JSON": (["--ds-config", "script.py"], 65, "script.py:1:8"),
    "a ds_config with mistakes": (["--ds-config", "wrong.json"], 65, "did you mean `zero_optimization`?"),
    "a ds_config with a key that DeepSpeed ignores": (
        ["--ds-config", "wrong.json"],
        65,
        "wrong.json:1:2: error: zero_optimisation [unknown-key]",
    ),
    "a ds_config against the arguments": (
        ["--ds-config", "batch.json", "--", "--per_device_train_batch_size", "8"],
        65,
        "batch.json:1",
    ),
    "two ds_configs": (["--ds-config", "batch.json", "--", "--deepspeed", "x.json"], 2, "x.json"),
    "a hostfile that is not there": (["--hostfile", "nosuch"], 66, "nosuch"),
    "a hostfile with mistakes": (["--hostfile", "hosts"], 65, "hosts:2:1"),
    "slots that this host cannot have": (["--hostfile", "toomany"], 65, "toomany:1:1"),
    "include together with exclude": (
        ["--hostfile", "localhosts", "--include", "localhost", "--exclude", "localhost:0"],
        2,
        "--include",
    ),
    "an override without a value": (["--set", "bf16.enabled"], 2, "KEY=VALUE"),
    "an override of an unknown key": (
        ["--set", "zero_optimization.stge=3"],
        65,
        "--set zero_optimization.stage=3",
    ),
    "both precisions": (["--", "--bf16", "--fp16"], 65, "1 problem found\nerror: [both-precisions]"),
    "two opinions about precision": (["--precision", "fp16", "--", "--bf16"], 65, "--precision fp16"),
    "a Trainer argument of the wrong type": (["--", "--max_steps", "many"], 65, "--max_steps many"),
    "a Trainer argument without its value": (
        ["--", "--learning_rate"],
        65,
        "`--learning_rate` needs a number",
    ),
    "a launcher flag after the script": (["script.py", "--", "--nproc_per_node", "2"], 2, "--gpus 2"),
    "a run directory that is in use": (["--run-dir", "empty/.."], 69, "not empty"),
}

SCRIPT = "import argparse\nargparse.ArgumentParser().parse_args()\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "script.py": SCRIPT,
        "deepy.py": "from deepspeed.launcher.runner import main\nmain(['train.py'])\n",
        "broken.py": "def (:\n",
        "run.sh": "python script.py\n",
        "wrong.json": '{"zero_optimisation": {"stage": 2}}',
        "batch.json": '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}',
        "hosts": "w0 slots=1\nw1 slots: 2\nw0 slots=1\n",
        "localhosts": "localhost slots=1\n",
        "toomany": "localhost slots=999\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    return tmp_path


def everything_in(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_with_one_message_and_nothing_written(case: str, folder: Path) -> None:
    args, status, named = CASES[case]
    before = everything_in(folder)
    result = zlaunch("train", *args, cwd=folder)
    assert (result.status, result.out) == (status, "")
    assert named in result.err
    assert "Traceback" not in result.err
    assert everything_in(folder) == before


def test_a_hostfile_is_refused_with_every_bad_line_at_once(folder: Path) -> None:
    err = zlaunch("train", "--hostfile", "hosts", cwd=folder).err
    assert "hosts:2:1" in err
    assert "hosts:3:1: error: [duplicate-host]\n  `w0` is on line 1 and on line 3" in err


def test_a_working_directory_that_was_deleted_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    inside = 'cd "$0" && rmdir "$0" && exec "$@"'
    words = ("sh", "-c", inside, gone, sys.executable, "-P", "-m", "zlaunch", "train", "--dry-run")
    result = run(*words, cwd=tmp_path)
    assert (result.status, result.out) == (69, "")
    assert result.err.startswith("error: the working directory has been deleted\n")


def test_a_gpu_that_this_machine_does_not_have_is_refused(folder: Path) -> None:
    result = zlaunch("train", "--gpus", "997,998", cwd=folder)
    assert result.status == 69


@pytest.mark.parametrize("write", [json.dumps, lambda value: json.dumps(value, indent=4)])
def test_validate_names_file_line_and_column(write: Callable[[object], str], tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(write({"fp16": {"enabld": True}}))
    result = zlaunch("config", "validate", "c.json", cwd=tmp_path)
    assert result.status == 65
    line, column = ("1", "11") if write is json.dumps else ("3", "9")
    assert f"c.json:{line}:{column}: error: fp16.enabld [unknown-key]" in result.out


def test_validate_goes_on_after_a_file_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text('{"train_batch_size": 8}')
    result = zlaunch("config", "validate", "nosuch.json", "good.json", cwd=tmp_path)
    assert result.status == 66
    assert "good.json: valid" in result.err


@pytest.mark.parametrize("command", ["write", "schema"])
def test_a_dash_for_the_output_is_stdout(command: str, tmp_path: Path) -> None:
    result = zlaunch("config", command, "-o", "-", cwd=tmp_path)
    assert json.loads(result.out)
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--stage", "0", "--offload", "cpu"), 0, "warning: zero_optimization.offload_optimizer"),
        (("--stage", "2", "--offload", "nvme"), 65, "does not use the NVMe drive"),
    ],
)
def test_write_refuses_only_what_is_wrong_on_every_device(
    options: tuple[str, ...], status: int, said: str, tmp_path: Path
) -> None:
    result = zlaunch("config", "write", *options, cwd=tmp_path)
    assert (result.status, bool(result.out), said in result.err) == (status, not status, True), result.err


def test_write_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{}")
    result = zlaunch("config", "write", "--stage", "3", "-o", "mine.json", cwd=tmp_path)
    assert result.status == 69
    assert (tmp_path / "mine.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("asked", "command", "wrong", "meant"),
    [
        (["train", "--stge=3"], "train", "--stge", "--stage"),
        (["train", "--dry-rnu", "--", "--max_steps", "1"], "train", "--dry-rnu", "--dry-run"),
        (["estimate", "--seqlen", "5"], "estimate", "--seqlen", "--seq-len"),
        (["config", "validate", "--stric", "ds.json"], "config validate", "--stric", "--strict"),
    ],
)
def test_a_slip_in_an_option_is_told_which_one_is_meant(
    asked: list[str], command: str, wrong: str, meant: str, tmp_path: Path
) -> None:
    done = zlaunch(*asked, cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert f"zlaunch {command} has no option `{wrong}`\nhint: did you mean `{meant}`?" in done.err


LOOP = """
import os
import deepspeed
engine, *_ = deepspeed.initialize(model=net, config=os.environ["ZLAUNCH_DS_CONFIG"])
engine.backward(engine(x))
engine.step()
"""
ADAM = ["--set", "optimizer.type=AdamW", "--set", "optimizer.params.lr=1e-4"]


@pytest.mark.parametrize(("asked", "status"), [([], 65), (ADAM, 0)])
def test_an_engine_that_nobody_gives_an_optimizer_is_refused(
    asked: list[str], status: int, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    done = zlaunch("train", "loop.py", "--dry-run", *asked, cwd=tmp_path)
    assert done.status == status
    assert ("loop.py:4:14: fails later: [no-optimizer]" in done.err) == bool(status)


@pytest.mark.parametrize(
    ("given", "status"), [("model=net", 65), ("model=net, config={}", 0), ("**settings", 0), ("args", 0)]
)
def test_an_engine_that_nobody_gives_a_ds_config_is_refused(given: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(f"import deepspeed, torch\ndeepspeed.initialize({given})\n")
    done = zlaunch("train", "loop.py", "--dry-run", "--no-ask", cwd=tmp_path)
    assert ("loop.py:2:1: fails later: [no-ds-config]" in done.err) == bool(status)


OWN_OPTIMIZER = """
import os
import deepspeed, torch
optimizer = torch.optim.{}(net.parameters())
engine, optimizer, *_ = deepspeed.initialize(
    model=net, optimizer=optimizer, config=os.environ["ZLAUNCH_DS_CONFIG"]
)
"""


@pytest.mark.parametrize("command", [("train", "--dry-run"), ("estimate",)])
def test_an_optimizer_of_a_script_that_deepspeed_cannot_offload_is_refused(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text(OWN_OPTIMIZER.format("AdamW"))
    done = zlaunch(*command, "loop.py", "--stage", "2", "--offload", "cpu", cwd=tmp_path)
    assert done.status == 65
    assert "loop.py:4:13: fails later: [client-optimizer]" in done.err
    assert "deepspeed.ops.adam.DeepSpeedCPUAdam" in done.err


@pytest.mark.parametrize(
    ("name", "options", "status"),
    [
        ("AdamW", ["--offload", "none"], 0),
        ("AdamW", ["--offload", "cpu", "--set", "zero_force_ds_cpu_optimizer=false"], 0),
        ("SGD", [], 65),
        ("SGD", ["--set", "zero_allow_untested_optimizer=true"], 0),
    ],
)
def test_an_optimizer_of_a_script_is_refused_only_where_deepspeed_refuses_it(
    name: str, options: list[str], status: int, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text(OWN_OPTIMIZER.format(name))
    done = zlaunch("train", "--dry-run", "loop.py", "--stage", "2", *options, cwd=tmp_path)
    assert done.status == status, done.err


@pytest.mark.parametrize(
    ("given", "is_own"), [('config="ds.json"', True), ('config=os.environ["ZLAUNCH_DS_CONFIG"]', False)]
)
def test_a_script_that_gives_deepspeed_its_own_config_is_warned_of(
    given: str, is_own: bool, tmp_path: Path
) -> None:
    (tmp_path / "fixed.py").write_text(
        f"import os, deepspeed\ndeepspeed.initialize(optimizer=sgd, {given})\n"
    )
    done = zlaunch("train", "fixed.py", "--stage", "3", "--dry-run", cwd=tmp_path)
    assert done.status == 0
    assert ("fixed.py:2:1: ignored: [own-config]" in done.out + done.err) == is_own


@pytest.mark.parametrize(
    ("words", "is_own"), [([], True), (["--stage", "3"], False), (["--deepspeed_config", "mine.json"], False)]
)
def test_a_ds_config_that_the_parser_of_a_script_names_is_used_unless_the_command_line_says_otherwise(
    words: list[str], is_own: bool, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text(
        "import argparse, deepspeed\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--deepspeed_config', default='ds.json')\nargs = parser.parse_args()\n"
        "deepspeed.initialize(args=args, optimizer=sgd)\n"
    )
    for name in ("ds.json", "mine.json"):
        (tmp_path / name).write_text('{"train_batch_size": 2, "zero_optimization": {"stage": 1}}')
    done = zlaunch("train", "loop.py", *words, "--gpus", "1", "--dry-run", cwd=tmp_path)
    assert done.status == 0
    assert ("of the script itself (default of `--deepspeed_config`)" in done.out) == is_own
    assert ("loop.py --deepspeed_config /" in done.out) != is_own


def test_a_model_of_an_odd_size_is_one_finding(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": "big"}')
    done = zlaunch("train", "--stage", "3", "--", "--model", ".", cwd=tmp_path)
    assert (done.status, done.out) == (65, "")
    assert done.err.startswith("error: 1 problem found\nconfig.json:1:")


@pytest.mark.parametrize("name", ["deep.json", "deep.yaml", "deep.py"])
def test_a_file_that_is_nested_too_deeply_is_one_error(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x = " + "-" * 30_000 + "1" if name == "deep.py" else "[" * 5000)
    done = zlaunch("train", name, cwd=tmp_path)
    assert (done.status, "Traceback" in done.err) == (65 if name == "deep.py" else 2, False)


LOADS_ANOTHER = """
import argparse
from accelerate import Accelerator
from transformers import AutoTokenizer
parser = argparse.ArgumentParser()
parser.add_argument("--model")
Accelerator()
AutoTokenizer.from_pretrained("tokens")
"""


@pytest.mark.parametrize("name", ["resnet:50", "./later", "weights.pt"])
def test_a_model_that_transformers_does_not_load_may_have_any_name(name: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOADS_ANOTHER)
    (tmp_path / "weights.pt").write_text("PK")
    assert zlaunch("train", "--dry-run", "train.py", "--", "--model", name, cwd=tmp_path).status == 0
