"""`zlaunch.launch.nvme.measure DIR BYTES SECONDS`: measure a drive with the engine of DeepSpeed's `ds_io`.

`ds_nvme_tune` starts Python, torch and DeepSpeed twice for each of 64 settings; here one process measures
them all with the same code. Runs in the Python of the ranks. Each measurement is a line of JSON behind a
mark on stdout; what DeepSpeed prints goes to stderr.
"""

import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

MARK = "zlaunch measures "
FINALISTS = 4
"""Settings that are measured again, because one measurement is noisy."""
FINAL_ROUNDS = 2
SPACE: Mapping[str, tuple[Any, ...]] = {
    "block_size": (1 << 20, 8 << 20),
    "queue_depth": (32, 128),
    "sequential_requests": (True, False),
    "single_submit": (False, True),
    "io_parallel": (1, 2, 4, 8),
}
"""The settings that `ds_nvme_tune` tries (`deepspeed/nvme/perf_run_sweep.py`, `DEFAULT_SWEEP_CONFIG`)."""

Setting = dict[str, Any]


def settings() -> list[Setting]:
    """All settings in a mixed order, so that the first ones are a sample if the time is short."""
    found = [dict(zip(SPACE, values, strict=True)) for values in itertools.product(*SPACE.values())]
    random.Random(0).shuffle(found)  # noqa: S311 - no secret
    return found


def round_trip(speeds: Mapping[str, float]) -> float:
    """Seconds to read and write a GB: offload moves as much in each direction at every step."""
    return 1 / max(speeds["read"], 1e-9) + 1 / max(speeds["write"], 1e-9)


def main(folder: str, num_bytes: int, seconds: float) -> None:
    """Measure until all settings were tried or the time is over, then the best ones again."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    deadline = time.monotonic() + seconds
    drive = _Drive(folder, num_bytes)
    measured: list[tuple[float, Setting]] = []
    for setting in settings():
        if measured and time.monotonic() > deadline:
            break
        speeds = drive.measure(setting)
        measured.append((round_trip(speeds), setting))
        out.write(f"{MARK}{json.dumps({'setting': setting, 'round': 0, **speeds})}\n")
    best = sorted(measured, key=lambda one: one[0])[:FINALISTS]
    for number, (_, setting) in itertools.product(range(1, FINAL_ROUNDS + 1), best):
        out.write(f"{MARK}{json.dumps({'setting': setting, 'round': number, **drive.measure(setting)})}\n")


class _Drive:
    def __init__(self, folder: str, num_bytes: int) -> None:
        self._folder = folder
        self._num_bytes = num_bytes

    def measure(self, setting: Setting) -> dict[str, float]:
        """GB/s of a read and a write."""
        return {"read": self._speed(setting, reads=True), "write": self._speed(setting, reads=False)}

    def _speed(self, setting: Setting, *, reads: bool) -> float:
        from deepspeed.nvme.ds_aio_args import get_validated_args
        from deepspeed.nvme.io_engine import prepare_operation

        sys.argv = ["ds_io", *self._words(setting), *(["--read"] if reads else [])]
        args = get_validated_args()
        engine = prepare_operation(args, 0, reads)
        self._settle()
        try:
            (engine.read if reads else engine.write)(args, 0, 0)
            return self._num_bytes / float(engine.ctxt["elapsed_sec"][-1]) / 1e9
        finally:
            engine.fini()

    def _words(self, setting: Setting) -> Iterator[str]:
        yield from ("--folder", self._folder, "--io_size", str(self._num_bytes))
        yield from ("--loops", "1", "--warmup_loops", "0")
        for name, value in setting.items():
            if value is True:
                yield f"--{name}"
            elif value is not False:
                yield from (f"--{name}", str(value))

    def _settle(self) -> None:
        """Have the file that was created to be read on the drive before it is read."""
        for file in Path(self._folder).iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
