"""Every command that a verdict or the end of a run advises can be typed."""

import json
import re
from pathlib import Path

import pytest

from tests.diagnosis.table import DEATHS
from tests.running import zlaunch
from zlaunch.checkpoint.find import CheckpointFolder, SavedBy
from zlaunch.checkpoint.summary import Summary
from zlaunch.cli.views.run import saved_rows
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.job.script_reader import read_script
from zlaunch.resume.check_resume import refused_by_script
from zlaunch.resume.handover import Resumption, checkpoint_handover
from zlaunch.resume.saved_by_run import SavedByRun

LOOP = """
import json, os, deepspeed
config = json.load(open(os.environ["ZLAUNCH_DS_CONFIG"]))
engine, *_ = deepspeed.initialize(model=make(), config=config)
"""
TRAINER = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(model=make(), args=args).train()
"""
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}
QUICK = ("--stage 2 --offload optimizer:cpu", "-- --optim adamw_torch")
FOR_TRAINER = ("auto", "--per_device", "--gradient_checkpointing", "--optim")


def advised() -> list[str]:
    """List the options that verdicts advise, each once."""
    texts = [advice for runs in DEATHS.values() for run in runs for advice in diagnose(run).advice]
    return sorted({options for text in texts for options in re.findall(r"`(--[^`]*)`", text)})


OPTIONS = [
    options
    for options in advised()
    if re.match(r"--(?: --\w+|set|stage|offload|nvme|precision|launcher)\b", options)
]


@pytest.mark.parametrize(
    "options", [pytest.param(one, marks=() if one in QUICK else pytest.mark.full) for one in OPTIONS]
)
def test_options_that_a_verdict_advises_pass_a_dry_run(options: str, tmp_path: Path) -> None:
    is_trainer = any(name in options for name in FOR_TRAINER)
    (tmp_path / "train.py").write_text(TRAINER if is_trainer else LOOP)
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    words = options.replace("NUMBER", "5000").replace("DIR", str(tmp_path)).replace("'", "").split(" ")
    if "--nvme" in words:
        words += ["--offload", "nvme", "--stage", "3"]
    if "use_reentrant" in options:
        words[-2:] = [" ".join(words[-2:])]
    own = ["--output_dir", "out"] if is_trainer else []
    own = own if "--" in words or not own else ["--", *own]
    ds_config = ["--ds-config", "ds.json"]
    if re.search(r"--stage|--nvme|--per_device", options):
        ds_config = []
    result = zlaunch(
        "train", "train.py", "--dry-run", "--no-ask", "--gpus", "1", *ds_config, *words, *own, cwd=tmp_path
    )
    assert result.status == 0, result.err


@pytest.mark.parametrize(
    ("loads", "is_refused"),
    [("", True), ("engine.load_checkpoint(os.environ['ZLAUNCH_RESUME'])\n", False)],
)
def test_the_end_of_a_run_advises_to_resume_only_with_a_script_that_can(
    loads: str, is_refused: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(LOOP + loads)
    script, folder = read_script(tmp_path / "train.py"), Path("out/global_step3")
    checkpoint = CheckpointFolder(folder, SavedBy.ENGINE, folder)
    saved = Summary(checkpoint, 1, (), (), 3, 2, "bf16", has_optimizer=True, fits_all_stages=False)
    refusals = refused_by_script(Resumption(saved, checkpoint_handover(script)), script)
    refusal = "".join(finding.message for finding in refusals[:1])
    ((_, said),) = saved_rows(SavedByRun(checkpoint=saved, asked=("train.py",), refusal=refusal))
    assert ("--resume" in said, "ignores `$ZLAUNCH_RESUME`" in said) == (not is_refused, is_refused)
