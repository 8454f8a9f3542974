"""How long a job takes from a preemption's signal to its end, on one host and on two.

    python -m bench.preempt_seconds [--within SECONDS]

Two real ranks train with DeepSpeed on the CPU. zlaunch gets SIGTERM at a random moment of a step, chooses a
step after which all ranks save, and has to end with status 75 before the time to save is over. Two hosts
(network namespaces with real sshd) read and write their records less often, so it chooses a later step.
"""

import argparse
import contextlib
import json
import random
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.cluster.bed import hosts
from tests.jobs.test_preempt import CONFIG, ENGINE, step_of, until
from tests.running import ACTIVATED, start
from zlaunch.rundir.layout import RunDir

STEPS_SECONDS = (0.02, 0.1, 0.5, 2.0)
"""Seconds that a step sleeps."""
STEPS_BEFORE = 6


def main(within: float) -> None:
    """Measure each length of a step, on one host and on two."""
    print("| hosts | step, s | steps after the signal | signal to end, s | exit status | saved |")
    print("|---|---|---|---|---|---|")
    for number in (1, 2):
        for seconds in STEPS_SECONDS:
            with _hosts(number) as (options, environment):
                measured = _preempt(options, environment, seconds, within)
            print(f"| {number} | {seconds} | {measured} |", flush=True)


@contextlib.contextmanager
def _hosts(number: int) -> Iterator[tuple[list[str], Mapping[str, str]]]:
    if number == 1:
        yield ["--gpus", "2"], ACTIVATED
        return
    with tempfile.TemporaryDirectory() as folder, hosts(Path(folder)) as bed:
        yield ["--hostfile", str(bed.hostfile)], bed.environment()


def _preempt(options: list[str], environment: Mapping[str, str], seconds: float, within: float) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "engine.py").write_text(ENGINE.replace("time.sleep(0.05)", f"time.sleep({seconds / 2})"))
        (folder / "ds.json").write_text(json.dumps(CONFIG))
        layout, log = RunDir(folder / "run"), folder / "run" / "logs" / "rank-0.log"
        words = ["--ds-config", "ds.json", "--save", "out", "--run-dir", "run", "--on-preempt", "save"]
        words += ["--save-within", str(within), *options, "--", "--steps", "100000"]
        with (folder / "err").open("wb") as err:
            job = start("train", "engine.py", *words, cwd=folder, env=environment, stderr=err)
        until(lambda: job.poll() is not None or step_of(layout) >= STEPS_BEFORE)
        assert job.returncode is None, (folder / "err").read_text()
        time.sleep(3 + random.random() * seconds)
        before, asked = log.read_text().count("\nstep "), time.monotonic()
        job.send_signal(signal.SIGTERM)
        status = job.wait(600)
        took, said = time.monotonic() - asked, " ".join((folder / "err").read_text().split())
        saved = re.search(r"step (\d+) is saved", said)
        after = log.read_text().count("\nstep ") - before
        return f"{after} | {took:.1f} | {status} | {'no' if saved is None else f'step {saved[1]}'}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--within", type=float, default=25.0, help="seconds to save")
    main(parser.parse_args().within)
