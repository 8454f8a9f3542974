"""Make a universal checkpoint fit stages 1, 2 and 3, and any Adam.

DeepSpeed's conversion writes what a job of the same stage reads. Sources, for 0.19.8:
`load_hp_checkpoint_state_from_checkpoint_dir` in runtime/base_optimizer.py and `load_hp_checkpoint_state` in
checkpoint/universal_checkpoint.py for stages 1 and 2, `load_hp_checkpoint_state_from_checkpoint_dir_stage3`
in runtime/zero/stage3.py, and `_get_ckpt_name` in runtime/engine.py for the name of the model's file.

A Python with torch runs it: `zlaunch.checkpoint.universal_files FOLDER INT_STEPS`; the last is 0, 1 or empty.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zlaunch.checkpoint.engine_files import EngineFiles, ModelFile, engine_files
from zlaunch.checkpoint.torch_file import Archive, BadArchive, Tensor, Unknown

OPTIMIZER = "optimizer_state.pt"
"""In `zero/`: what the parameters of the optimizer have in common."""

_STEP = "step.pt"
_SCALERS = {"loss_scaler", "dynamic_loss_scale"}


def fit_all_stages(folder: Path, int_steps: bool | None) -> None:
    """Rewrite the files of a conversion. Raise BadArchive if they are not what DeepSpeed 0.19 writes.

    `int_steps`: whether the Adam that will load it at stage 3 counts steps in an int, as DeepSpeed's do, or
    in a tensor, as torch's do; None if it is the one that has saved it.
    """
    files = engine_files(folder)
    assert files is not None
    _name_for_all_stages(files)
    model = files.first_model
    try:
        step = _rewrite_optimizer(folder / "zero" / OPTIMIZER, model, int_steps)
        for group in model.shapes:
            for name, shape in group.items():
                _rewrite_parameter(folder / "zero" / name, shape, step)
    except (KeyError, TypeError, ValueError, RuntimeError, StopIteration) as error:
        raise BadArchive(f"its form is unknown ({error})") from None


def _name_for_all_stages(files: EngineFiles) -> None:
    """Stage 3 looks for the file of rank 0, the other stages for one without a rank."""
    for (dp, mp), file in files.model.items():
        if dp in (None, 0):
            name = f"mp_rank_{mp:02}_model_states.pt"
            other = f"zero_pp_rank_0_{name}" if dp is None else name
            try:
                os.link(file, file.with_name(other))
            except OSError:  # a file system without hard links
                shutil.copy2(file, file.with_name(other))


def _rewrite_optimizer(file: Path, model: ModelFile, int_steps: bool | None) -> float:
    """Write what all stages read, and not rank 0's tensors, which every rank would load. Return the step."""
    import torch

    archive = Archive(file)
    state: Mapping[str, Any] = archive.value
    groups = [_plain_members(group) for group in state["param_groups"]]
    saved_step, was_int = _saved_step(archive, file.parent)
    # Stage 3 shares one tensor between all groups, and each of them counts it up. No file prevents that.
    step = _step_value(saved_step, was_int if int_steps is None else int_steps)
    # Stage 3 gives the settings of the first group to all of them: those that differ are left to the job.
    common = {
        key: value for key, value in groups[0].items() if all(group.get(key) == value for group in groups)
    }
    whole = {
        **_plain_members(state),
        **_scaler(state),
        "ds_version": state.get("ds_version") or model.release,
        "param_groups": groups,
        "optimizer_state_dict": {
            "state": {0: {"step": step}},
            "param_groups": [{**common, "params": []}],
        },
    }
    torch.save(whole, file)
    return saved_step


def _step_value(step: float, is_int: bool) -> object:
    import torch

    return int(step) if is_int else torch.tensor(step)


def _step_in(state: Mapping[str, Any]) -> object:
    inner = state.get("optimizer_state_dict")
    return inner["state"][0]["step"] if isinstance(inner, dict) else None


def _saved_step(archive: Archive, zero: Path) -> tuple[float, bool]:
    """Read the step of Adam, and whether it is an int. Below stage 3 it is beside each parameter."""
    step = _step_in(archive.value)
    if step is None:
        archive = Archive(next(zero.glob(f"*/{_STEP}")))
        step = archive.value
    if isinstance(step, Tensor):
        return archive.first(step), False
    return float(str(step)), True


def has_int_steps(folder: Path) -> bool | None:
    """Whether a universal checkpoint has the step of stage 3 in an int; None if that cannot be read."""
    try:
        return isinstance(_step_in(Archive(folder / "zero" / OPTIMIZER).value), int)
    except (BadArchive, OSError, KeyError, TypeError, AttributeError, IndexError):
        return None


def _set_int_steps(folder: Path, int_steps: bool) -> None:
    import torch

    file = folder / "zero" / OPTIMIZER
    whole = torch.load(file, "cpu", weights_only=False)
    state = whole["optimizer_state_dict"]["state"][0]
    state["step"] = _step_value(float(state["step"]), int_steps)
    new = file.with_name(f".{file.name}")
    torch.save(whole, new)
    new.replace(file)


def _scaler(state: Mapping[str, Any]) -> dict[str, Any]:
    """Keep a dynamic loss scale. A static one is the job's: that of bf16 would end the scaling of fp16."""
    scaler = state.get("loss_scaler")
    if not state.get("dynamic_loss_scale") or not isinstance(scaler, Unknown):
        return {}
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    made = DynamicLossScaler(1, 1, 1, 1, consecutive_hysteresis=False)
    made.__dict__.update(_plain_members(scaler.state))
    return {"loss_scaler": made, "dynamic_loss_scale": True}


def _plain_members(value: Any) -> dict[str, Any]:
    return {key: member for key, member in value.items() if key not in _SCALERS and _is_plain(member)}


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _rewrite_parameter(folder: Path, shape: tuple[int, ...], step: float) -> None:
    """Stage 3 reads flat tensors too, the others only dicts with whole shapes, and a step for each.

    Below stage 3, every Adam takes this step as a tensor.
    """
    import torch

    for file in folder.glob("*.pt"):
        value = torch.load(file, "cpu", weights_only=True) if file.name != _STEP else None
        if isinstance(value, torch.Tensor):
            torch.save({"param": value.detach().reshape(shape), "cat_dim": 0}, file)
    if folder.is_dir():
        torch.save(_step_value(step, is_int=False), folder / _STEP)


def main(folder: Path, int_steps: bool | None) -> None:
    """Make a conversion fit all stages, or change the form of its step if it does already."""
    files = engine_files(folder)
    if files is None or not files.fits_all_stages:
        fit_all_stages(folder, int_steps)
    elif int_steps is not None:
        _set_int_steps(folder, int_steps)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), None if not sys.argv[2] else sys.argv[2] == "1")
    except BadArchive as problem:
        sys.exit(f"it wrote files that are not understood: {problem}")
