"""The witness of real training is right where the truth is known, and agrees with another."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.estimate.rehearsal import allocations
from tests.estimate.rehearsal.allocations import MARK, Account, Level


def witness(*phases: Callable[[], Any]) -> Account:
    """Account for functions, each in a phase of its own, named by its number."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile, record_function

    with profile(
        activities=[ProfilerActivity.CPU],
        profile_memory=True,
        experimental_config=_ExperimentalConfig(capture_overload_names=True),
    ) as profiler:
        for number, phase in enumerate(phases):
            with record_function(f"{MARK}{number}"):
                phase()
    return allocations.account(profiler.profiler.kineto_results)


def test_a_tensor_counts_from_its_making_until_nobody_has_it() -> None:
    import torch

    kept: list[torch.Tensor] = []
    account = witness(
        lambda: kept.append(torch.ones(1000)), lambda: kept.append(kept[0] + kept[0]), kept.clear
    )
    assert account.tensors == {"0": Level(4000, 4000), "1": Level(8000, 8000), "2": Level(8000, 0)}


def test_what_a_kernel_takes_for_itself_is_no_tensor() -> None:
    import torch

    lengths = torch.ones(1000, dtype=torch.int32)
    kept: list[torch.Tensor] = []
    account = witness(lambda: kept.append(lengths.cumsum(0, dtype=torch.long)))
    assert account.tensors == {"0": Level(8000, 8000)}
    assert account.everything["0"].peak > 8000
    assert list(account.largest) == ["kernel"]


def test_what_a_composed_operator_makes_on_its_way_is_a_tensor() -> None:
    import torch

    one = torch.ones(1000)
    account = witness(lambda: torch.isfinite(one))  # (one == one) * (one.abs() != inf)
    assert account.tensors == {"0": Level(1000 + 4000 + 1000 + 1000, 0)}


def test_a_boxed_number_is_no_tensor_even_if_autograd_keeps_it() -> None:
    import torch

    weight = torch.ones(1000, requires_grad=True)
    kept: list[torch.Tensor] = []
    account = witness(lambda: kept.append(weight * 0.5))
    assert account.tensors == {"0": Level(4000, 4000)}
    assert account.everything["0"].end == 4000 + 8


def test_a_tensor_of_one_number_is_a_tensor() -> None:
    import torch

    kept: list[torch.Tensor] = []
    account = witness(lambda: kept.append(torch.tensor(0.5)))
    assert account.tensors == {"0": Level(4, 4)}


def test_of_what_is_read_from_a_file_tensors_count_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch, "load", torch.load)
    reader = torch._C.PyTorchFileReader
    monkeypatch.setattr(reader, "get_storage_from_record", reader.get_storage_from_record)
    allocations.mark_reading()
    file, kept = tmp_path / "file", list[Any]()
    torch.save({"long": torch.ones(1000), "one": torch.tensor(0.5), "name": "much more to read" * 10}, file)
    account = witness(lambda: kept.append(torch.load(file)))
    assert account.tensors == {"0": Level(4004, 4004)}
    assert list(account.largest) == ["file"]


def test_a_phase_that_comes_again_goes_on() -> None:
    import torch
    from torch.profiler import record_function

    def phases() -> None:
        with record_function(f"{MARK}again"):
            torch.ones(1000)
        with record_function(f"{MARK}between"):
            kept.append(torch.ones(10))
        with record_function(f"{MARK}again"):
            torch.ones(100)

    kept: list[torch.Tensor] = []
    assert witness(phases).tensors["again"] == Level(4000, 40)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_witness_and_torchs_tracer_of_operators_agree_on_the_peak_of_training(dtype: str) -> None:
    import torch
    from torch.distributed._tools.mem_tracker import MemTracker

    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]:
        layers = [
            torch.nn.Embedding(50, 64),
            torch.nn.Linear(64, 200),
            torch.nn.GELU(),
            torch.nn.Linear(200, 50),
        ]
        model = torch.nn.Sequential(*layers).to(getattr(torch, dtype))
        return model, torch.optim.AdamW(model.parameters(), foreach=False), torch.zeros(256, dtype=torch.long)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> None:
        torch.nn.functional.cross_entropy(model(ids).float(), ids).backward()
        optimizer.step()

    gc.collect()
    model, _, ids = made = make()
    before = sum(p.numel() * p.element_size() for p in model.parameters()) + ids.numel() * 8
    tracker = MemTracker()
    tracker.track_external(*made)
    with tracker:
        train(*made)
    tracked = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    made = make()
    assert before + witness(lambda: train(*made)).tensors["0"].peak == tracked
