"""Write docs/jobs.md: plan usual jobs, which takes minutes: `python -m tools.write_jobs`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from zlaunch.cli.planned_job import PlannedJob, search
from zlaunch.estimate.search import NothingFits, SearchResult
from zlaunch.units import brief, memory

PAGE: Final = Path(__file__).parent.parent / "docs" / "jobs.md"
RANK: Final = 16
_1B, _3B, _8B, _70B = (f"meta-llama/Llama-{name}B" for name in ("3.2-1", "3.2-3", "3.1-8", "3.1-70"))
_Q05, _Q3, _Q7, _Q14, _Q32 = (f"Qwen/Qwen2.5-{size}B" for size in (0.5, 3, 7, 14, 32))

QUESTIONS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "1xRTX-4090": ((_Q05, _1B, _Q3, _Q7), (_3B, _Q7, _8B)),
    "2xRTX-4090": ((_3B, _8B), (_3B, _Q7, _8B, _Q14)),
    "4xL40S": ((_3B, _8B, _Q14), (_8B, _Q14, _Q32)),
    "8xH100-80GB": ((_8B, _Q14, _Q32, _70B), (_8B, _70B)),
}
"""GPUs → the models of which all parameters are trained, and those with LoRA adapters."""

HEAD: Final = """# What fits where

This page answers 25 usual questions: which model can be fine-tuned on these GPUs, and how? Each answer is
what the command prints: the fastest configuration that fits, by rehearsals on fake tensors. Nothing was
trained. The command also copies the recipe [causal_lm](recipes.md), and writes a
[zlaunch.yaml](zlaunch-yaml.md) with the choice, so that `zlaunch train` starts it on such a machine.

All of them train in bf16 with AdamW, on sequences of 2048 tokens (`--seq-len` changes that) and 8 of them
for each GPU in a step. *Each GPU* is what a process takes, of what there is; *host* is the memory of the
host for all its ranks, which offload needs and the command cannot check. [Estimates](estimate.md) explains
every number, and [accuracy](accuracy.md) and [step times](speed.md) compare them with published runs.
`make jobs` writes this page; it takes half an hour on two cores.

Stage 0 is chosen where it is the fastest. In bf16 it has a known defect: DeepSpeed's [first updates of Adam
are too small](known-defects.md#optimizer-stepped-before), the first by 26 %, which fades within the first
steps. To train like another program from the first step on, take `--stage 1`.

`--micro-batch` and `--activation-checkpointing` in the column *choice* are options of `zlaunch estimate`.
In the zlaunch.yaml they are arguments of the recipe: `--per_device_train_batch_size` and
`--gradient_checkpointing`.
"""


def questions() -> Iterator[PlannedJob]:
    """List the questions in the order of the page."""
    for on, (whole, adapters) in QUESTIONS.items():
        yield from (PlannedJob("causal_lm", model, on, None, None) for model in whole)
        yield from (PlannedJob("causal_lm", model, on, RANK, None) for model in adapters)


def row(asked: PlannedJob) -> str:
    """Plan a job, and write its row."""
    _, result = search(asked)
    return f"| `{command(asked)}` | {' | '.join(_answer(result))} |"


def command(asked: PlannedJob) -> str:
    """Write what to type."""
    lora = ""
    if asked.lora is not None:
        lora = f" --lora {asked.lora}"
    return f"zlaunch init --recipe {asked.recipe} --model {asked.model} --on {asked.on}{lora}"


def _answer(result: SearchResult | NothingFits) -> Iterator[str]:
    if isinstance(result, NothingFits):
        candidate, estimate = result.closest
        yield f"{result.fit.words}; the closest is `{candidate.options}`"
    else:
        candidate, estimate = result.candidate, result.estimate
        yield f"`{candidate.options}`"
    gpu = estimate.query.cluster.gpu
    assert gpu is not None, "each question names GPUs"
    yield f"{memory(estimate.need.process[1])} of {memory(gpu.total_bytes)}"
    yield memory(estimate.need.host)
    yield brief(estimate.seconds or 0.0)


def _lines() -> Iterator[str]:
    yield HEAD.rstrip("\n")
    section = None
    for asked in questions():
        if asked.on != section:
            section = asked.on
            yield f"\n## {section}\n\n| command | choice | each GPU | host | step |\n|---|---|--:|--:|--:|"
        yield row(asked)


if __name__ == "__main__":
    PAGE.write_text("\n".join(_lines()) + "\n", "utf-8")
