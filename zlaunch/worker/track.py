"""Send metrics to a tracker: `zlaunch.worker.track TRACKER PROJECT RUN_DIR`, in the Python of the job.

It reads lines of `metrics.jsonl` from stdin until that ends, and then prints as JSON where they are. That
Python has the package of the tracker; zlaunch's own may not.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

Values = dict[str, float]
Log = Callable[[Values, int, float], None]
Finish = Callable[[], Mapping[str, str]]

_GIB = 1 << 30


def numbers_in(metrics: Mapping[str, Any]) -> Values:
    """Name the numbers of one line: those of the job, the memory of each rank and of each host, in GiB."""
    found: dict[str, Any] = {
        **{name: metrics.get(name) for name in ("loss", "learning_rate", "tokens_per_second")},
        **dict(_memory(metrics)),
    }
    return {f"zlaunch/{name}": float(value) for name, value in found.items() if _is_number(value)}


def _memory(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for rank in metrics.get("ranks") or ():
        for name, shown in (("rss_bytes", "memory"), ("gpu_used_bytes", "gpu_memory")):
            if _is_number(value := rank.get(name)):
                yield f"rank_{rank.get('rank')}/{shown}_gib", value / _GIB
    for host, machine in (metrics.get("machines") or {}).items():
        if _is_number(value := machine.get("memory_available_bytes")):
            yield f"{host}/memory_available_gib", value / _GIB


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tensorboard(_project: str, run_dir: Path) -> tuple[Log, Finish]:
    from torch.utils.tensorboard.writer import SummaryWriter

    folder = Path(os.environ.get("TENSORBOARD_LOGGING_DIR") or run_dir / "tensorboard").absolute()
    writer = SummaryWriter(str(folder))

    def log(values: Values, step: int, time: float) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step, time)

    def finish() -> Mapping[str, str]:
        writer.close()
        return {"directory": str(folder)}

    return log, finish


def _wandb(project: str, run_dir: Path) -> tuple[Log, Finish]:
    wandb: Any = import_module("wandb")
    run = wandb.init(project=project, name=run_dir.name, dir=str(run_dir))

    def finish() -> Mapping[str, str]:
        offline = getattr(run, "offline", False)
        place = {"directory": str(run_dir / "wandb")} if offline or not run.url else {"url": run.url}
        run.finish()
        return place

    return lambda values, step, _: run.log(values, step=step), finish


def _trackio(project: str, run_dir: Path) -> tuple[Log, Finish]:
    trackio: Any = import_module("trackio")
    trackio.init(project=project, name=run_dir.name)

    def finish() -> Mapping[str, str]:
        trackio.finish()
        return {"project": project}

    return lambda values, step, _: trackio.log(values, step=step), finish


TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio}


def main(tracker: str, project: str, run_dir: Path) -> None:
    """Send all lines of stdin."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a tracker prints
    log, finish = TRACKERS[tracker](project, run_dir)
    step = sent = 0
    for line in sys.stdin:
        metrics = json.loads(line)
        step = max(step, int(metrics.get("step") or 0))
        if values := numbers_in(metrics):
            log(values, step, float(metrics.get("time") or 0.0))
            sent += 1
    answers.write(json.dumps({"sent": sent, **finish()}))
    answers.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
