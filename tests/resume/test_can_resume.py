"""What can be loaded where: the rules, compared with DeepSpeed's engine."""

import itertools
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.engines import ENGINES, OTHER_OPTIMIZERS
from tests.checkpoint.made import T, safetensors
from tests.checkpoint.ranks import run_ranks
from tests.checkpoint.swapping import put_on_nvme
from tests.checkpoint.trainers import trainers
from tests.running import ACTIVATED, ROOT, run, start, zlaunch
from zlaunch.checkpoint.find import checkpoint_at
from zlaunch.checkpoint.optimizer_kind import OptimizerKind
from zlaunch.checkpoint.summary import summarize
from zlaunch.checkpoint.torch_file import Archive
from zlaunch.checkpoint.universal import CONVERSION, disk_need_of, plan_universal
from zlaunch.checkpoint.universal_files import has_int_steps
from zlaunch.errors import Refused, WrongUsage
from zlaunch.resume.fit import ResumeTarget, ResumeWay, can_resume

pytestmark = pytest.mark.job

NAMES = ("zero0-bf16", "zero1", "zero2", "zero2-fp32", "zero3")
"""Engines with torch's Adam."""
CONVERTED = ("zero2", "zero2-fp32", "zero3")

ORDERS = ("zero2", "zero2-dealt-out")
"""With and without `round_robin_gradients`; their first groups have more parameters than 2 ranks."""

RESHARDED = {
    "zero2-cpu": ("--offload", "none", "--ranks", "1"),
    "zero3-cpu": ("--offload", "none", "--stage", "2"),
    "zero3-to-cpu": ("--offload", "cpu"),
    "accelerate": ("--ranks", "1", "--stage", "3"),
    "zero3-nvme": ("--offload", "cpu"),
    "zero2-cpu+1": ("--ranks", "1"),
}
"""Checkpoint → how it is converted."""

OTHER_PLACES = (
    *itertools.product(("zero2", "zero2-cpu"), ("zero2", "zero2-cpu")),
    *itertools.product(("zero3", "zero3-cpu"), ("zero3", "zero3-cpu")),
)
"""Checkpoints, and engines with or without offload."""

LOADED_WRONG = ("zero0-bf16+universal", "zero2-dealt-out+universal")
"""Engines that cannot load a universal checkpoint, or load it in another order."""

FIRST, LATER = 1e-2, 5e-2
"""Relative tolerance for the loss of the first step, and of the next ones.

bf16 has 8 bits, and other ranks and stages add up in another order. In later steps, stage 3 counts the steps of
torch's Adam in one tensor for all groups, and so corrects its bias as if more steps had been taken.
"""

Answers = dict[tuple[str, str, int], Any]
"""Name of the checkpoint, of the engine, and ranks → the losses of the next steps, or the error."""


def load(ranks: int, pairs: list[tuple[str, str]], folder: Path) -> Answers:
    pairs, out = list(dict.fromkeys(pairs)), folder / f"told-{ranks}.json"
    run_ranks(ranks, "tests.checkpoint.load", out, *(f"{folder / saved}:{into}" for saved, into in pairs))
    told = json.loads(out.read_text()).values()
    return {(saved, into, ranks): answer for (saved, into), answer in zip(pairs, told, strict=True)}


def test_every_job_can_resume_from_its_own_checkpoint(saved: Path) -> None:
    own = {saved / name: config for name, config in ENGINES.items() if "elastic" not in name}
    own[saved / "adapters" / "lora3-bf16"] = {"zero_optimization": {"stage": 3}, "bf16": {}}
    for folder, config in own.items():
        checkpoint = summarize(checkpoint_at(folder))
        stage, precision = config["zero_optimization"]["stage"], "bf16" if "bf16" in config else "fp32"
        assert checkpoint.dtype == {"bf16": "bfloat16", "fp32": "float32"}[precision]
        job = ResumeTarget(2, stage, precision, checkpoint.offload)
        assert can_resume(checkpoint, job).way is ResumeWay.AS_IT_IS, folder


AS_IT_IS = [*itertools.product(NAMES, NAMES)]
UNIVERSAL = [(saved, f"{into}+universal") for saved, into in itertools.product(CONVERTED, NAMES)]
OFFLOADED = [
    *((saved, into) for saved, into in OTHER_PLACES if "cpu" in saved + into),
    ("zero2", "zero2-cpu+universal"),
    ("zero3-to-cpu", "zero3-cpu+universal"),
    ("zero3-to-cpu", "zero2-cpu+universal"),
    ("zero3-nvme", "zero3-cpu+universal"),
]
ORDERED = [
    *itertools.product(ORDERS, ORDERS),
    *((saved, f"{into}+universal") for saved, into in itertools.product(ORDERS, ORDERS)),
    *(("bf16-optimizer", into) for into in ("bf16-optimizer", "bf16-optimizer+universal", "zero1")),
    *(("bf16-optimizer", into) for into in (*OTHER_OPTIMIZERS, "zero1-deepspeed+universal")),
    ("bf16-optimizer", "zero3+universal"),
]
ELASTIC = [("zero1-elastic", into) for into in ("zero1-elastic", "zero1")]
TO_ONE = [
    ("zero2-cpu", "zero2+universal"),
    ("zero2-cpu+1", "zero2-cpu+universal"),
    ("zero2-cpu+1", "zero3-cpu+universal"),
    ("zero3-cpu", "zero2+universal"),
    ("zero3-cpu", "zero3+universal"),
    ("accelerate_universal", "zero3+universal"),
    ("experts", "experts"),
    ("zero0-bf16", "zero0-bf16"),
    ("zero0[1]", "zero0-bf16"),
    ("zero0_1_", "zero0-bf16"),
]
FROM_FOUR = [("zero2-of-4", "zero2+universal"), ("zero3-of-4", "zero3+universal")]
OF_FOUR = [("zero2-of-4", "zero2"), ("zero3-of-4", "zero3")]
TO_FOUR = [("zero2", "zero2+universal"), ("zero3", "zero3+universal"), ("zero2", "zero3+universal")]


@pytest.fixture(scope="module")
def bed(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of the checkpoints, some of them with a universal one beside them."""
    folder = tmp_path_factory.mktemp("bed")
    for name in ("zero2", "zero3"):
        shutil.copytree(saved / f"{name}-cpu", folder / f"{name}-cpu")
    shutil.copytree(
        saved / "zero2-cpu", folder / "zero2-cpu+1"
    )  # no pattern that DeepSpeed makes of it matches
    shutil.copytree(saved / "zero3", folder / "zero3-to-cpu")
    shutil.copytree(saved / "zero3-cpu", folder / "zero3-nvme")
    put_on_nvme(folder / "zero3-nvme" / "global_step3")
    for name in (*NAMES, "zero2-dealt-out", "bf16-optimizer", "zero1-elastic", "accelerate"):
        shutil.copytree(saved / name, folder / name)
    shutil.copytree(saved / "zero0-bf16", folder / "zero0[1]")
    (folder / "zero0_1_").symlink_to(folder / "zero0[1]")
    universal = (*CONVERTED, "zero2-dealt-out", "bf16-optimizer")
    commands: list[tuple[str, ...]] = [("universal", name) for name in universal]
    commands += [("reshard", name, *options) for name, options in RESHARDED.items()]
    commands += [("export", str(saved / "experts"), "experts")]
    convert(folder, commands)
    return folder


def convert(folder: Path, commands: list[tuple[str, ...]]) -> None:
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda command: zlaunch("checkpoint", *command, cwd=folder), commands))
    assert [result.err for result in results if result.status] == []


@pytest.fixture(scope="module")
def answers(bed: Path) -> Answers:
    """What DeepSpeed says with two ranks."""
    return load(2, [*AS_IT_IS, *UNIVERSAL, *OFFLOADED, *ORDERED, *ELASTIC, ("accelerate", "zero2")], bed)


@pytest.fixture(scope="module")
def to_one(bed: Path) -> Answers:
    """What it says with one rank of what other ranks have saved, and of what no pattern finds."""
    return load(1, TO_ONE, bed)


@pytest.fixture(scope="module")
def all_of_one(bed: Path) -> Answers:
    """What it says with one rank of what it says with two ranks."""
    return load(1, [*AS_IT_IS, *UNIVERSAL], bed)


@pytest.fixture(scope="module")
def of_four(bed: Path) -> Answers:
    """What it says of checkpoints of four ranks, and with four ranks."""
    run_ranks(4, "tests.checkpoint.save", bed / "of-4", "zero2", "zero3")
    for name in ("zero2", "zero3"):
        (bed / "of-4" / name).rename(bed / f"{name}-of-4")
    convert(bed, [("reshard", f"{name}-of-4", "--ranks", "2") for name in ("zero2", "zero3")])
    return {**load(2, FROM_FOUR, bed), **load(4, [*OF_FOUR, *TO_FOUR], bed)}


BY_RANKS = [(2, "answers"), pytest.param(1, "all_of_one", marks=pytest.mark.full)]


def asked(folder: Path, name: str, ranks: int) -> ResumeWay:
    zero = ENGINES[name]["zero_optimization"]
    offload = zero.get("offload_optimizer", {}).get("device", "none")
    target = ResumeTarget(ranks, zero["stage"], "bf16" if "bf16" in ENGINES[name] else "fp32", offload)
    return can_resume(summarize(checkpoint_at(folder)), target).way


@pytest.mark.parametrize(("ranks", "told"), BY_RANKS)
def test_what_is_said_to_load_as_it_is_does_and_nothing_else(
    ranks: int, told: str, saved: Path, request: pytest.FixtureRequest
) -> None:
    answers = request.getfixturevalue(told)
    pairs = [(name, into, ranks) for name, into in itertools.product(NAMES, NAMES)]
    pairs += [(name, into, ranks) for name, into in OTHER_PLACES if ranks == 2]
    real = {pair: isinstance(answers[pair], list) for pair in pairs}
    ours = {(name, into, ranks): asked(saved / name, into, ranks) for name, into, ranks in pairs}
    # A frozen parameter of stage 0 in another precision is not converted; that is no matter of its files.
    assert {pair: answers[pair] for pair in pairs if (ours[pair] is ResumeWay.AS_IT_IS) != real[pair]} == {}


@pytest.mark.parametrize(("ranks", "told"), BY_RANKS)
def test_what_is_said_to_load_once_it_is_universal_does_and_only_weights_are_left_of_the_rest(
    ranks: int, told: str, bed: Path, saved: Path, request: pytest.FixtureRequest
) -> None:
    answers = request.getfixturevalue(told)
    for name, into in itertools.product(CONVERTED, NAMES):
        way, answer = asked(saved / name, into, ranks), answers[name, f"{into}+universal", ranks]
        assert isinstance(answer, list) == (way is not ResumeWay.WEIGHTS), (name, into, ranks, answer)
        converted = asked(bed / name / "global_step3_universal", into, ranks)
        assert (converted is ResumeWay.AS_IT_IS) == isinstance(answer, list), (name, into, ranks)


def before(answers: Answers) -> dict[str, Any]:
    """The next losses of each checkpoint that is not converted."""
    same = ("zero2", "zero2-fp32", "zero3", "zero2-cpu", "zero3-cpu", "zero2-dealt-out", "bf16-optimizer")
    losses = {name: answers[name, name, 2] for name in same}
    losses["accelerate_universal"] = answers["accelerate", "zero2", 2]
    return {
        **losses,
        "zero3-to-cpu": losses["zero3"],
        "zero3-nvme": losses["zero3-cpu"],
        "zero2-cpu+1": losses["zero2-cpu"],
    }


@pytest.mark.parametrize(
    "told",
    ["answers", "to_one", *(pytest.param(one, marks=pytest.mark.full) for one in ("all_of_one", "of_four"))],
)
def test_the_next_losses_are_the_same_on_other_ranks_at_other_stages_and_in_other_precision(
    told: str, answers: Answers, request: pytest.FixtureRequest
) -> None:
    after = request.getfixturevalue(told)
    as_it_was = before(answers)
    if told == "of_four":
        as_it_was |= {name: after[name, into, 4] for name, into in OF_FOUR}
    wrong = {}
    for (name, into, ranks), losses in after.items():
        if into.endswith("+universal") and into not in LOADED_WRONG:
            expected = [pytest.approx(one, rel=LATER) for one in as_it_was[name]]
            expected[0] = pytest.approx(as_it_was[name][0], rel=FIRST)
            if losses != expected:
                wrong[name, into, ranks] = losses, as_it_was[name]
    assert wrong == {}


def test_all_next_losses_are_equal_if_only_the_conversion_is_different(answers: Answers) -> None:
    assert answers["zero2", "zero2+universal", 2] == answers["zero2", "zero2", 2]
    assert answers["zero2-fp32", "zero2-fp32+universal", 2] == answers["zero2-fp32", "zero2-fp32", 2]
    assert answers["zero3-to-cpu", "zero3-cpu+universal", 2] == answers["zero3-cpu", "zero3-cpu", 2]
    assert answers["zero3-nvme", "zero3-cpu+universal", 2] == answers["zero3-cpu", "zero3-cpu", 2]


def test_numbers_that_would_be_loaded_in_another_order_are_refused(bed: Path, answers: Answers) -> None:
    for name, into, universal in itertools.product(ORDERS, ORDERS, ("", "+universal")):
        folder = bed / name / ("global_step3_universal" if universal else "global_step3")
        target = ResumeTarget(2, 2, "bf16", "none", is_round_robin=into == "zero2-dealt-out")
        way = can_resume(summarize(checkpoint_at(folder)), target).way
        is_right = answers[name, f"{into}{universal}", 2] == answers[name, name, 2]
        assert way is (ResumeWay.AS_IT_IS if is_right else ResumeWay.OTHER_KEY), (name, into, universal)


def test_what_bf16_optimizer_saved_loads_as_it_is_and_converted(saved: Path, answers: Answers) -> None:
    as_it_was = answers["bf16-optimizer", "bf16-optimizer", 2]
    assert answers["bf16-optimizer", "bf16-optimizer+universal", 2] == as_it_was
    assert answers["bf16-optimizer", "zero1", 2] == as_it_was
    assert asked(saved / "bf16-optimizer", "zero1", 2) is ResumeWay.AS_IT_IS


def test_an_elastic_checkpoint_that_deepspeed_cannot_load_is_refused(saved: Path, answers: Answers) -> None:
    for into in ("zero1-elastic", "zero1"):
        assert isinstance(answers["zero1-elastic", into, 2], str)
        assert asked(saved / "zero1-elastic", into, 2) is ResumeWay.WEIGHTS


def test_an_optimizer_whose_first_step_would_fail_is_refused(saved: Path, answers: Answers) -> None:
    found = summarize(checkpoint_at(saved / "bf16-optimizer"))
    for name, kind, way in (
        ("sgd", OptimizerKind.SGD, ResumeWay.WEIGHTS),
        ("rmsprop", OptimizerKind.RMSPROP, ResumeWay.WEIGHTS),
        ("deepspeed", OptimizerKind.DEEPSPEED_ADAM, ResumeWay.UNIVERSAL),
    ):
        assert str(answers["bf16-optimizer", f"zero1-{name}", 2]).startswith("KeyError"), name
        assert can_resume(found, ResumeTarget(2, optimizer=kind)).way is way


def test_a_conversion_with_other_weights_is_deleted(bed: Path, tmp_path: Path) -> None:
    import torch

    folder = Path(shutil.copytree(bed / "zero2-dealt-out", tmp_path / "saved"))
    converted = folder / "global_step3_universal"
    file = converted / "zero" / "first.weight" / "fp32.pt"
    whole = torch.load(file, weights_only=False)
    whole["param"].data[3, 3] += 1
    torch.save(whole, file)
    again = zlaunch("checkpoint", "universal", folder, cwd=tmp_path)
    assert (again.status, "`first.weight` has other numbers" in " ".join(again.err.split())) == (2, True)
    shutil.rmtree(converted)
    for model in folder.rglob("mp_rank_00_model_states.pt"):  # DeepSpeed's order is then taken for right
        state = torch.load(model, weights_only=False)
        state["ds_config"]["zero_optimization"]["round_robin_gradients"] = False
        torch.save(state, model)
    result = zlaunch("checkpoint", "universal", folder, cwd=tmp_path)
    assert (result.status, "has other numbers" in " ".join(result.err.split())) == (69, True), result.err
    assert not converted.exists()


def test_exported_experts_of_several_ranks_answer_in_one_as_they_did(saved: Path, to_one: Answers) -> None:
    live = json.loads((saved / "experts-answer.json").read_text())
    assert all(live)
    assert to_one["experts", "experts", 1] == pytest.approx(live, rel=FIRST, abs=1e-3)


def test_a_path_that_deepspeed_takes_for_a_pattern_is_refused_with_a_name_that_it_reads(
    bed: Path, to_one: Answers, tmp_path: Path
) -> None:
    assert isinstance(to_one["zero0[1]", "zero0-bf16", 1], str)
    assert to_one["zero0_1_", "zero0-bf16", 1] == to_one["zero0-bf16", "zero0-bf16", 1]
    base = Path(shutil.copytree(bed / "zero0-bf16", tmp_path / "lr[1]" / "zero0"))
    result = zlaunch("checkpoint", "can-resume", base, cwd=tmp_path)
    assert result.status == 65
    assert zlaunch("checkpoint", "can-resume", "zero0", cwd=base.parent).status == 0  # the path that is given
    (command,) = re.findall("`(mv .*?)`", " ".join(result.out.split()))
    assert run("sh", "-c", command, cwd=tmp_path).status == 0
    assert "rename it" not in zlaunch("checkpoint", "verify", tmp_path / "lr_1_", cwd=tmp_path).err
    assert zlaunch("checkpoint", "can-resume", tmp_path / "lr_1_" / "zero0", cwd=tmp_path).status == 0


def test_the_command_says_what_to_do(saved: Path, tmp_path: Path) -> None:
    folder = saved / "zero2"
    assert zlaunch("checkpoint", "can-resume", folder, cwd=tmp_path).status == 0
    other = zlaunch("checkpoint", "can-resume", folder, "--ranks", "4", cwd=tmp_path)
    assert other.status == 65
    assert "its optimizer is partitioned for 2 ranks, not for 4" in other.out
    assert "--ranks 4` converts it" in " ".join(other.out.split())
    for stage, device, way in ((3, "cpu", "universal"), (2, "none", "as it is"), (3, "nvme", "weights")):
        zero = {"stage": stage, "offload_optimizer": {"device": device}}
        (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}))
        result = zlaunch("checkpoint", "can-resume", folder, "--ds-config", "ds.json", "--json", cwd=tmp_path)
        assert json.loads(result.out)["way"] == way


LOOP = """
import argparse, os, deepspeed, torch
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
engine, *_ = deepspeed.initialize(args=parser.parse_args(), model=torch.nn.Linear(2, 2))
engine.load_checkpoint(os.environ["ZLAUNCH_RESUME"])
"""
ROUND_ROBIN = {"zero_optimization": {"stage": 2, "round_robin_gradients": True}}


@pytest.mark.parametrize(
    ("name", "config", "is_loaded"),
    [
        ("zero2", {"optimizer": {"type": "Adam", "params": {"torch_adam": True}}}, True),
        ("zero2", {"optimizer": {"type": "Adam"}}, False),
        ("zero2", ROUND_ROBIN, False),
        ("zero2", {**ROUND_ROBIN, "data_types": {"grad_accum_dtype": "fp32"}}, True),
    ],
)
def test_a_ds_config_is_judged_as_train_judges_it(
    name: str, config: dict[str, Any], is_loaded: bool, saved: Path, tmp_path: Path
) -> None:
    whole = {
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
        "train_micro_batch_size_per_gpu": 2,
        **config,
    }
    (tmp_path / "ds.json").write_text(json.dumps(whole))
    (tmp_path / "loop.py").write_text(LOOP)
    asked = zlaunch("checkpoint", "can-resume", saved / name, "--ds-config", "ds.json", cwd=tmp_path)
    words = ("--gpus", 2, "--ds-config", "ds.json", "--resume", saved / name, "--dry-run")
    trained = zlaunch("train", "loop.py", *words, cwd=tmp_path)
    assert (asked.status, trained.status) == ((0, 0) if is_loaded else (65, 65)), (asked, trained)


def test_an_offload_that_train_refuses_at_a_stage_is_refused_in_the_same_words(
    saved: Path, tmp_path: Path
) -> None:
    zero = {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "DIR"}}
    (tmp_path / "nvme.json").write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}))
    for options in ("--stage 2 --offload nvme", "--stage 1 --offload nvme"):
        words = options.split()
        trained = zlaunch("train", "--gpus", 2, "--nvme", ".", "--dry-run", *words, cwd=tmp_path)
        asked = zlaunch("checkpoint", "can-resume", saved / "zero2-cpu", *words, cwd=tmp_path)
        assert (asked.status, asked.err) == (65, trained.err)
    assert zlaunch("checkpoint", "reshard", saved / "zero2-cpu", *words, cwd=tmp_path).err == asked.err
    # without a GPU, neither refuses this
    stage_0 = ("--stage", 0, "--offload", "cpu")
    trained = zlaunch("train", "--gpus", 2, "--dry-run", *stage_0, cwd=tmp_path)
    asked = zlaunch("checkpoint", "can-resume", saved / "zero2-cpu", *stage_0, cwd=tmp_path)
    assert not any("[offload-needs-partitioning]" in result.err for result in (trained, asked))
    implied = zlaunch("checkpoint", "can-resume", saved / "zero2", "--offload", "nvme", cwd=tmp_path)
    assert "[nvme-needs-stage-3]" in implied.err
    # in a file it is only a warning: DeepSpeed takes it for the CPU
    given = ("--ds-config", "nvme.json", "--ranks", 4)
    result = zlaunch("checkpoint", "can-resume", saved / "zero2-cpu", *given, cwd=tmp_path)
    assert "--stage 2 --precision bf16 --offload cpu` converts it" in " ".join(result.out.split())


def test_a_trainers_checkpoint_without_an_engine_is_not_one_to_resume_from_with_deepspeed(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "checkpoint-4"
    folder.mkdir()
    (folder / "trainer_state.json").write_text('{"global_step": 4}')
    safetensors({"a": T((1,))}, folder / "model.safetensors")
    result = zlaunch("checkpoint", "can-resume", folder, cwd=tmp_path)
    assert (result.status, "no files of DeepSpeed's engine" in result.out) == (65, True)


def test_a_job_with_its_optimizer_on_nvme_is_told_to_resume_with_the_cpu(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied("zero3-cpu") / "global_step3"
    nearest = can_resume(summarize(checkpoint_at(folder)), ResumeTarget(offload="nvme")).nearest
    assert nearest is not None
    assert nearest.target == ResumeTarget(offload="cpu")
    put_on_nvme(folder)
    result = zlaunch("checkpoint", "can-resume", folder, cwd=tmp_path)
    said = " ".join(result.out.split())
    assert result.status == 65
    assert (
        "DeepSpeed loads no moments of Adam to NVMe, and not all weights a job with `--offload cpu` can resume: `zlaunch"
        in said
    )


def test_nothing_is_written_where_nothing_has_to_be_converted_or_can_be(saved: Path, tmp_path: Path) -> None:
    for name, options, status in (
        ("zero2", ("--ranks", 2, "--stage", 1), 0),
        ("zero2", ("--stage", 0), 65),
        ("zero0", ("--ranks", 4), 0),
        ("dcp", ("--ranks", 4), 65),
    ):
        folder = shutil.copytree(saved / name, tmp_path / f"{name}{status}")
        before = sorted(folder.rglob("*"))
        result = zlaunch("checkpoint", "reshard", folder, *options, cwd=tmp_path)
        assert (result.status, sorted(folder.rglob("*"))) == (status, before), result.err


def test_an_optimizer_that_is_not_adam_is_not_converted(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    import torch

    folder = copied("zero2")
    for file in folder.glob("*/*optim_states.pt"):
        state = torch.load(file, weights_only=False)
        for one in state["optimizer_state_dict"]["base_optimizer_state"]["state"].values():
            one["momentum_buffer"] = one.pop("exp_avg")
        torch.save(state, file)
    assert zlaunch("checkpoint", "can-resume", folder, cwd=tmp_path).status == 0
    result = zlaunch("checkpoint", "reshard", folder, "--ranks", 1, cwd=tmp_path)
    assert (result.status, "no moments of Adam" in result.err) == (65, True), result.err
    result = zlaunch("checkpoint", "universal", folder, cwd=tmp_path)
    assert (result.status, "no moments of Adam" in result.err) == (69, True), result.err


def test_a_universal_checkpoint_has_a_small_state_keeps_the_loss_scale_and_says_what_it_lacks(
    bed: Path, tmp_path: Path
) -> None:
    import torch
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    folder = bed / "zero3" / "global_step3_universal"
    shared = Archive(folder / "zero" / "optimizer_state.pt").tensors()
    assert sum(tensor.numel for tensor in shared) <= 1  # the step
    file = folder / "zero" / "first.weight" / "fp32.pt"
    assert Archive(file).value["param"].shape == (33, 7)
    trainer = trainers(tmp_path, 3, bed / "zero2")
    shutil.rmtree(trainer / "global_step3_universal")
    for shard in trainer.glob("*/*_optim_states.pt"):
        state = torch.load(shard, weights_only=False)
        scaler = DynamicLossScaler(4096, 7, 1, 2, consecutive_hysteresis=True)
        state["optimizer_state_dict"].update(loss_scaler=scaler, dynamic_loss_scale=True)
        torch.save(state, shard)
    result = zlaunch("checkpoint", "universal", trainer, "else", cwd=tmp_path)
    assert result.status == 0, result.err
    said = " ".join(result.err.split())
    assert "`zlaunch train --resume else --set checkpoint.load_universal=true …` resumes from it" in said
    assert "3 tensors, such as `scale`, `frozen.weight`, keep the values that the script gives them" in said
    file = tmp_path / "else" / "global_step3_universal" / "zero" / "optimizer_state.pt"
    assert vars(torch.load(file, weights_only=False)["loss_scaler"]) == vars(scaler)
    assert (tmp_path / "else" / "trainer_state.json").is_file()
    assert (
        zlaunch("checkpoint", "verify", "else", cwd=tmp_path).out == "else/global_step3_universal: complete\n"
    )


def test_what_was_converted_before_is_not_converted_again(bed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bed / "zero2", tmp_path / "zero2"))
    before = sorted(folder.rglob("*"))
    for verb, status in (("can-resume", 65), ("reshard", 0)):
        result = zlaunch("checkpoint", verb, "zero2", "--ranks", "4", cwd=tmp_path)
        assert result.status == status
        assert "but zero2/global_step3_universal can be:" in result.out + result.err
    assert sorted(folder.rglob("*")) == before
    (folder / "latest_universal").write_text("global_step2_universal")  # DeepSpeed would load that
    result = zlaunch("checkpoint", "can-resume", "zero2", "--ranks", "4", cwd=tmp_path)
    assert "zlaunch checkpoint reshard zero2/global_step3 --ranks 4" in " ".join(result.out.split())
    result = zlaunch("checkpoint", "reshard", "zero2", "--ranks", "4", cwd=tmp_path)
    assert result.status == 0, result.err
    assert "zero2/global_step3_universal: was converted before" in result.err
    assert (folder / "latest_universal").read_text() == "global_step3_universal"
    assert sorted(folder.rglob("*")) == before
    (folder / "global_step3_universal" / "zero" / "last.weight" / "fp32.pt").unlink()
    result = zlaunch("checkpoint", "reshard", "zero2", "--ranks", "4", cwd=tmp_path)
    assert (result.status, "fp32.pt: it is missing" in result.err) == (2, True)
    assert "`rm -r zero2/global_step3_universal`" in result.err


def test_the_step_has_the_form_of_the_adam_that_saved_it_or_the_one_that_is_asked_for(
    bed: Path, tmp_path: Path
) -> None:
    assert has_int_steps(bed / "zero2" / "global_step3_universal") is False
    folder = Path(shutil.copytree(bed / "zero2-cpu+1", tmp_path / "saved"))
    assert has_int_steps(folder / "global_step3_universal") is True
    result = zlaunch("checkpoint", "reshard", folder, "--stage", 3, "--offload", "none", cwd=tmp_path)
    assert result.status == 0, result.err
    assert has_int_steps(folder / "global_step3_universal") is False


def test_experts_of_other_ranks_are_not_merged(saved: Path, tmp_path: Path) -> None:
    result = zlaunch("checkpoint", "can-resume", saved / "experts", "--ranks", 4, cwd=tmp_path)
    assert (result.status, "its ranks trained different experts" in result.out) == (65, True)
    result = zlaunch("checkpoint", "universal", saved / "experts", cwd=tmp_path)
    assert (result.status, "its ranks trained different experts" in result.err) == (69, True)


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_the_disk_that_a_conversion_takes_is_known_before(name: str, bed: Path, tmp_path: Path) -> None:
    engine = bed / name / "global_step3"
    need = disk_need_of(checkpoint_at(engine))
    words = (
        "--input_folder",
        engine,
        "--output_folder",
        "out",
        "--inject_missing_state",
        "--keep_temp_folder",
    )
    argv = (sys.executable, "-m", CONVERSION, *words)
    assert run(*argv, cwd=tmp_path, env={"DS_ACCELERATOR": "cpu"}).status == 0
    written = [file for file in tmp_path.rglob("*") if not file.match("*_model_states.pt")]  # these come last
    taken = sum(file.lstat().st_blocks * 512 for file in written)
    assert need.certain <= taken <= need.peak <= 1.5 * taken


def test_a_conversion_writes_into_no_directory_that_exists(bed: Path, tmp_path: Path) -> None:
    five, six = (trainers(tmp_path, step, bed / "zero1") for step in (5, 6))
    before = {file: file.read_bytes() for file in six.rglob("*") if file.is_file()}
    result = zlaunch("checkpoint", "universal", five, six, cwd=tmp_path)
    assert (result.status, "exists already" in result.err) == (2, True)
    assert {file: file.read_bytes() for file in six.rglob("*") if file.is_file()} == before


def test_a_conversion_of_an_engine_has_nothing_else_in_its_directory(bed: Path, tmp_path: Path) -> None:
    result = zlaunch("checkpoint", "universal", bed / "zero1", "other", cwd=tmp_path)
    assert result.status == 0, result.err
    names = sorted(one.name for one in (tmp_path / "other").iterdir())
    assert names == ["global_step3_universal", "latest_universal"]
    assert zlaunch("checkpoint", "can-resume", "other", "--ranks", "4", cwd=tmp_path).status == 0


def test_a_damaged_model_is_refused_before_a_conversion(bed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bed / "zero1", tmp_path / "zero1"))
    model = next(folder.glob("*/mp_rank_00_model_states.pt"))
    model.write_bytes(model.read_bytes()[:-100])
    result = zlaunch("checkpoint", "universal", folder, cwd=tmp_path)
    assert result.status == 65
    assert "mp_rank_00_model_states.pt" in result.err
    assert "Traceback" not in result.err


def test_a_conversion_that_fails_leaves_nothing(bed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bed / "zero1", tmp_path / "zero1"))
    before = sorted(folder.rglob("*"))
    broken = tmp_path / "packages" / "deepspeed"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise OSError('this package is broken')\n")
    environment = {"PYTHONPATH": os.pathsep.join([str(broken.parent), str(ROOT)])}
    result = zlaunch("checkpoint", "universal", folder, cwd=tmp_path, env=environment)
    assert result.status == 69
    assert "conversion failed: OSError: this package is broken" in result.err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_a_conversion_that_is_stopped_or_killed_leaves_nothing(
    end: signal.Signals, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied("zero3")
    before = sorted(folder.rglob("*"))
    program = start("checkpoint", "reshard", "zero3", "--stage", 2, cwd=tmp_path, env=ACTIVATED)
    while not any(folder.glob(".*.partial/*/zero")):  # in which DeepSpeed writes its result
        assert program.poll() is None
        time.sleep(0.01)
    program.send_signal(end)
    status = program.wait(60)
    found = zlaunch("checkpoint", "list", "zero3", cwd=tmp_path)
    assert [line.split()[0] for line in found.out.splitlines()[1:]] == ["zero3/global_step3"]
    end_of_cleaning = time.monotonic() + 60 * (end is signal.SIGKILL)  # by the reaper
    # `rglob` fails if a directory is deleted meanwhile
    while any(".partial" in one for one, *_ in os.walk(folder)) and time.monotonic() < end_of_cleaning:
        time.sleep(0.1)
    assert (status, sorted(folder.rglob("*"))) == (130 if end is signal.SIGINT else -9, before)


def test_a_damaged_checkpoint_is_not_converted(bed: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bed / "zero1", tmp_path / "zero1"))
    next(folder.glob("*/*rank_1*")).unlink()
    with pytest.raises(Refused):
        plan_universal(checkpoint_at(folder), None)


def test_what_needs_no_conversion_is_said_to_need_none(bed: Path) -> None:
    with pytest.raises(WrongUsage, match="stage 0, so any number of ranks can load"):
        plan_universal(checkpoint_at(bed / "zero0-bf16"), None)
    with pytest.raises(WrongUsage, match="already universal"):
        plan_universal(checkpoint_at(bed / "zero2" / "global_step3_universal"), None)


def test_a_universal_checkpoint_is_exported_with_what_was_not_trained(bed: Path, tmp_path: Path) -> None:
    from tests.checkpoint.test_export import exported

    as_it_was = exported(bed / "zero2" / "global_step3", tmp_path / "a", "float32")
    converted = exported(bed / "zero2" / "global_step3_universal", tmp_path / "b", "float32")
    assert converted.keys() == as_it_was.keys()
    assert {name for name, one in as_it_was.items() if not one.equal(converted[name])} == set()
