"""Measure how long the page of a long run takes to write and to load: `python -m bench.page_load`.

Loading is measured in headless Chromium, from the start of the navigation until all charts are drawn and laid
out: the least of several loads, and the median.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.browser import dom, noted, watched_copy
from tests.recorded_run import write_run

STEPS = (1_000, 10_000, 100_000)
REPEATS = 7


def main() -> None:
    """Print a row for each number of steps."""
    print("| steps | written, s | size, MB | loaded, least, s | loaded, median, s |\n|---|---|---|---|---|")
    for steps in STEPS:
        with tempfile.TemporaryDirectory() as name:
            root = write_run(Path(name) / "runs" / "run", steps)
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "zlaunch", "runs", "report", root], capture_output=True, check=True
            )
            written, page = time.perf_counter() - began, root / "report.html"
            copy = watched_copy(page)
            took = [float(noted(dom(copy), "took")) / 1000 for _ in range(REPEATS)]
            size = page.stat().st_size / 1e6
        least, middle = min(took), statistics.median(took)
        print(f"| {steps:,} | {written:.1f} | {size:.1f} | {least:.2f} | {middle:.2f} |", flush=True)


if __name__ == "__main__":
    main()
