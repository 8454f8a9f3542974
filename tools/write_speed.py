"""Write docs/speed.md from the published runs: `python -m tools.write_speed`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path

from tests.estimate.memory.published import Published, published
from zlaunch.estimate.memory import roofline as speeds
from zlaunch.estimate.memory.closed_form import forecast
from zlaunch.estimate.memory.roofline import Range, Roofline, roofline
from zlaunch.units import brief

PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
Compared = tuple[Published, Roofline]

HEAD = """# How well the time of a step is estimated

This page is written by `make docs` from `tests/estimate/memory/published_steps.json`: published times of
training steps, each beside the range that `zlaunch estimate` gives for the same job. An estimate is not told
how fast the network between the hosts is, and neither was it here. Operations are counted by the closed form.

A run is in the list if its source says the GPUs, the model, the stage or its equivalent (FSDP's FULL_SHARD
is counted as stage 3, SHARD_GRAD_OP as 2), the micro-batch, the length, activation checkpointing and a steady
time or throughput; if it is data-parallel alone, without `torch.compile` and FP8; and if zlaunch knows the
GPU. Selective activation checkpointing is counted as none. Of mosaicml/llm-foundry, which has about 170 runs,
those of 1B, 7B, 30B and 70B at 2048 tokens with the fewest and the most GPUs of each table are taken, and 7B
at 8192 and 65536 tokens.

Which runs the speeds were fitted to follows from the hash of a run's id, and was settled before anything was
fitted. After the other half was looked at, one assumption was narrowed: a host with Hopper or later has
400 Gb/s at least, not 100.
"""

LIMITS = """
What to keep in mind:

- Runs of one source resemble each other, and both halves have runs of nearly all sources. The worst speed of
  the network rests on one cluster of V100, that of CPU Adam on one host of A800. Fitted without each source
  in turn, the speeds held 49 of the 62: all but 4 of the others, and none on that cluster.
- No run on a GPU without NVLink and none with NVMe is in the list. There the same shares of the data sheet
  are taken, and for networks 10 to 100 Gb/s a host.
- Attention over 64 Ki tokens was slower in 2023 than the range says; those runs are in the list, and outside.

Left out: deepspeedai/DeepSpeed issues 1635, 2998 and 6695 (reported for being far too slow; 1635 has 22 s
for CPU Adam on 1.35 billion parameters), issue 3901 and pull request 7474 (no micro-batch), OpenBMB/BMTrain
(its unit cannot be right), hpcaitech/ColossalAI (no checkpointing; 70B on 16 GPUs cannot be stage 2 alone),
sunzeyeah/RLHF (iterations and epochs contradict each other), SeanNaren/minGPT (whole epochs only),
SeanNaren/min-LLM (sparse attention).
"""


def page() -> str:
    """Write the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    compared = [_compare(run) for run in published()]
    fitted = [one for one in compared if one[0].is_for_calibration]
    held_out = [one for one in compared if not one[0].is_for_calibration]
    yield HEAD
    yield from _summary(fitted, held_out)
    yield LIMITS
    yield from _speeds()
    sources = list(dict.fromkeys(run.source for run, _ in compared))
    for title, some in (("Held out", held_out), ("Used for calibration", fitted)):
        yield f"\n## {title}\n\n{_HEADER}"
        yield from (_row(one, sources.index(one[0].source) + 1) for one in some)
    yield "\n## Sources\n"
    yield from (f"{number}. {source}" for number, source in enumerate(sources, 1))


def _compare(run: Published) -> Compared:
    job = run.workload
    return run, roofline(job, run.machine, forecast(job).flops)


_HEADER = """| run | job | published | seconds | estimated | inside | source |
|---|---|--:|--:|--:|---|--:|"""


def _offloads(run: Published) -> bool:
    return "offload_optimizer" in run.row


def _has_hosts(run: Published) -> bool:
    return bool(run.row["gpus"] > run.row["per_host"])


KINDS: Mapping[str, Callable[[Published], bool]] = {
    "one host": lambda run: not _has_hosts(run) and not _offloads(run),
    "one host, offloading to the CPU": lambda run: not _has_hosts(run) and _offloads(run),
    "several hosts": _has_hosts,
    "all": lambda _: True,
}

SPEEDS: Mapping[str, tuple[Range, str]] = {
    "matrix products, of the data sheet": (speeds.MATRICES, ""),
    "GPU memory, of the data sheet": (speeds.MEMORY, ""),
    "NVLink or PCIe within a host, of the data sheet": (speeds.LINKS, ""),
    "network between hosts, of its ports": (speeds.NETWORK, ""),
    "PCIe to the host's memory, of the data sheet": (speeds.PCIE, ""),
    "NVMe, of the data sheet": (speeds.NVME, ""),
    "CPU Adam, parameters of a host": (speeds.CPU_ADAM, "/s"),
    "Python, a layer and micro-step": (speeds.LAYER, "s"),
    "the same at stage 3": (speeds.GATHERED_LAYER, "s"),
}


def _summary(fitted: Sequence[Compared], held_out: Sequence[Compared]) -> Iterator[str]:
    yield "| runs | calibration: inside | held out: inside | slowest / fastest, mean |\n|---|--:|--:|--:|"
    for kind, belongs in KINDS.items():
        some = [[one for one in half if belongs(one[0])] for half in (fitted, held_out)]
        inside = (f"{sum(map(_is_inside, half))} of {len(half)}" for half in some)
        yield f"| {kind} | {' | '.join(inside)} | {_width([*some[0], *some[1]]):.1f} |"


def _width(some: Sequence[Compared]) -> float:
    """Take the geometric mean of how many times as long as the fastest the slowest is."""
    return exp(sum(log(roof.likely[1] / roof.likely[0]) for _, roof in some) / len(some))


def _is_inside(one: Compared) -> bool:
    run, roof = one
    return roof.likely[0] <= run.seconds <= roof.likely[1]


def _speeds() -> Iterator[str]:
    yield "| speed | best | worst |\n|---|--:|--:|"
    for name, ((best, worst), unit) in SPEEDS.items():
        yield f"| {name} | {_speed(best, unit)} | {_speed(worst, unit)} |"


def _speed(speed: float, unit: str) -> str:
    if unit == "s":
        return f"{1000 * speed:g} ms"
    return f"{speed / 1e9:g} billion/s" if unit else f"{100 * speed:.0f} %"


def _row(one: Compared, source: int) -> str:
    run, roof = one
    low, high = (brief(seconds) for seconds in roof.likely)
    inside = "yes" if _is_inside(one) else "**no**"
    published = f"{run.row['published']:,} {run.row['unit']}"
    cells = (run.id, _job(run), published, brief(run.seconds), f"{low} to {high}", inside, str(source))
    return f"| {' | '.join(cells)} |"


def _job(run: Published) -> str:
    row = run.row
    offloaded = [
        part.removeprefix("offload_") for part in ("offload_optimizer", "offload_param") if part in row
    ]
    parts = [
        f"{row['gpus']} x {row['gpu']}",
        run.engine,
        f"stage {row['stage']}" + (f" with {' and '.join(offloaded)} on the CPU" if offloaded else ""),
        f"{row['micro_batch']} x {row['accumulation']} x {row['seq_len']} tokens",
    ]
    parts += ["checkpointing"] if row["checkpointing"] else []
    parts += [f"LoRA {row['lora_rank']}"] if "lora_rank" in row else []
    parts += [row["note"]] if "note" in row else []
    return ", ".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
