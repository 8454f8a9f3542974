"""What Typer's parser refuses, in the words of zlaunch."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from zlaunch.cli import program
from zlaunch.cli.usage_errors import as_wrong_usage
from zlaunch.errors import WrongUsage

PARSER_ERROR: Any = typer.BadParameter.__base__
OFFLOADS = "write `none`, `cpu` or `nvme`, or a device for each part: `optimizer:cpu,param:nvme`"
NO_RANK = (
    "write `--gpus 0,` for device 0; on a machine without a GPU, or with `DS_ACCELERATOR=cpu`, `--gpus 2` "
    "starts two ranks on the CPU"
)


ITS = (
    "`--stage sft` is an argument of LLaMA-Factory: `zlaunch train -m llamafactory.launcher -- --stage sft …`"
)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("train --stage 4", "`--stage 4`: expected 0, 1, 2, 3 or auto", "see `zlaunch train --help`"),
        ("train --on-stall sotp", "`--on-stall sotp`: expected report or stop", "did you mean `stop`?"),
        ("train --max-restarts x", "`--max-restarts`: expected a whole number", "see `zlaunch train --help`"),
        ("estimate m --nodes 0", "`--nodes`: expected at least 1", "see `zlaunch estimate --help`"),
        (
            "train --stage",
            "`--stage` needs a value: 0, 1, 2, 3 or auto",
            "ZeRO stage (default: from --ds-config, else 2); auto: the first that fits.",
        ),
        (
            "train t.py --resume",
            "`--resume` needs a value: DIR|latest|RUN",
            "Resume from a checkpoint: a directory, `latest` (newest of this job), or a run.",
        ),
        (
            "train t.py --submit",
            "`--submit` needs a value: kubernetes, ray or slurm",
            "Submit the job to a scheduler, and follow it to its end.",
        ),
        (
            "train ''",
            "the name of the script is empty",
            "is a variable of the shell unset?",
        ),
        (
            "train --version",
            "zlaunch train has no option `--version`",
            "it is an option of zlaunch itself: `zlaunch --version`",
        ),
        (
            "runs list --runs-dir",
            "`--runs-dir` needs a value: DIR",
            "Directory of the runs (default: runs).",
        ),
        (
            "config diff a.json",
            "`zlaunch config diff` needs 2 ds_configs",
            "see `zlaunch config diff --help`",
        ),
        ("runs compare latest", "`zlaunch runs compare` needs 2 runs", "see `zlaunch runs compare --help`"),
        ("runs top", "zlaunch runs has no command `top`", "did you mean `zlaunch runs watch`?"),
        ("tune", "zlaunch has no command `tune`", "did you mean `zlaunch plan SCRIPT --measure`?"),
        ("train --num_gpus 2 t.py", "zlaunch train has no option `--num_gpus`", "did you mean `--gpus 2`?"),
        ("train --zero=2 t.py", "zlaunch train has no option `--zero`", "did you mean `--stage 2`?"),
        (
            "train --lora 16 causal_lm",
            "zlaunch train has no option `--lora`",
            "it is an argument of the script: `zlaunch train causal_lm -- --lora_rank 16`",
        ),
        (
            "train --stage sft --finetuning_type lora",
            "`--stage sft`: expected 0, 1, 2, 3 or auto",
            ITS,
        ),
        (
            "train --finetuning_type lora t.py",
            "zlaunch train has no option `--finetuning_type`",
            ITS.replace("--stage sft", "--finetuning_type lora"),
        ),
        (
            "train --stage zero_3",
            "`--stage zero_3`: expected 0, 1, 2, 3 or auto",
            "did you mean `--stage 3`?",
        ),
        (
            "train --offload gpu",
            "`--offload gpu`: `gpu` is not valid",
            f"did you mean `--offload none`? Otherwise {OFFLOADS}",
        ),
        (
            "train --offload cpu,nvme",
            "`--offload cpu,nvme` names devices without the parts that go there",
            "write one for both, `--offload cpu`, or one for each: `--offload optimizer:cpu,param:nvme`",
        ),
        (
            "train --gpus 0",
            "`--gpus 0` starts no rank",
            NO_RANK,
        ),
        (
            "train --precision fp8",
            "`--precision fp8`: expected bf16, fp16 or fp32",
            "FP8 layers are up to the script: train them with `--precision bf16`",
        ),
        ("runs rerun", "`zlaunch runs rerun` needs ID", "see `zlaunch runs rerun --help`"),
        (
            "runs show a b",
            "`zlaunch runs show` takes no further argument: b",
            "see `zlaunch runs show --help`",
        ),
        ("frobnicate", "zlaunch has no command `frobnicate`", "see `zlaunch --help`"),
        ("doctor --prot 1", "zlaunch doctor has no option `--prot`", "did you mean `--port`?"),
        (
            "estimate m --no-ask",
            "zlaunch estimate has no option `--no-ask`",
            "it is an option of `zlaunch train`",
        ),
        (
            "plan m --no-levers",
            "zlaunch plan has no option `--no-levers`",
            "it is an option of `zlaunch estimate`",
        ),
        (
            "estimate m --optim adafactor",
            "zlaunch estimate has no option `--optim`",
            "arguments of the script go after `--`: `zlaunch estimate … -- --optim …`",
        ),
    ],
)
def test_a_usage_error_says_what_is_expected(words: str, message: str, hint: str | None) -> None:
    with pytest.raises((PARSER_ERROR, WrongUsage)) as caught:
        program(shlex.split(words), prog_name="zlaunch", standalone_mode=False)
    error = caught.value
    if not isinstance(error, WrongUsage):
        error = as_wrong_usage(error, shlex.split(words))
    assert (error.message, error.hint) == (message, hint)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("train --hostfile ''", "--hostfile"),
        ("train --run-dir= t.py", "--run-dir"),
        ("train --job ''", "--job"),
        ("train --set bf16.enabled=true --set ''", "--set"),
        ("estimate ''", "MODEL|SCRIPT"),
        ("checkpoint list ''", "DIR"),
        ("nvme tune ''", "DIR"),
    ],
)
def test_an_empty_name_is_refused_rather_than_taken_for_the_working_directory(words: str, name: str) -> None:
    with pytest.raises(PARSER_ERROR) as caught:
        program(shlex.split(words), prog_name="zlaunch", standalone_mode=False)
    message = as_wrong_usage(caught.value).message
    assert message == f"`{name}`: it is empty; is a variable of the shell unset?"


@pytest.mark.parametrize(
    ("words", "end"),
    [
        ("config translate -- torchrun -m timeit --fsdp ''", "-- --fsdp ''"),
        ("train --dry-run --no-ask -m timeit ''", "timeit ''"),
    ],
)
def test_a_word_of_a_program_may_be_empty(
    words: str, end: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program(shlex.split(words), prog_name="zlaunch", standalone_mode=False)
    assert end in " ".join(capfd.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("-h", "zlaunch"),
        ("runs -h", "zlaunch runs"),
        ("runs list --runs-dir x -h", "zlaunch runs list"),
        ("config translate -h", "zlaunch config translate"),
        ("estimate t.py -h", "zlaunch estimate"),
        ("train --stage 3 -h", "zlaunch train"),
    ],
)
def test_help_has_a_short_name(words: str, command: str, capfd: pytest.CaptureFixture[str]) -> None:
    program(words.split(), prog_name="zlaunch", standalone_mode=False)
    assert capfd.readouterr().out.startswith(f"Usage: {command} [OPTIONS]")


@pytest.mark.parametrize("words", ["t.py -h", "--stage 3 t.py --lr 1 -h", "-m timeit -h", "-- -h"])
def test_the_short_name_of_help_is_for_the_program_that_train_names(words: str) -> None:
    _, command, _ = program.resolve_command(program.make_context("zlaunch", ["train", "t.py"]), ["train"])
    assert command.make_context("train", words.split()).args[-1] == "-h"
