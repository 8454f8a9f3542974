"""Export a checkpoint of 8 GiB with little memory, and measure what that takes.

    python -m bench.export_memory [DIR] [--gib N]

Needs root, for control groups, and disk space for 1.5 times the checkpoint. Numbers that were exported are
compared with those that were saved.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.memory_groups import memory_groups

GIB = 1 << 30
RANKS, HIDDEN, INNER, VOCABULARY = 2, 2048, 8192, 131_072
BLOCK = 1 << 22


def shapes(nbytes: float) -> dict[str, tuple[int, int]]:
    """Choose the matrices of a model whose optimizer, in fp32 with two moments, has about so many bytes."""
    found = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    layer = 0
    while 12 * sum(rows * columns for rows, columns in found.values()) < nbytes - 12 * VOCABULARY * HIDDEN:
        for name, rows in (("q", HIDDEN), ("k", HIDDEN), ("v", HIDDEN), ("o", HIDDEN)):
            found[f"model.layers.{layer}.self_attn.{name}_proj.weight"] = (rows, HIDDEN)
        for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
            found[f"model.layers.{layer}.mlp.{name}_proj.weight"] = shape
        layer += 1
    return {**found, "lm_head.weight": (VOCABULARY, HIDDEN)}


def numbers(rank: int, count: int) -> Iterator["np.ndarray[tuple[int], np.dtype[np.float32]]"]:
    """Make what a rank has of all parameters, in blocks."""
    random = np.random.default_rng(rank)
    for start in range(0, count, BLOCK):
        yield random.standard_normal(min(BLOCK, count - start), np.float32)


def save(folder: Path, parameters: Mapping[str, tuple[int, int]]) -> None:
    """Write a checkpoint of stage 3, as the engine does; numbers come from a mapped file, not from memory."""
    import torch

    tag = folder / "global_step1"
    tag.mkdir(parents=True)
    count = sum(rows * columns for rows, columns in parameters.values()) // RANKS
    config = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    model = {
        "module": {name: torch.empty(0, dtype=torch.bfloat16) for name in parameters},
        "param_shapes": [{name: torch.Size(shape) for name, shape in parameters.items()}],
        "buffer_names": [],
        "shared_params": {},
        "frozen_param_shapes": None,
        "frozen_param_fragments": None,
        "global_steps": 1,
        "dp_world_size": RANKS,
        "mp_world_size": 1,
        "ds_config": config,
        "ds_version": "0.19.8",
    }
    for rank in range(RANKS):
        flat = folder / "flat"
        with flat.open("wb") as file:
            for block in numbers(rank, count):
                file.write(block.data)
        # Each mapping is a storage of its own, so the same numbers are written three times.
        master, first, second = (torch.from_file(str(flat), shared=True, size=count) for _ in range(3))
        state = {
            "zero_stage": 3,
            "partition_count": RANKS,
            "fp32_flat_groups": [master],
            "optimizer_state_dict": {"state": {0: {"step": 1, "exp_avg": first, "exp_avg_sq": second}}},
        }
        torch.save(model, tag / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        file_name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        whole = {"optimizer_state_dict": state, "ds_config": config, "ds_version": "0.19.8"}
        torch.save(whole, tag / file_name)
        flat.unlink()
    (folder / "latest").write_text("global_step1")


@dataclass(frozen=True)
class Cost:
    """What a program took; sizes in bytes."""

    status: int
    seconds: float
    resident: int
    """Largest resident size, which includes pages of mapped files."""
    anonymous: int
    """Largest resident size without mapped files, as sampled every 50 ms."""


def measured(argv: Sequence[object], limit: int) -> Cost:
    """Run a program in a control group of memory."""
    with memory_groups(limit) as (group,):

        def enter() -> None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

        begin = time.monotonic()
        program = subprocess.Popen(
            [str(word) for word in argv],
            preexec_fn=enter,  # noqa: PLW1509 - no threads here
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "DS_ACCELERATOR": "cpu"},
        )
        most = 0
        while os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            most = max(most, _anonymous(program.pid))
            time.sleep(0.05)
        _, status, usage = os.wait4(program.pid, 0)
        return Cost(os.waitstatus_to_exitcode(status), time.monotonic() - begin, usage.ru_maxrss * 1024, most)


def evict(folder: Path) -> None:
    """Drop the files from the page cache: pages count for the group that reads them first."""
    os.sync()
    for one in folder.rglob("*"):
        if one.is_file():
            with one.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _anonymous(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def differences(out: Path, parameters: Mapping[str, tuple[int, int]], folder: Path) -> int:
    """Count the numbers that differ from those that were saved, rounded by torch."""
    import torch
    from safetensors import safe_open

    opened: list[Any] = [safe_open(file, "pt") for file in out.glob("*.safetensors")]
    files: dict[str, Any] = {}
    for file in opened:
        files |= dict.fromkeys(file.keys(), file)
    count = sum(rows * columns for rows, columns in parameters.values()) // RANKS
    masters = []
    for rank in range(RANKS):
        flat = folder / f"expected{rank}"
        with flat.open("wb") as file:
            for block in numbers(rank, count):
                file.write(block.data)
        masters.append(torch.from_file(str(flat), shared=True, size=count))
    different, start = 0, 0
    for name, (rows, columns) in parameters.items():
        share = rows * columns // RANKS
        ours = files[name].get_tensor(name).reshape(-1)
        for rank, master in enumerate(masters):
            theirs = master[start : start + share].to(torch.bfloat16)
            different += int((ours[rank * share : (rank + 1) * share] != theirs).sum())
        start += share
    return different


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--gib", type=float, default=8.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as made:
        folder = Path(made)
        checkpoint, parameters = folder / "checkpoint", shapes(arguments.gib * GIB)
        save(checkpoint, parameters)
        size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
        print(f"{len(parameters)} tensors, {size / GIB:.2f} GiB\n")
        print("| command | memory limit | ends with | seconds | largest RSS | without mapped files |")
        print("|---|---|---|---|---|---|")
        zlaunch = (sys.executable, "-m", "zlaunch", "checkpoint")
        theirs = (sys.executable, checkpoint.parent / "theirs.py", checkpoint, folder / "theirs")
        (checkpoint.parent / "theirs.py").write_text(
            "import sys\nfrom deepspeed.utils.zero_to_fp32 import *\n"
            "convert_zero_checkpoint_to_fp32_state_dict(sys.argv[1], sys.argv[2], safe_serialization=True)\n"
        )
        out = folder / "out"
        for name, argv, limit in (
            ("`checkpoint export`", (*zlaunch, "export", checkpoint, out), 3 * GIB),
            ("`checkpoint export`", (*zlaunch, "export", checkpoint, folder / "small"), GIB // 4),
            ("`checkpoint verify`", (*zlaunch, "verify", checkpoint), GIB // 4),
            ("`checkpoint verify --full`", (*zlaunch, "verify", checkpoint, "--full"), GIB // 4),
            ("DeepSpeed's `zero_to_fp32`", theirs, 3 * GIB),
        ):
            evict(checkpoint)
            cost = measured(argv, limit)
            mib = [f"{one / (1 << 20):,.0f} MiB" for one in (limit, cost.resident, cost.anonymous)]
            ending = f"signal {-cost.status}" if cost.status < 0 else f"status {cost.status}"
            print(f"| {name} | {mib[0]} | {ending} | {cost.seconds:.1f} | {mib[1]} | {mib[2]} |", flush=True)
        for written in (out, folder / "small"):
            print(f"\n{differences(written, parameters, folder)} numbers differ from those that were saved")
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"the program that made it: {own:,.0f} MiB")


if __name__ == "__main__":
    main()
