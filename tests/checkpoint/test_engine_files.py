"""Files of the engine whose structure is not what DeepSpeed writes: whatever is odd is left out or a problem."""

from pathlib import Path
from typing import Any

import pytest

from bench.cli_fuzz import ESCAPE, MODEL_STATES, OPTIM_STATES, torch_file
from zlaunch.checkpoint.find import checkpoint_at
from zlaunch.checkpoint.summary import Summary, summarize
from zlaunch.dsconfig.text.document import put


def summary(folder: Path, model: Any = MODEL_STATES, optim: Any = OPTIM_STATES) -> Summary:
    tag = folder / "global_step3"
    tag.mkdir()
    (folder / "latest").write_text("global_step3")
    (tag / "mp_rank_00_model_states.pt").write_bytes(torch_file(model))
    for rank in range(2):
        (tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(torch_file(optim))
    return summarize(checkpoint_at(tag))


def changed(state: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    copy = {key: dict(one) if isinstance(one, dict) else one for key, one in state.items()}
    put(copy, tuple(path.split("/")), value)
    return copy


def test_what_deepspeed_writes_has_no_problem(tmp_path: Path) -> None:
    found = summary(tmp_path)
    assert (found.problems, found.step, found.stage, found.ranks) == ((), 3, 2, 2)
    assert found.obstacle is None


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("param_shapes", 0.5),
        ("param_shapes", [{"first.weight": ["x", {}]}, 3]),
        ("param_shapes", [{"other.weight": (4,)}]),
        ("buffer_names", [{}, []]),
        ("shared_params", {"a": []}),
        ("frozen_param_shapes", {"a": 1.5}),
        ("module", []),
        ("module", {"first.weight": {"@tensor": [2, 3]}}),
        ("module", {"first.weight": {"@tensor": "many"}}),
        ("dp_world_size", 1 << 63),
        ("global_steps", {}),
        ("ds_config", 3),
    ],
)
def test_an_odd_model_is_left_out_or_a_problem(path: str, value: object, tmp_path: Path) -> None:
    assert summary(tmp_path, model=changed(MODEL_STATES, path, value)).release in ("0.19.8", None)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("optimizer_state_dict/partition_count", [1 << 63]),
        ("optimizer_state_dict/partition_count", {}),
        ("optimizer_state_dict/single_partition_of_fp32_groups", None),
        ("optimizer_state_dict/param_alignment_paddings", [1, ["x"]]),
        ("optimizer_state_dict/base_optimizer_state", {"state": {"0": {"step": 10**400}}}),
        ("optimizer_state_dict/zero_stage", "two"),
        ("optimizer_state_dict", []),
    ],
)
def test_an_odd_optimizer_is_left_out_or_a_problem(path: str, value: object, tmp_path: Path) -> None:
    assert summary(tmp_path, optim=changed(OPTIM_STATES, path, value)).step == 3


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("module", {ESCAPE: {"@tensor": [4]}}),
        ("module", {"..": {"@tensor": [4]}}),
        ("module", {"": {"@tensor": [4]}}),
        ("param_shapes", [{"/etc/x": (4,)}]),
        ("frozen_param_shapes", {"a/b": (4,)}),
    ],
)
def test_a_parameter_whose_name_is_a_path_is_not_converted(path: str, value: object, tmp_path: Path) -> None:
    found = summary(tmp_path, model=changed(MODEL_STATES, path, value))
    assert "cannot be its name" in (found.obstacle or "")


def test_a_part_of_a_parameter_whose_name_is_a_path_is_not_converted(tmp_path: Path) -> None:
    parts = [{ESCAPE: {"@object": "deepspeed.utils.tensor_fragment fragment_address", "numel": 2}}]
    optim = changed(OPTIM_STATES, "optimizer_state_dict/param_slice_mappings", parts)
    assert "cannot be its name" in (summary(tmp_path, optim=optim).obstacle or "")
