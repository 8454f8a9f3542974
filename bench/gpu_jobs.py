"""Run real `zlaunch train` jobs on one CUDA device and check how they end: `python -m bench.gpu_jobs OUT`.

OUT/gpu-jobs.json and OUT/gpu-jobs.md are written after each job; a second start continues with missing
results. `--device cpu` trains tiny models on the CPU, to test the check itself.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.gpu_bed import Bed, Unexpected, expect, last_lines
from bench.gpu_results import Results, Row, table_head, table_row, versions, write_atomically

AT_LEAST = 30
"""Seconds that must remain to start a job."""
GONE_WITHIN = 20
"""Seconds in which the processes and the memory of a killed job must disappear."""
SPARE = 64 << 20
"""Bytes by which the device memory of other processes may change."""


def finishes(*flags: str) -> Callable[[Bed], Row]:
    """Return a job that trains to its end."""
    return lambda bed: expect(bed.train(flags), "finished")


def offloads(*flags: str) -> Callable[[Bed], Row]:
    """Return a job with the optimizer on the CPU: DeepSpeed's if there is a CUDA compiler, else torch's."""

    def job(bed: Bed) -> Row:
        compiles = shutil.which("nvcc") is not None
        optimizer = () if compiles else ("--set", "zero_force_ds_cpu_optimizer=false")
        result = expect(bed.train((*flags, *optimizer)), "finished")
        name = "DeepSpeedCPUAdam" if compiles else "torch's fused AdamW, as there is no nvcc"
        return {**result, "facts": f"{result['facts']}, {name}"}

    return job


def probes(bed: Bed) -> Row:
    """Compare the GPUs of NVML and of zlaunch's catalog with those of torch."""
    program = (
        "import json, torch; c = torch.cuda; print(json.dumps("
        "[[c.get_device_name(i), c.get_device_properties(i).total_memory] for i in range(c.device_count())]))"
    )
    seen = json.loads(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)
    from zlaunch.hosts.machine.gpu_catalog import gpu_from_nvml
    from zlaunch.hosts.machine.interpreter import inspect_python
    from zlaunch.hosts.machine.probe import probe_machine

    found = probe_machine(os.environ, inspect_python(None)).gpus
    if [gpu.name for gpu in found] != [name for name, _ in seen]:
        raise Unexpected(f"NVML has {found}, torch {seen}")
    facts = []
    for gpu, (_, total) in zip(found, seen, strict=True):
        known = gpu_from_nvml(gpu.name)
        listed = (
            "not in the catalog" if known is None else f"{known.name}, {known.total_bytes / total - 1:+.2%}"
        )
        facts.append(f"{gpu.name}: {total / 2**30:.2f} GiB by torch; {listed}")
    return {"ended": "as in torch", "facts": "; ".join(facts) or "no GPU"}


def is_hidden(bed: Bed) -> Row:
    """Train on the CPU if CUDA_VISIBLE_DEVICES hides all GPUs."""
    return _trains_on(Bed("cpu", bed.folder), "cpu", "")


def is_named(bed: Bed) -> Row:
    """Train on the GPU that CUDA_VISIBLE_DEVICES names by its UUID."""
    from zlaunch.hosts.machine.interpreter import inspect_python
    from zlaunch.hosts.machine.probe import probe_machine

    found = probe_machine(os.environ, inspect_python(None)).gpus
    return _trains_on(bed, "cuda" if found else "cpu", found[0].uuid if found else "0")


def _trains_on(bed: Bed, accelerator: str, visible: str) -> Row:
    found = bed.train(("--stage", "2"), environment={"CUDA_VISIBLE_DEVICES": visible})
    result = expect(found, "finished")
    if found["job"]["accelerator"] != accelerator:
        raise Unexpected(f"it trained on {found['job']['accelerator']}")
    return result


def _oversized(bed: Bed) -> tuple[str, ...]:
    """Return arguments for twice the batch that fits; on a CPU the script raises the error itself."""
    batch = "64" if bed.device == "cuda" else "4"
    return ("--per_device_train_batch_size", batch, "--room_gib", "24")


def runs_out(bed: Bed) -> Row:
    """Run out of GPU memory, and diagnose it."""
    return expect(bed.train(("--stage", "0", "--force"), _oversized(bed)), "failed", "gpu-out-of-memory")


def runs_out_and_recovers(bed: Bed) -> Row:
    """Run out of GPU memory, and continue with a smaller micro-batch."""
    found = bed.train(("--stage", "0", "--force", "--on-oom", "retry"), _oversized(bed))
    result = expect(found, "finished")
    if len(found["attempts"]) < 2:
        raise Unexpected("the first attempt did not fail")
    return {**result, "facts": f"{result['facts']}, attempt {len(found['attempts'])}"}


def goes_nan(bed: Bed) -> Row:
    """Continue after the loss became NaN, and report it."""
    return expect(bed.train(("--stage", "1"), ("--nan_from", "4")), "finished", "loss-not-a-number")


def is_killed(bed: Bed) -> Row:
    """Kill zlaunch; all processes of the job must end and free the GPU."""
    before = bed.in_use()
    run = Path(tempfile.mkdtemp(prefix="run-", dir=bed.folder)) / "run"
    argv = bed.argv(run, ("--stage", "2"), ("--max_steps", "1000000"))
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _await(bed.timeout, lambda: _step(run) >= 3, "no step")
        script = json.loads((run / "ranks" / "rank-0.json").read_text())["pid"]
        process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        _await(GONE_WITHIN, lambda: not Path(f"/proc/{script}").exists(), "the script is still running")
        _await(GONE_WITHIN, lambda: bed.in_use() <= before + SPARE, "GPU memory is still in use")
    seconds = time.monotonic() - began
    return {"ended": "everything stopped", "facts": f"after {seconds:.1f} s; {bed.shown(run)['state']}"}


def _await(seconds: float, condition: Callable[[], bool], problem: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Unexpected(f"{problem} after {seconds} s")
        time.sleep(0.1)


def _step(run: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads((run / "ranks" / "rank-0.pulse.json").read_text()).get("step") or 0)
    return 0


def keeps_pace(bed: Bed) -> Row:
    """Compare the steps per second with plain torchrun."""
    speeds = bed.folder / "speed"
    found = bed.train(("--stage", "2"), ("--max_steps", "60", "--speed_file", str(speeds)))
    result, ours = expect(found, "finished"), json.loads(speeds.read_text())
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    environment = {name: value for name, value in found["job"]["environment"].items() if value is not None}
    subprocess.run(
        [*argv, *found["job"]["script"]],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        timeout=bed.timeout,
    )
    bare = json.loads(speeds.read_text())
    return {**result, "facts": f"{ours:.2f} steps/s, torchrun {bare:.2f}: {ours / bare - 1:+.1%}"}


JOBS: dict[str, Callable[[Bed], Row]] = {
    "stage 2": finishes("--stage", "2"),
    "kill -9 of zlaunch": is_killed,
    "stage 3": finishes("--stage", "3"),
    "stage 2, --offload optimizer:cpu": offloads("--stage", "2", "--offload", "optimizer:cpu"),
    "NaN": goes_nan,
    "--stage auto": finishes("--stage", "auto"),
    "beside torchrun": keeps_pace,
    "CUDA_VISIBLE_DEVICES=UUID": is_named,
    "CUDA_VISIBLE_DEVICES=": is_hidden,
    "stage 3, --offload cpu": offloads("--stage", "3", "--offload", "cpu"),
    "stage 1": finishes("--stage", "1"),
    "stage 0": finishes("--stage", "0"),
    "out of memory": runs_out,
    "out of memory, --on-oom retry": runs_out_and_recovers,
    "the GPUs that NVML names": probes,
}


def run(job: Callable[[Bed], Row], bed: Bed) -> Row:
    """Run a job; return its row, or the error."""
    try:
        return job(bed)
    except subprocess.TimeoutExpired as error:
        return {"error": f"it took more than {error.timeout:.0f} s: {_last_lines(error.output)}"}
    except subprocess.CalledProcessError as error:
        return {
            "error": f"{' '.join(error.cmd[:4])} ended with {error.returncode}: {_last_lines(error.stderr)}"
        }
    except Exception as error:  # noqa: BLE001 - continue with the other jobs
        return {"error": f"{type(error).__name__}: {error}"}


def _last_lines(output: bytes | str | None) -> str:
    return last_lines(output if isinstance(output, str) else (output or b"").decode("utf-8", "replace"))


POOLS = ("GPU, tensors", "GPU, reserved", "GPU, in use", "host, resident")


def table(results: Results) -> str:
    """Format the results of all jobs as Markdown."""
    rows = [
        *table_head("job", "ended", *POOLS, "more"),
        *(_row(name, row.get("result")) for name, row in results.rows.items()),
    ]
    ended = len(results.rows) - len(results.missing("result"))
    summary = f"{ended} of {len(results.rows)} jobs ended as expected"
    return results.page("Jobs on one GPU", "GiB, predicted / measured (error).", rows, [summary])


def _row(name: str, result: Row | None) -> str:
    if result is None or "error" in result:
        return table_row([name, f"**{result['error']}**" if result else "not yet", *[""] * (len(POOLS) + 1)])
    memory = result.get("memory", {})
    return table_row([name, result["ended"], *(_pair(memory.get(pool)) for pool in POOLS), result["facts"]])


def _pair(sides: list[int | None] | None) -> str:
    predicted, measured = sides or (None, None)
    if measured is None:
        return ""
    if predicted is None:
        return f"- / {measured / 2**30:.2f}"
    return f"{predicted / 2**30:.2f} / {measured / 2**30:.2f} ({predicted / measured - 1:+.1%})"


def main() -> None:
    """Run all jobs without a result, until the deadline."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=510)
    parser.add_argument("--first", type=int, default=len(JOBS), help="how many jobs")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    inputs = dict.fromkeys(list(JOBS)[: options.first])
    results = Results(options.out / "gpu-jobs.json", versions(options.device), inputs)
    with tempfile.TemporaryDirectory() as folder:
        for name in results.missing("result"):
            if deadline - time.monotonic() < AT_LEAST:
                break
            results.add(name, "result", result := run(JOBS[name], Bed(options.device, Path(folder))))
            write_atomically(options.out / "gpu-jobs.md", table(results))
            left = deadline - time.monotonic()
            print(f"{left:4.0f} s left  {name}: {result.get('error') or result['ended']}", flush=True)
    print(table(results), flush=True)
    sys.exit(1 if results.missing("result") else 0)


if __name__ == "__main__":
    main()
