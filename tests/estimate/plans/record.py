"""Rehearse every configuration of the twelve questions: `python -m tests.estimate.plans.record [WORD…]`.

It takes half an hour on two cores, and goes on where it was ended. A configuration that DeepSpeed or the
model refuses is null.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.estimate.plans.questions import QUESTIONS, label
from zlaunch.estimate.candidates import candidates
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.forecast import POOLS
from zlaunch.estimate.query import Estimate
from zlaunch.estimate.rehearse import Rehearser

FILE = Path(__file__).parent / "rehearsed.json"
"""question → configuration → bytes at the peak of each pool, operations of a step, parameters."""
AT_ONCE = 8

Recorded = dict[str, dict[str, dict[str, Any] | None]]


def recorded() -> Recorded:
    """Read what was written down."""
    found: Recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def main() -> None:
    """Rehearse what is not there yet, of the questions that contain a word, or of all."""
    known = recorded()
    with Rehearser() as rehearser:
        estimator = Estimator(rehearse=rehearser)
        for name, asked in QUESTIONS.items():
            if not any(word in name for word in sys.argv[1:] or [""]):
                continue
            rows = known.setdefault(name, {})
            missing = [one for one in candidates(asked.question, asked.per_rank) if label(one) not in rows]
            for start in range(0, len(missing), AT_ONCE):
                batch = missing[start : start + AT_ONCE]
                answers = estimator.rehearse([one.query for one in batch])
                for one, answer in zip(batch, answers, strict=True):
                    rows[label(one)] = _row(answer) if isinstance(answer, Estimate) else None
                FILE.write_text(json.dumps(known, indent=0) + "\n")
                print(name, len(rows), flush=True)


def _row(answer: Estimate) -> dict[str, Any]:
    forecast = answer.forecast
    assert forecast.method == "rehearsal", forecast.why_not_rehearsed
    peaks: dict[str, Any] = {pool: forecast.peak(pool) for pool in POOLS if forecast.peak(pool)}
    return {**peaks, "flops": forecast.flops}


if __name__ == "__main__":
    main()
