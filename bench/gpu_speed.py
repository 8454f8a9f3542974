"""Compare predicted with measured step times: `python -m bench.gpu_speed OUT`.

Each cell trains with random weights in a new process. OUT/gpu-speed.json and OUT/gpu-speed.md are written
after each result; a second start continues with missing results. `--device cpu` trains tiny models on the
CPU, to test the check itself; its predictions are for an H100, as none are made for a CPU.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.gpu_cells import TIMED, cpu_workload
from bench.gpu_check import measure_times
from bench.gpu_results import (
    Results,
    Row,
    table_head,
    table_row,
    versions,
    versions_measured,
    write_atomically,
)
from zlaunch.hosts.machine.interpreter import installed_stack

PHASES = ("forward", "backward", "step")


def predict(workload: dict[str, Any], gpu: str) -> Row:
    """Return the range of a step's time, its terms, and its operations."""
    from pydantic import TypeAdapter

    from tests.estimate.rehearsing import rehearse
    from zlaunch.estimate.speed.step_time import DeviceSpeed, step_speed
    from zlaunch.estimate.workload import Workload
    from zlaunch.hosts.machine.gpu_catalog import gpu_from_nvml

    found = gpu_from_nvml(gpu)
    if found is None:
        return {"error": f"{gpu} is not in the catalog"}
    asked = TypeAdapter(Workload).validate_python(workload)
    plain = replace(asked, activation_checkpointing=False)
    with_recomputation, without = (forecast.flops for forecast in rehearse([asked, plain]))
    roofline = step_speed(asked, DeviceSpeed(found), with_recomputation).roofline
    return {
        "seconds": roofline.likely,
        "least": roofline.seconds,
        "terms": {term.name: term.likely for term in roofline.terms},
        "flops": with_recomputation,
        "model flops": without,
        "peak": found.half_flops if is_half(asked) else found.fp32_flops,
    }


def is_half(workload: Any) -> bool:
    """Whether matrix products are in bf16 or fp16."""
    return any(workload.ds_config.get(name, {}).get("enabled") for name in ("bf16", "fp16"))


def table(results: Results) -> str:
    """Format all rows, and how many times lie within the predicted range."""
    names = ("cell", "step", "predicted", *PHASES, "tokens/s", "TFLOP/s", "MFU", "HFU")
    rows = [*table_head(*names), *(_line(name, row) for name, row in results.rows.items())]
    compared = [_within(row) for row in results.rows.values() if "seconds" in row.get("predicted", {})]
    known = [side for side in compared if side is not None]
    summary = (
        f"{known.count(0)} of {len(known)} times are within the predicted range, {known.count(-1)} below"
    )
    return results.page(
        "Seconds of a step, predicted and measured",
        "Milliseconds; the median of five steps. Phases are means of five other steps, each phase from an "
        "idle device to an idle device. MFU counts the model's operations, HFU also those of recomputation.",
        rows,
        [summary],
    )


def _within(row: Row) -> int | None:
    """Return -1, 0 or 1: below, in or above the predicted range."""
    if "seconds" not in row.get("measured", {}):
        return None
    low, high = row["predicted"]["seconds"]
    whole: float = median(row["measured"]["seconds"]["whole"])
    return int(whole > high) - int(whole < low)


def _line(name: str, row: Row) -> str:
    predicted, measured = row.get("predicted", {}), row.get("measured", {})
    if "seconds" not in measured:
        return table_row([name, str(measured.get("error", "not yet")), *[""] * 8])
    seconds, accumulation = measured["seconds"], row["input"]["ds_config"]["gradient_accumulation_steps"]
    whole = median(seconds["whole"])
    micro_batch = row["input"]["ds_config"]["train_micro_batch_size_per_gpu"]
    tokens = micro_batch * accumulation * row["input"]["seq_len"]
    phases = [f"{sum(seconds[phase]) / len(seconds['whole']) * 1e3:.1f}" for phase in PHASES]
    expected, rates = str(predicted.get("error", "")), [""] * 3
    if "seconds" in predicted:
        low, high = predicted["seconds"]
        expected = f"{low * 1e3:.1f} to {high * 1e3:.1f}"
        done, useful = (predicted[kind] / whole for kind in ("flops", "model flops"))
        rates = [f"{done / 1e12:.0f}", *(f"{rate / predicted['peak']:.1%}" for rate in (useful, done))]
    return table_row([name, f"{whole * 1e3:.1f}", expected, *phases, f"{tokens / whole:,.0f}", *rates])


def main() -> None:
    """Time one cell after the other, then predict their times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=510)
    parser.add_argument("--first", type=int, default=len(TIMED), help="how many cells")
    parser.add_argument("--only", choices=("measure", "predict"), help="half of the check")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file, cells = options.out / "gpu-speed.json", TIMED[: options.first]
    workloads = [cpu_workload(cell) if options.device == "cpu" else cell.workload() for cell in cells]
    inputs = dict(zip(map(str, cells), workloads, strict=True))
    found = versions_measured(file) if options.only == "predict" else versions(options.device)
    results = Results(file, found, inputs)
    if options.only != "predict":
        with open(options.out / "gpu-speed.log", "a") as log:  # noqa: PTH123 - processes write to it too
            measure_times(results, options.device, time.monotonic() + options.seconds, log)
    if options.only != "measure":
        predict_all(results, found["device"] if options.device == "cuda" else "NVIDIA H100 80GB HBM3")
    write_atomically(options.out / "gpu-speed.md", text := table(results))
    print(text, flush=True)
    sys.exit(1 if results.missing("measured") else 0)


def predict_all(results: Results, gpu: str) -> None:
    """Predict the times of all cells that were measured."""
    installed_stack()  # the threads below would all ask for it at once
    names = [name for name in results.missing("predicted") if "measured" in results.rows[name]]
    with ThreadPoolExecutor() as pool:
        answers = pool.map(lambda name: predict(results.rows[name]["input"], gpu), names)
    for name, answer in zip(names, answers, strict=True):
        results.add(name, "predicted", answer)


if __name__ == "__main__":
    main()
