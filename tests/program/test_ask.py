"""Programs whose source leaves their arguments open are asked for them."""

import json
import os
import re
import signal
import subprocess
import time
import zipapp
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.running import ROOT, Result, start, zlaunch

DEEPSPEED = "def initialize(args=None, model=None, config=None):\n    print('trained')\n"
"""A package that is imported faster than the real one, in the working directory of a program."""

ENGINE = "import deepspeed\nopen('asked', 'a').write('once ')\ndeepspeed.initialize(config={})\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deepspeed.py").write_text(DEEPSPEED)
    (tmp_path / "mine.py").write_text(ENGINE.format("{'zero_optimization': {'stage': 1}}"))
    (tmp_path / "train.py").write_text("import mine\n")
    return tmp_path


def plan(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> Result:
    return zlaunch("train", "--gpus", "1", "--dry-run", *words, cwd=folder, env=env)


def test_a_program_tells_the_ds_config_that_another_module_passes(folder: Path) -> None:
    told = plan(folder, "train.py").out
    assert "the ds_config of the script itself (deepspeed.initialize): ZeRO stage 1" in told


def test_a_program_is_asked_once_for_the_same_command_line(folder: Path) -> None:
    both = [plan(folder, "train.py").out.splitlines()[0] for _ in range(2)]
    assert (both[0], (folder / "asked").read_text()) == (both[1], "once ")


@pytest.mark.parametrize("words", [("--", "--lr", "1"), ()])
def test_a_program_is_asked_again_if_something_changed(words: tuple[str, ...], folder: Path) -> None:
    plan(folder, "train.py")
    if not words:
        (folder / "mine.py").write_text(
            ENGINE.format("{'zero_optimization': {'stage': 2}, 'prescale_gradients': True}")
        )
    plan(folder, "train.py", *words)
    assert (folder / "asked").read_text() == "once once "


@pytest.mark.parametrize("changed", ["a variable", "a file that an argument names"])
def test_a_program_is_asked_again_if_something_that_it_may_read_changed(changed: str, folder: Path) -> None:
    file = folder / "sft.yaml"
    file.write_text("a: 1\n")
    for text, value in (("a: 1\n", "ddp"), ("a: 22\n", "zero")):
        if changed == "a variable":
            plan(folder, "train.py", "--", "--config=sft.yaml", env={"STRATEGY": value})
        else:
            file.write_text(text)
            plan(folder, "train.py", "--", "--config=sft.yaml")
    assert (folder / "asked").read_text() == "once once "


def test_a_program_that_wants_other_ranks_than_the_one_that_is_asked_is_not_refused(folder: Path) -> None:
    parser = "import argparse\nargparse.ArgumentParser().error('--tp 2 needs two ranks')\n"
    (folder / "mine.py").write_text(parser)
    told = plan(folder, "train.py")
    assert (told.status, "cannot find out the arguments of train.py" in told.err) == (0, True)


def test_a_program_tells_how_long_its_sequences_are(folder: Path) -> None:
    parser = "import argparse\nparser = argparse.ArgumentParser()\n"
    option = "parser.add_argument('--block_size', type=int, default=768)\nparser.parse_args()\n"
    (folder / "mine.py").write_text(f"{parser}{option}{ENGINE}")
    plan(folder, "train.py", env={"ZLAUNCH_CACHE": str(folder / "cache")})
    (kept,) = (folder / "cache").glob("*.answer.json")
    assert json.loads(kept.read_text())["answer"]["seq_len"] == 768


ARGUMENTS = """
import dataclasses

class Dtype: ...

@dataclasses.dataclass
class TrainingArguments:
    model_init_kwargs: dict
    hub_api_key: str = "s3cret"
    def __post_init__(self): ...
"""


def test_an_answer_has_no_secrets_and_text_for_what_is_not_json(tmp_path: Path) -> None:
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").touch()
    (tmp_path / "transformers" / "training_args.py").write_text(ARGUMENTS)
    source = "from transformers.training_args import *\nTrainingArguments({'dtype': Dtype()})\n"
    (tmp_path / "train.py").write_text(source)
    cache = {"ZLAUNCH_CACHE": str(tmp_path / "cache")}
    told = plan(tmp_path, "train.py", env=cache)
    assert "cannot find out" not in told.err
    (kept,) = (tmp_path / "cache").glob("*.answer.json")
    assert ("Dtype object" in kept.read_text(), "s3cret" in kept.read_text()) == (True, False)


CHANGES = """
import os, pathlib, shutil, wandb
pathlib.Path('notes').write_text('new')
assert pathlib.Path('notes').read_text() == 'new'
wandb.init(mode='online')
try:
    shutil.rmtree('results')
except PermissionError:
    pass
"""


def test_a_program_that_does_not_start_next_changes_no_files_and_no_tracker(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "results").mkdir()
    (folder / "results" / "losses").touch()
    tracker = "import tempfile\ndef init(mode):\n    open(tempfile.gettempdir() + '/mode', 'w').write(mode)\n"
    (folder / "wandb.py").write_text(tracker)
    engine = ENGINE.format("{'zero_optimization': {'stage': 1}}")
    (folder / "mine.py").write_text(f"{CHANGES}{engine}")
    told = plan(folder, "train.py", env={"TMPDIR": str(folder / "elsewhere")})
    assert "the ds_config of the script itself" in told.out
    assert (folder / "elsewhere" / "mode").read_text() == "disabled"
    assert ((folder / "results" / "losses").exists(), (folder / "notes").exists()) == (True, False)


def test_empty_directories_that_a_program_made_are_removed(folder: Path) -> None:
    (folder / "here").mkdir()
    make = "import os\nos.makedirs('here/out/deep')\nos.makedirs('full')\nopen('full/file', 'w').close()\n"
    (folder / "mine.py").write_text(make + ENGINE.format("{'zero_optimization': {'stage': 1}}"))
    assert "ZeRO stage 1" in plan(folder, "train.py").out
    assert [name for name in ("here", "here/out", "full/file") if (folder / name).exists()] == [
        "here",
        "full/file",
    ]


def test_a_program_in_an_archive_is_asked(folder: Path) -> None:
    (folder / "pack").mkdir()
    (folder / "pack" / "__main__.py").write_text("import sys\nsys.path.append('.')\nimport mine\n")
    zipapp.create_archive(folder / "pack", folder / "train.pyz")
    assert "ZeRO stage 1" in plan(folder, "train.pyz").out


@pytest.mark.parametrize("asked", [["--help"], ["-h"], ["-h", "--lr", "1"]], ids=" ".join)
def test_the_help_of_a_program_is_shown_and_nothing_is_started(asked: list[str], folder: Path) -> None:
    parser = "import argparse\nargparse.ArgumentParser(prog='mine').parse_args()\n"
    (folder / "train.py").write_text(parser)
    told = zlaunch("train", "train.py", "--", *asked, cwd=folder)
    assert (told.status, told.out.splitlines()[0]) == (0, "usage: mine [-h]")
    assert not (folder / "runs").exists()


def test_a_program_need_not_be_asked(folder: Path) -> None:
    told = plan(folder, "train.py", "--no-ask")
    assert not (folder / "asked").exists()
    assert "job        ZeRO stage 2, nothing offloaded, precision of the script, if the" in told.out
    assert "ds_config  passed in accelerate's environment variables" in told.out


def test_a_ds_config_without_a_stage_is_announced_as_deepspeed_reads_it(folder: Path) -> None:
    (folder / "mine.py").write_text(ENGINE.format("{'train_batch_size': 1}"))
    told = " ".join(plan(folder, "train.py").out.split())
    assert "the ds_config of the script itself (deepspeed.initialize): ZeRO stage 0, " in told


@pytest.mark.parametrize("joins", [False, True])
def test_a_program_is_asked_as_the_first_of_its_ranks(joins: bool, folder: Path) -> None:
    join = (
        "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n" if joins else ""
    )
    config = "{'train_micro_batch_size_per_gpu': 3, 'gradient_accumulation_steps': 16 // ranks}"
    ranks = "import os\nranks = int(os.environ['WORLD_SIZE'])\n"
    (folder / "mine.py").write_text(f"{ranks}{join}{ENGINE.format(config)}")
    told = zlaunch("train", "--gpus", "2", "--dry-run", "train.py", cwd=folder)
    assert "  gradient_accumulation_steps = 8 " in told.out


LIGHTNING = """
class DDPStrategy: ...

class Trainer:
    def __init__(self):
        self.strategy = DDPStrategy()
"""
FIT = """
from lightning.pytorch.trainer.trainer import Trainer
Trainer()
raise ValueError("`devices=2` does not match the world size (1)")
"""


def test_a_trainer_of_lightning_tells_its_strategy_before_it_counts_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "lightning/pytorch/trainer").mkdir(parents=True)
    (tmp_path / "lightning/pytorch/trainer/trainer.py").write_text(LIGHTNING)
    (tmp_path / "train.py").write_text(FIT)
    told = plan(tmp_path, "train.py").out
    assert "\njob     no DeepSpeed: the script trains with Lightning's DDPStrategy\n" in told
    assert "DeepSpeed's CPU accelerator" not in told


LIGHTNING_DEEPSPEED = """
class DeepSpeedStrategy:
    def __init__(self):
        self.config = {"zero_optimization": {"stage": 2, "sub_group_size": 1}, "aio": {"thread_count": 1}}
"""


def test_of_the_ds_config_of_lightning_only_the_stage_is_announced(tmp_path: Path) -> None:
    (tmp_path / "lightning/pytorch/strategies").mkdir(parents=True)
    (tmp_path / "lightning/pytorch/strategies/deepspeed.py").write_text(LIGHTNING_DEEPSPEED)
    (tmp_path / "train.py").write_text(
        "from lightning.pytorch.strategies.deepspeed import DeepSpeedStrategy\nDeepSpeedStrategy()\n"
    )
    told = plan(tmp_path, "train.py")
    assert "(DeepSpeedStrategy): ZeRO stage 2, " in " ".join(told.out.split())
    assert told.err == "asking train.py for its arguments\n"


def test_a_program_that_does_not_know_its_local_rank_gets_it_from_deepspeeds_launcher(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "import deepspeed\nclass args: local_rank = -1\ndeepspeed.initialize(args)\n"
    )
    assert "deepspeed.launcher.runner" in plan(folder, "train.py").out
    (folder / "mine.py").write_text(
        "import deepspeed\nclass args: local_rank = 0\ndeepspeed.initialize(args)\n"
    )
    assert "torch.distributed.run" in plan(folder, "train.py").out


def test_nothing_of_a_program_runs_after_its_arguments_are_known(folder: Path) -> None:
    (folder / "mine.py").write_text(f"{ENGINE.format('None')}open('trained', 'w')\n")
    plan(folder, "train.py")
    assert not (folder / "trained").exists()


def test_a_process_that_a_program_starts_may_tell_its_arguments(folder: Path) -> None:
    (folder / "train.py").write_text("import subprocess, sys\nsubprocess.run([sys.executable, 'mine.py'])\n")
    assert "ZeRO stage 1" in plan(folder, "train.py").out


def test_a_program_that_does_not_get_so_far_is_planned_without_its_answer(folder: Path) -> None:
    (folder / "mine.py").write_text("raise KeyError('data')\n")
    told = plan(folder, "train.py")
    assert (told.status, "cannot find out the arguments of train.py: KeyError: 'data'" in told.err) == (
        0,
        True,
    )


def test_a_ds_config_that_a_program_knows_by_name_is_left_to_it(folder: Path) -> None:
    known = "{'zero3': {'zero_optimization': {'stage': 3}}}[__import__('sys').argv[2]]"
    (folder / "mine.py").write_text(ENGINE.format(known))
    told = plan(folder, "train.py", "--", "--deepspeed", "zero3").out
    assert "ZeRO stage 3" in told
    assert " train.py --deepspeed zero3\n" in told


@pytest.mark.parametrize("changed", ["settings.yaml", "$STAGE"])
def test_a_program_is_asked_again_if_what_it_read_has_changed(changed: str, folder: Path) -> None:
    read = {"settings.yaml": "open('settings.yaml').read()", "$STAGE": "__import__('os').environ['STAGE']"}
    (folder / "mine.py").write_text(
        ENGINE.format(f"{{'zero_optimization': {{'stage': int({read[changed]})}}}}")
    )
    for stage in "13":
        (folder / "settings.yaml").write_text(stage if changed == "settings.yaml" else "")
        told = zlaunch("train", "--dry-run", "train.py", cwd=folder, env={"STAGE": stage}).out
        assert f"ZeRO stage {stage}" in told


def test_a_ds_config_may_have_values_that_json_does_not_have(folder: Path) -> None:
    (folder / "mine.py").write_text(
        ENGINE.format("{'zero_optimization': {'stage': 1}, 'x': __import__('pathlib').Path('a')}")
    )
    assert "ZeRO stage 1" in plan(folder, "train.py").out


@pytest.mark.parametrize("text", ["[" * 100_000, '{"stamps": {}, "answer": 5}', "{"])
def test_an_answer_that_is_damaged_is_asked_for_again(text: str, folder: Path) -> None:
    for _ in range(2):
        told = zlaunch(
            "train", "--dry-run", "train.py", cwd=folder, env={"ZLAUNCH_CACHE": str(folder / "kept")}
        )
        assert "ZeRO stage 1" in told.out
        for file in (folder / "kept").glob("*.answer.json"):
            file.write_text(text)
    assert (folder / "asked").read_text() == "once once "


PARSER = "import argparse\nparser = argparse.ArgumentParser()\n"
LOCAL_RANK = f"{PARSER}parser.add_argument('--local_rank', required=True)\nparser.parse_args()\n"


@pytest.mark.parametrize(
    ("imported", "advice"),
    [
        (
            "from transformers.deepspeed import HfDeepSpeedConfig",
            "import it from `transformers.integrations`",
        ),
        ("from transformers import AdamW", "write `from torch.optim import AdamW`"),
    ],
)
def test_a_program_that_imports_what_has_moved_is_told_the_new_place(
    imported: str, advice: str, folder: Path
) -> None:
    (folder / "transformers").mkdir()
    (folder / "transformers" / "__init__.py").touch()
    (folder / "mine.py").write_text(f"{imported}\n")
    told = plan(folder, "train.py")
    assert told.status == 69
    assert f"hint: {advice};" in told.err


@pytest.mark.job
def test_arguments_that_the_trainer_no_longer_has_are_answered_with_what_replaced_them(folder: Path) -> None:
    told = plan(folder, "--", "--evaluation_strategy", "steps", "--overwrite_output_dir", "True")
    assert (told.status, told.err.count("[removed-argument]")) == (65, 2)
    assert "hint: use `--eval_strategy`" in told.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(
            ["--modle", "1"],
            "does not define `--modle`\nhint: did you mean `--model`?",
            marks=pytest.mark.full,
        ),
        (["--lr_scheduler_type", "cosin"], "invalid choice: 'cosin'\nhint: did you mean `cosine`?"),
        pytest.param(
            ["--learning_rte", "1"],
            "does not define `--learning_rte`\nhint: did you mean `--learning_rate`?",
            marks=pytest.mark.full,
        ),
        pytest.param(
            ["--seed", "one"], "argument --seed: invalid int value: 'one'\n", marks=pytest.mark.full
        ),
        pytest.param(["-m", "gpt2"], "does not define `-m`\n", marks=pytest.mark.full),
    ],
)
@pytest.mark.job
def test_an_argument_that_a_trainer_script_rejects_is_refused_before_the_start(
    words: list[str], said: str, folder: Path
) -> None:
    told = plan(folder, "--", *words)
    assert told.status == 2
    assert said in told.err


@pytest.mark.job
def test_an_argument_that_the_trainer_takes_needs_no_asking(folder: Path) -> None:
    assert not plan(folder, "--", "--seed", "1", "--optim", "adafactor", "--num_train_epochs", "0.5").err


PARSES = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--batch_size')\n"
LOOP = "{}deepspeed.add_config_arguments(parser)\nargs = parser.{}()\nimport deepspeed\ndeepspeed.initialize(args)\n"


@pytest.mark.parametrize(("method", "status"), [("parse_args", 2), ("parse_known_args", 0)])
def test_a_misspelled_argument_of_a_parser_that_takes_no_others_is_refused(
    method: str, status: int, folder: Path
) -> None:
    (folder / "deepspeed.py").write_text(f"def add_config_arguments(parser): pass\n{DEEPSPEED}")
    (folder / "train.py").write_text(f"import deepspeed\n{LOOP.format(PARSES, method)}")
    told = plan(folder, "train.py", "--batch_sise", "4")
    assert (told.status, "hint: did you mean `--batch_size`?" in told.err) == (status, bool(status)), told.err


@pytest.mark.parametrize(
    ("word", "status"), [("--width", 0), ("--wdth", 2)], ids=["one that it has", "one that it has not"]
)
def test_a_script_that_is_certain_reads_its_command_line_and_nothing_else(
    word: str, status: int, folder: Path
) -> None:
    parser = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--width', type=int)\n"
    (folder / "shared.py").write_text(f"{parser}def parse():\n    return p.parse_args()\n")
    (folder / "train.py").write_text(
        "import os, deepspeed, shared\n"
        "args = shared.parse()\nopen('loaded', 'w').close()\n"
        "deepspeed.initialize(config=os.environ['ZLAUNCH_DS_CONFIG'])\n"
    )
    told = plan(folder, "train.py", "--", word, "3")
    assert (told.status, (folder / "loaded").exists()) == (status, False), told.err


def test_an_estimate_names_no_option_of_a_start_where_a_script_rejects_its_arguments(folder: Path) -> None:
    (folder / "deepspeed.py").write_text(f"def add_config_arguments(parser): pass\n{DEEPSPEED}")
    (folder / "train.py").write_text(f"import deepspeed\n{LOOP.format(PARSES, 'parse_args')}")
    told = zlaunch("estimate", "train.py", "--", "--batch_sise", "4", cwd=folder)
    assert (told.status, "hint: did you mean `--batch_size`?" in told.err) == (2, True), told.err


def test_an_argument_that_the_source_shows_needs_no_asking(folder: Path) -> None:
    (folder / "train.py").write_text(f"import deepspeed\n{LOOP.format(PARSES, 'parse_args')}")
    assert not plan(folder, "train.py", "--batch_size", "4").err


OWN_FLAG = """
import argparse, deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed", action="store_true")
parser.add_argument("--ds_config", default="ds.json")
args = parser.parse_args()
deepspeed.initialize(config=args.ds_config if args.deepspeed else None)
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--deepspeed"], "the ds_config of the script itself (deepspeed.initialize): ZeRO stage 1"),
        (["--deepspeed", "--stage", "3"], "train.py --deepspeed --ds_config {run}/ds_config.json"),
        (
            ["--deepspeed", "--ds_config", "mine.json"],
            "train.py --deepspeed --ds_config {run}/ds_config.json",
        ),
        (["--", "--deepspeed", "--ds_config", "mine.json"], "train.py --deepspeed --ds_config mine.json\n"),
        (["--", "--deepspeed", "--ds_config", "mine.json"], "(deepspeed.initialize): ZeRO stage 2"),
    ],
)
def test_a_program_gets_the_ds_config_where_its_own_parser_takes_it(
    words: list[str], told: str, folder: Path
) -> None:
    (folder / "train.py").write_text("from mine import *\n")
    (folder / "mine.py").write_text(OWN_FLAG)
    for name, stage in (("ds", 1), ("mine", 2)):
        text = json.dumps({"train_batch_size": 2, "zero_optimization": {"stage": stage}})
        (folder / f"{name}.json").write_text(text)
    run = folder / "runs" / "a"
    got = plan(folder, "--run-dir", str(run), "train.py", *words)
    assert told.format(run=run) in got.out, got.err


@pytest.mark.parametrize("end", [f"{PARSER}parser.error('needs at least 2 ranks')\n", LOCAL_RANK])
def test_a_program_that_may_only_miss_its_other_ranks_is_started(end: str, folder: Path) -> None:
    (folder / "mine.py").write_text(end)
    assert plan(folder, "train.py").status == 0


def test_a_program_gets_the_local_rank_that_it_wants(folder: Path) -> None:
    (folder / "train.py").write_text("name = '--local_rank'\nimport mine\n")
    (folder / "mine.py").write_text(LOCAL_RANK + ENGINE.format("{'zero_optimization': {'stage': 1}}"))
    assert "ZeRO stage 1" in plan(folder, "train.py").out


READS_A_FILE = """
import accelerate, argparse, json, os
class HfTrainerDeepSpeedConfig:
    def __init__(self, file):
        self.deepspeed_config = {**json.load(open(file)), "team": os.environ["TEAM"]}
parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed", type=str)
args = parser.parse_args()
accelerate.Accelerator(deepspeed_plugin=HfTrainerDeepSpeedConfig(args.deepspeed))
"""


@pytest.fixture
def reads_a_file(folder: Path) -> Path:
    (folder / "train.py").write_text(READS_A_FILE)
    (folder / "accelerate").mkdir()
    (folder / "accelerate" / "__init__.py").write_text("from accelerate.accelerator import Accelerator\n")
    (folder / "accelerate" / "accelerator.py").write_text(
        "class Accelerator:\n    def __init__(self, deepspeed_plugin): ...\n"
    )
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 1,}} // mine\n')
    return folder


@pytest.mark.parametrize("words", ["--ds-config ds.json", "--stage 1", "-- --deepspeed ds.json"])
def test_a_program_that_is_asked_gets_what_the_ranks_get(words: str, reads_a_file: Path) -> None:
    told = plan(reads_a_file, "--env", "TEAM=a", "train.py", *words.split())
    assert told.err == "asking train.py for its arguments\n"
    assert re.search(r"^job +ZeRO stage 1", told.out, re.MULTILINE)
    assert told.out.count("train.py --deepspeed /") == 1


def test_a_program_that_is_named_for_a_ds_config_gets_a_clean_copy_of_its_own(reads_a_file: Path) -> None:
    words = ("config", "resolve", "ds.json", "--", "train.py", "--deepspeed", "ds.json")
    told = zlaunch(*words, cwd=reads_a_file, env={"TEAM": "a"})
    assert "cannot find out" not in told.err


def test_the_reason_why_a_program_told_nothing_is_its_error(folder: Path) -> None:
    (folder / "mine.py").write_text(
        "import atexit\natexit.register(print, 'bye')\nraise ValueError('no data')\n"
    )
    assert "cannot find out the arguments of train.py: ValueError: no data\n" in plan(folder, "train.py").err


def test_a_module_that_a_package_lacks_is_not_called_a_missing_package(folder: Path) -> None:
    (folder / "mine.py").write_text("import json.schema.draft\n")
    told = plan(folder, "train.py")
    assert told.status == 69
    assert "`json` has no module `json.schema`\nhint: install the release of `json`" in told.err


def test_the_reason_of_a_program_that_prints_one_long_line_is_short(folder: Path) -> None:
    (folder / "mine.py").write_text("print('x' * 10_000_000, end='')\nraise SystemExit(1)\n")
    assert len(plan(folder, "train.py").err) < 1000


def test_a_program_that_rejects_its_command_line_is_not_started(folder: Path) -> None:
    (folder / "mine.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    told = zlaunch("train", "train.py", "--gpus", "1", "--", "--lr", "1", cwd=folder)
    assert (told.status, (folder / "runs").exists()) == (2, False)
    assert "error: train.py rejects its arguments: unrecognized arguments: --lr 1\n" in told.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_program_that_is_asked(number: signal.Signals, folder: Path) -> None:
    (folder / "mine.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    with start("train", "train.py", "--gpus", "1", cwd=folder, stderr=subprocess.PIPE) as program:
        while not ((folder / "pid").exists() and (folder / "pid").read_text()):
            time.sleep(0.05)
        program.send_signal(number)
        program.communicate(timeout=30)
    assert program.returncode == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


YAML = """
model_name_or_path: {model}
dataset_name: data
learning_rate: 3.0e-4
per_device_train_batch_size: 3
"""


@pytest.fixture
def trl(tmp_path: Path) -> Path:
    (tmp_path / "sft.yaml").write_text(YAML.format(model=ROOT / "recipes" / "small_llama"))
    return tmp_path


@pytest.mark.job
@pytest.mark.full
def test_the_arguments_of_trl_in_a_file_are_those_of_the_plan(trl: Path) -> None:
    told = plan(trl, "-m", "trl.scripts.sft", "--config", "sft.yaml").out
    assert "batch   3 = 3 per rank x 1 accumulated x 1 rank" in told
    assert "`bf16` of SFTConfig" in told
    assert "sft --config sft.yaml --use_cpu True --deepspeed /" in told


@pytest.mark.job
def test_a_program_of_trl_gets_a_precision_as_it_wants_it(trl: Path) -> None:
    told = plan(trl, "-m", "trl.scripts.sft", "--precision", "fp32", "--", "--config", "sft.yaml").out
    assert "--config sft.yaml --bf16 False --use_cpu True --deepspeed" in told


@pytest.mark.job
def test_an_argument_that_trl_does_not_have_is_refused(trl: Path) -> None:
    told = plan(trl, "-m", "trl.scripts.sft", "--", "--config", "sft.yaml", "--bogus", "1")
    assert (told.status, "does not define `--bogus`" in told.err) == (2, True)


READS_YAML = """
import sys
from transformers import HfArgumentParser, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_yaml_file(sys.argv[1])
"""


@pytest.mark.job
def test_a_program_that_reads_a_file_alone_gets_its_ds_config_from_the_environment(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(READS_YAML)
    (tmp_path / "args.yaml").write_text("output_dir: out\nuse_cpu: true\ngradient_accumulation_steps: 5\n")
    told = plan(tmp_path, "train.py", "args.yaml").out
    assert "40 = 8 per rank x 5 accumulated x 1 rank" in told
    assert " train.py args.yaml\n" in told
    assert "ACCELERATE_DEEPSPEED_CONFIG_FILE=" in told


@pytest.mark.job
def test_a_ds_config_that_a_file_of_arguments_names_is_that_of_the_plan(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(READS_YAML)
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    (tmp_path / "args.yaml").write_text("output_dir: out\nuse_cpu: true\ndeepspeed: ds.json\n")
    told = plan(tmp_path, "train.py", "--stage", "3", "args.yaml")
    assert "the ds_config of the script itself (`deepspeed` of TrainingArguments): ZeRO stage 1" in " ".join(
        told.out.split()
    )
    assert "so `--stage` has no effect" in told.out


FSDP = "from transformers import TrainingArguments\nTrainingArguments(output_dir='o', fsdp='full_shard')\n"
PLUGIN = "from accelerate import Accelerator\nAccelerator(fsdp_plugin={}, deepspeed_plugins={})\n"


@pytest.mark.job
@pytest.mark.parametrize("source", [FSDP, PLUGIN.format("'any'", None)])
def test_a_program_that_trains_with_fsdp_gets_no_ds_config(source: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    told = plan(tmp_path, "train.py").out
    assert "no DeepSpeed: the script trains with FullyShardedDataParallel" in told
    assert "ACCELERATE_DEEPSPEED_CONFIG_FILE" not in told


@pytest.mark.job
def test_the_first_of_several_plugins_is_the_active_one(tmp_path: Path) -> None:
    plugin = "__import__('accelerate').DeepSpeedPlugin(zero_stage={})"
    both = f"{{'a': {plugin.format(3)}, 'b': {plugin.format(2)}}}"
    (tmp_path / "train.py").write_text(PLUGIN.format(None, both))
    told = plan(tmp_path, "train.py").out
    assert "(Accelerator): ZeRO stage 3" in told
    assert "steps_per_print" not in told


def test_a_trainer_that_is_told_to_use_fsdp_gets_no_ds_config(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    )
    assert " train.py --fsdp full_shard\n" in plan(tmp_path, "train.py", "--", "--fsdp", "full_shard").out
    assert " --deepspeed /" in plan(tmp_path, "train.py", "--", "--fsdp", "").out
    both = zlaunch(
        *["train", "--dry-run", "--stage", "3", "train.py", "--", "--fsdp", "full_shard"], cwd=tmp_path
    )
    assert (both.status, "`--stage` asks for ZeRO and `--fsdp full_shard` for FSDP" in both.err) == (65, True)


@pytest.mark.parametrize(
    "words",
    [
        ["--ds-config", "ds.json", "--", "--fsdp", "full_shard"],
        ["--deepspeed", "ds.json", "--fsdp"],
    ],
)
def test_fsdp_beside_a_ds_config_is_refused_before_the_start(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    )
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    found = plan(tmp_path, "train.py", *words)
    assert (found.status, "--fsdp [fsdp-and-deepspeed]" in found.err) == (65, True)


def test_an_option_that_fsdp_makes_idle_is_told_with_the_argument(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    )
    found = plan(tmp_path, "train.py", "--stage", "3", "--", "--fsdp", "full_shard")
    said = " ".join((found.out + found.err).split())
    assert "leave out `--fsdp full_shard` to train with DeepSpeed" in said


ENGINE_LOOP = """
import os, deepspeed
deepspeed.initialize(config=os.environ["ZLAUNCH_DS_CONFIG"])
"""


def test_a_program_that_is_asked_has_the_variable_that_names_its_ds_config(folder: Path) -> None:
    (folder / "mine.py").write_text(ENGINE_LOOP)
    done = plan(folder, "train.py", "--stage", "1")
    assert (done.status, "cannot find out" in done.err, "ZeRO stage 1" in done.out) == (0, False, True)


@pytest.mark.parametrize(
    ("words", "hint"), [(("--zero", "3"), "`--stage 3`"), (("--", "--fp8"), "leave it out")]
)
def test_options_of_other_launchers_are_refused_where_a_program_reads_none(
    words: tuple[str, ...], hint: str, folder: Path
) -> None:
    (folder / "loop.py").write_text(ENGINE_LOOP)
    done = plan(folder, "loop.py", *words)
    assert (done.status, "loop.py reads no arguments" in done.err, hint in done.err) == (2, True, True)


@pytest.mark.parametrize("reads", ["import sys; print(sys.argv)", "import mine", "exec(open('x').read())"])
def test_arguments_of_a_program_that_may_read_them_are_passed_on(reads: str, folder: Path) -> None:
    (folder / "loop.py").write_text(f"{ENGINE_LOOP}{reads}\n")
    assert plan(folder, "loop.py", "--", "--lr", "1").status == 0
