"""What `can-resume` says to type, typed."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.swapping import put_on_nvme
from tests.running import zlaunch
from zlaunch.resume.fit import ResumeWay

pytestmark = pytest.mark.job

Change = Callable[[Path], object]


def as_it_is(tag: Path) -> None:
    """Leave a checkpoint as it was saved."""


def with_momentum(tag: Path) -> None:
    """Give the optimizer the states of SGD."""
    import torch

    for file in tag.glob("*optim_states.pt"):
        state = torch.load(file, weights_only=False)
        for one in state["optimizer_state_dict"]["base_optimizer_state"]["state"].values():
            one["momentum_buffer"] = one.pop("exp_avg")
        torch.save(state, file)


def cut_in_an_unknown_way(tag: Path) -> None:
    import torch

    for file in tag.glob("*model_states.pt"):
        state = torch.load(file, weights_only=False)
        del state["universal_checkpoint_info"]
        torch.save(state, file)


def without_a_shard(tag: Path) -> None:
    next(tag.glob("*rank_1*optim*")).unlink()


CASES: dict[str, tuple[str, Change, str, ResumeWay, str]] = {
    "other ranks": ("zero2", as_it_is, "--ranks 4", ResumeWay.UNIVERSAL, ""),
    "stage 0": ("zero2", as_it_is, "--stage 0", ResumeWay.WEIGHTS, "--stage 2"),
    "from stage 0": ("zero0", as_it_is, "--stage 2", ResumeWay.WEIGHTS, "--stage 0"),
    "stage 0 and other ranks": ("zero3", as_it_is, "--stage 0 --ranks 4", ResumeWay.WEIGHTS, "--stage 3"),
    "offload": ("zero2", as_it_is, "--offload cpu", ResumeWay.UNIVERSAL, ""),
    "to NVMe": ("zero3-cpu", as_it_is, "--offload nvme", ResumeWay.WEIGHTS, "--offload cpu"),
    "from NVMe": ("zero3-cpu", put_on_nvme, "--offload none", ResumeWay.UNIVERSAL, ""),
    "from NVMe to stage 0": (
        *("zero3-cpu", put_on_nvme, "--stage 0"),
        *(ResumeWay.WEIGHTS, "--stage 3 --offload cpu"),
    ),
    "another optimizer": (
        *("zero2", with_momentum, "--ranks 1 --precision fp32"),
        *(ResumeWay.WEIGHTS, "--ranks 2 --precision bf16"),
    ),
    "experts": ("experts", as_it_is, "--ranks 4", ResumeWay.WEIGHTS, "--ranks 2"),
    "experts at stage 3": (
        "experts",
        as_it_is,
        "--stage 3 --ranks 4",
        ResumeWay.WEIGHTS,
        "--ranks 2 --stage 2",
    ),
    "a pipeline": ("pipeline", as_it_is, "--ranks 4", ResumeWay.WEIGHTS, "--ranks 2"),
    "tensor parallelism": ("tensor-parallel", as_it_is, "--ranks 4", ResumeWay.UNIVERSAL, ""),
    "parallelism of an unknown kind": (
        *("tensor-parallel", cut_in_an_unknown_way, "--ranks 4"),
        *(ResumeWay.WEIGHTS, "--ranks 2"),
    ),
    "elastic": ("zero1-elastic", as_it_is, "--ranks 2", ResumeWay.WEIGHTS, ""),
    "elastic and other ranks": ("zero1-elastic", as_it_is, "--ranks 1", ResumeWay.WEIGHTS, ""),
    "BF16_Optimizer": ("bf16-optimizer", as_it_is, "--ranks 1", ResumeWay.UNIVERSAL, ""),
    "damage": ("zero2", without_a_shard, "--ranks 2", ResumeWay.REPAIR, ""),
}
"""Checkpoint, what is done to it, the job, what fits it, and the nearest job that can resume."""


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_can_be_typed(case: str, copied: Callable[[str], Path], tmp_path: Path) -> None:
    name, change, options, way, nearest = CASES[case]
    (tag,) = copied(name).glob("global_step*")
    change(tag)
    assert asked(tag, options, tmp_path) is way
    said = zlaunch("checkpoint", "can-resume", tag, *options.split(), cwd=tmp_path).out
    said = " ".join(said.split())
    assert re.findall("a job with `(.*?)` can resume", said) == ([nearest] if nearest else [])
    if nearest:
        assert asked(tag, f"{options} {nearest}", tmp_path) in (ResumeWay.AS_IT_IS, ResumeWay.UNIVERSAL)
    for command in re.findall("`zlaunch (checkpoint .*?)`", said):
        verb, *words = command.split()[1:]
        if verb == "reshard":  # tests of conversions run it
            assert asked(tag, " ".join(words[1:]), tmp_path) is ResumeWay.UNIVERSAL
        else:
            result = zlaunch("checkpoint", verb, *words, cwd=tmp_path)
            assert result.status == 0, result.err


def asked(tag: Path, options: str, folder: Path) -> ResumeWay:
    result = zlaunch("checkpoint", "can-resume", tag, *options.split(), "--json", cwd=folder)
    assert result.status in (0, 65), result.err
    return ResumeWay(json.loads(result.out)["way"])
