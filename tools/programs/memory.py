"""Compare what `zlaunch estimate SCRIPT` says with what two real ranks held: `make program-memory`.

`python -m tools.programs.memory WORK` runs each program of the table twice, as `make programs` starts it:
rehearsed, and for real under torch's profiler until it has taken two steps. It writes docs/program-memory.md.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.programs.each import Trial, measured, options_of, try_each
from tools.programs.run import RANKS

ORACLE = Path(__file__).parent / "oracle.py"
PAGE = Path(__file__).parent.parent.parent / "docs" / "program-memory.md"
ON_CPU = Path(__file__).parent / "on_cpu.py"
MORE = {"DeepSpeed-Chat step 1": "--per_device_eval_batch_size 1"}
"""Arguments with which all batches have one size."""
REMARKS = {
    "trl.scripts.grpo": "the generation of completions is not rehearsed",
    "training_batch_hard_trec": "65,544 bytes too high: its loss selects by a mask, which counts as all true",
    "swift sft": "4 bytes too low; why is not known",
    "run_audio_classification": "`load` is 768 bytes too high: the first norms of a size count when filled",
}
"""What differs, and why."""
Levels = dict[str, tuple[int, int]]
"""Phase → the most that was held in it, and what was held at its end; bytes."""


@dataclass
class Comparison:
    """A program, rehearsed and for real."""

    command: str
    real: Levels = field(default_factory=dict)
    estimated: Levels = field(default_factory=dict)
    verdict: str = ""
    """What the estimate says besides numbers."""
    seconds: float = 0.0
    failure: str = ""

    def __str__(self) -> str:
        """Write phase, most and last bytes as estimated, and for real."""
        lines = [f"{self.seconds:.0f} s; {self.verdict} {self.failure}"]
        for name, level in self.estimated.items():
            real = self.real.get(name)
            mark = "" if real == tuple(level) else " differs"
            lines.append(f"   {name:14} {level!s:26} {real!s:26}{mark}")
        return "\n".join(lines)


def compare(trial: Trial) -> Comparison:
    """Estimate a program, and run it."""
    folder, job = trial.places.run, f"--gpus {RANKS} {trial.job}"
    trial.set_up()
    after = f"{trial.arguments} {MORE.get(trial.program.title, '')}"
    result = Comparison(" ".join(f"zlaunch estimate {job} {after}".split()))
    seen = folder / ".seen"
    observed = {"PROGRAMS_OBSERVER": str(ORACLE), "PROGRAMS_OBSERVED": str(seen)}
    status, out, err = trial.run(f"zlaunch train {job} {after}", **observed)
    (folder / "train.out").write_text(out)
    (folder / "train.err").write_text(err)
    ranks = [seen / f"{rank}.json" for rank in range(RANKS)]
    if all(file.exists() for file in ranks):
        result.real = fuller(*[levels(json.loads(file.read_text())) for file in ranks])
    else:
        result.failure = f"the real ranks ended with {status}: {' '.join(err.split()[-40:])}"
    began = time.monotonic()
    status, out, err = trial.run(f"python {ON_CPU} estimate {job} --json {after}")
    result.seconds = round(time.monotonic() - began, 1)
    (folder / "estimate.json").write_text(out)
    (folder / "estimate.err").write_text(err)
    try:
        answer = json.loads(out)
    except ValueError:
        result.failure += " ".join(err.split()[-60:]) or f"exit {status}"
        return result
    result.verdict = f"{answer['fit']}: {'; '.join(answer['reasons'])}"
    result.estimated = {
        phase["name"]: (_allocated(phase["peak"]), _allocated(phase["end"]))
        for phase in answer["forecast"]["phases"]
    }
    return result


def _allocated(held: Mapping[str, int]) -> int:
    """Return what tensors have, with the ends of buckets that are never written."""
    return held.get("addressed", held.get("pageable", 0))


def levels(answer: dict[str, Any]) -> Levels:
    """Read what a rank held."""
    return {
        name: (level["peak"], level["end"])
        for name, level in answer["tensors"].items()
        if name not in ("left", "end")
    }


def fuller(first: Levels, last: Levels) -> Levels:
    """Return the rank that holds more; the first alone saves the model."""
    if max(last.values()) <= max(first.values()):
        return first
    return {**last, "save": first["save"]}


HEAD = """# Memory of programs of other projects

`make program-memory` writes this page. Each program of [this table](programs.md) that trains with DeepSpeed
runs unchanged twice: by `zlaunch estimate`, on fake tensors, and by `zlaunch train` on two CPU ranks under
torch's profiler, which hears of every allocation and shares no code with the rehearsal. Both end after two
steps and a checkpoint.

- **Equal**: in how many phases (load, initialize, forward, backward, step, second step, save) the most bytes
  in tensors and the bytes at the end of the phase are the same, to the byte.
- **Estimated**, **measured**: the most bytes in tensors of the fuller rank in any phase.
- **Seconds**: how long `zlaunch estimate` took, with the imports and the data of the program.
- All sentences of the data have one length, so that the order of the data changes nothing. What a kernel or
  gloo takes for itself is not counted, nor are files that are mapped into memory.

| program | way | equal | estimated | measured | seconds | remark |
| --- | --- | --- | --- | --- | --- | --- |
"""


def page(results: Mapping[str, Any]) -> str:
    """Write the table."""
    rows = []
    for program, way in measured():
        if (found := results.get(program.key(way))) is None:
            continue
        result = Comparison(**found)
        real = {name: tuple(level) for name, level in result.real.items()}
        equal = [name for name, level in result.estimated.items() if real.get(name) == tuple(level)]
        remark = REMARKS.get(program.title, "")
        if result.failure:
            remark = remark or "cannot be rehearsed"
        numbers = [f"{len(equal)} of {len(real)}", _most(result.estimated), _most(result.real)]
        cells = [
            f"{program.project}: {program.title}",
            options_of(way),
            *numbers,
            f"{result.seconds:.0f}",
            remark,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return HEAD + "\n".join(rows) + "\n"


def _most(levels: Levels) -> str:
    if not levels:
        return "-"
    return f"{max(peak for peak, _ in levels.values()):,}"


if __name__ == "__main__":
    PAGE.write_text(page(try_each("memory", "inputs-even", compare)))
