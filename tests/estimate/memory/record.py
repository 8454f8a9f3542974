"""Rehearse the ladder on the ten models and write down the peaks: `python -m tests.estimate.memory.record [MODEL…]`.

It takes ten minutes. A rehearsal that DeepSpeed or the model refuses is left out.
"""

import json
import sys
from pathlib import Path

from tests.estimate.memory.jobs import LADDER, LOADS, TEN, job
from tests.estimate.rehearsing import rehearse

FILE = Path(__file__).parent / "rehearsed.json"
"""model → load → rung → bytes at the peak of each pool."""

Recorded = dict[str, dict[str, dict[str, dict[str, int]]]]


def recorded() -> Recorded:
    """Read what was written down."""
    found: Recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found


def main() -> None:
    """Rehearse the models that are named, or all."""
    known = recorded()
    for model in sys.argv[1:] or TEN:
        known[model] = {}
        for load, settings in LOADS.items():
            forecasts = rehearse([job(model, stage, **settings, **rung) for stage, rung in LADDER.values()])
            known[model][load] = {
                name: {pool: found.peak(pool) for pool in ("gpu", "pageable", "pinned")}
                for name, found in zip(LADDER, forecasts, strict=True)
                if found.method == "rehearsal" and found.late_error is None
            }
        FILE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
