"""Real `zlaunch train` jobs on one CUDA device, and what came of each: `python -m bench.gpu_jobs OUT`.

OUT/gpu-jobs.json and OUT/gpu-jobs.md are written after each job; started again, it goes on with those that
have no result yet. `--device cpu` trains small models on the CPU instead, to rehearse all of this.
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
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.gpu_bed import Answer, Bed, Unexpected, ends, last_of
from bench.gpu_results import Results, versions, written_whole

AT_LEAST = 30
"""Seconds without which none is begun."""
GONE_WITHIN = 20
"""Seconds within which nothing of a killed job may be left."""
SPARE = 64 << 20
"""Bytes by which what others take of the device may change."""


def finishes(*flags: str) -> Callable[[Bed], Answer]:
    """Make a job that trains to its end."""
    return lambda bed: ends(bed.train(flags), "finished")


def offloads(*flags: str) -> Callable[[Bed], Answer]:
    """Make one with the optimizer on the CPU: DeepSpeed's own where CUDA's compiler is, else torch's."""

    def job(bed: Bed) -> Answer:
        compiles = shutil.which("nvcc") is not None
        optimizer = () if compiles else ("--set", "zero_force_ds_cpu_optimizer=false")
        answer = ends(bed.train((*flags, *optimizer)), "finished")
        name = "DeepSpeedCPUAdam" if compiles else "torch's fused AdamW, as there is no nvcc"
        return {**answer, "facts": f"{answer['facts']}, {name}"}

    return job


def probes(bed: Bed) -> Answer:
    """Compare what zlaunch sees of the GPUs, through NVML and in its table, with what torch sees."""
    ask = (
        "import json, torch; c = torch.cuda; print(json.dumps("
        "[[c.get_device_name(i), c.get_device_properties(i).total_memory] for i in range(c.device_count())]))"
    )
    seen = json.loads(subprocess.run([sys.executable, "-c", ask], capture_output=True, check=True).stdout)
    from zlaunch.hosts.gpu_catalog import gpu_from_nvml
    from zlaunch.hosts.probe import probe_machine

    found = probe_machine(os.environ).gpus
    if [gpu.name for gpu in found] != [name for name, _ in seen]:
        raise Unexpected(f"NVML has {found}, torch {seen}")
    facts = []
    for gpu, (_, total) in zip(found, seen, strict=True):
        known = gpu_from_nvml(gpu.name)
        listed = (
            "not in the table" if known is None else f"{known.name}, {known.total_bytes / total - 1:+.2%}"
        )
        facts.append(f"{gpu.name}: {total / 2**30:.2f} GiB by torch; {listed}")
    return {"ended": "as torch says", "facts": "; ".join(facts) or "no GPU"}


def is_hidden(bed: Bed) -> Answer:
    """Train on the CPU where CUDA_VISIBLE_DEVICES hides all GPUs."""
    return _trains_on(Bed("cpu", bed.folder), "cpu", "")


def is_named(bed: Bed) -> Answer:
    """Train on the GPU that CUDA_VISIBLE_DEVICES names by its UUID."""
    from zlaunch.hosts.probe import probe_machine

    found = probe_machine(os.environ).gpus
    return _trains_on(bed, "cuda" if found else "cpu", found[0].uuid if found else "0")


def _trains_on(bed: Bed, accelerator: str, visible: str) -> Answer:
    found = bed.train(("--stage", "2"), environment={"CUDA_VISIBLE_DEVICES": visible})
    answer = ends(found, "finished")
    if found["job"]["accelerator"] != accelerator:
        raise Unexpected(f"it trained on {found['job']['accelerator']}")
    return answer


def _too_much(bed: Bed) -> tuple[str, ...]:
    """Ask for twice what fits: a real failure of CUDA's allocator, or on a CPU the words of one."""
    batch = "64" if bed.device == "cuda" else "4"
    return ("--per_device_train_batch_size", batch, "--room_gib", "24")


def runs_out(bed: Bed) -> Answer:
    """Run out of the GPU's memory, and say so."""
    return ends(bed.train(("--stage", "0", "--force"), _too_much(bed)), "failed", "gpu-out-of-memory")


def runs_out_and_recovers(bed: Bed) -> Answer:
    """Run out of the GPU's memory, and go on with a smaller micro-batch."""
    found = bed.train(("--stage", "0", "--force", "--on-oom", "retry"), _too_much(bed))
    answer = ends(found, "finished")
    if len(found["attempts"]) < 2:
        raise Unexpected("the first attempt did not fail")
    return {**answer, "facts": f"{answer['facts']}, attempt {len(found['attempts'])}"}


def goes_nan(bed: Bed) -> Answer:
    """Train on after the loss became NaN, and be told so."""
    return ends(bed.train(("--stage", "1"), ("--nan_from", "4")), "finished", "loss-not-a-number")


def is_killed(bed: Bed) -> Answer:
    """Kill zlaunch itself, and leave nothing behind."""
    before = bed.in_use()
    run = Path(tempfile.mkdtemp(prefix="run-", dir=bed.folder)) / "run"
    argv = bed.argv(run, ("--stage", "2"), ("--max_steps", "1000000"))
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _await(bed.patience, lambda: _step(run) >= 3, "no step was taken")
        script = json.loads((run / "ranks" / "rank-0.json").read_text())["pid"]
        process.send_signal(signal.SIGKILL)
        began = time.monotonic()
        _await(GONE_WITHIN, lambda: not Path(f"/proc/{script}").exists(), "the script lives on")
        _await(GONE_WITHIN, lambda: bed.in_use() <= before + SPARE, "memory of the GPU is still taken")
    seconds = time.monotonic() - began
    return {"ended": "nothing was left", "facts": f"after {seconds:.1f} s; {bed.shown(run)['state']}"}


def _await(seconds: float, is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise Unexpected(f"{otherwise} after {seconds} s")
        time.sleep(0.1)


def _step(run: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads((run / "ranks" / "rank-0.pulse.json").read_text()).get("step") or 0)
    return 0


def keeps_pace(bed: Bed) -> Answer:
    """Compare steps per second with those of the same script under bare torchrun."""
    speeds = bed.folder / "speed"
    found = bed.train(("--stage", "2"), ("--max_steps", "60", "--speed_file", str(speeds)))
    answer, ours = ends(found, "finished"), json.loads(speeds.read_text())
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    environment = {name: value for name, value in found["job"]["environment"].items() if value is not None}
    subprocess.run(
        [*argv, *found["job"]["script"]],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        timeout=bed.patience,
    )
    bare = json.loads(speeds.read_text())
    return {**answer, "facts": f"{ours:.2f} steps/s, torchrun {bare:.2f}: {ours / bare - 1:+.1%}"}


JOBS: dict[str, Callable[[Bed], Answer]] = {
    "the GPUs that NVML names": probes,
    "stage 2": finishes("--stage", "2"),
    "out of memory": runs_out,
    "out of memory, --on-oom retry": runs_out_and_recovers,
    "kill -9 of zlaunch": is_killed,
    "stage 3": finishes("--stage", "3"),
    "stage 2, --offload optimizer:cpu": offloads("--stage", "2", "--offload", "optimizer:cpu"),
    "NaN": goes_nan,
    "--stage auto": finishes("--stage", "auto"),
    "beside torchrun": keeps_pace,
    "CUDA_VISIBLE_DEVICES=UUID": is_named,
    "CUDA_VISIBLE_DEVICES=": is_hidden,
    "stage 0": finishes("--stage", "0"),
    "stage 1": finishes("--stage", "1"),
    "stage 3, --offload cpu": offloads("--stage", "3", "--offload", "cpu"),
}


def done(job: Callable[[Bed], Answer], bed: Bed) -> Answer:
    """Do a job; whatever goes wrong is its result."""
    try:
        return job(bed)
    except subprocess.TimeoutExpired as error:
        return {"error": f"it took more than {error.timeout:.0f} s: {_said(error.output)}"}
    except subprocess.CalledProcessError as error:
        return {"error": f"{' '.join(error.cmd[:4])} ended with {error.returncode}: {_said(error.stderr)}"}
    except Exception as error:  # noqa: BLE001 - the other jobs go on
        return {"error": f"{type(error).__name__}: {error}"}


def _said(output: bytes | str | None) -> str:
    return last_of(output if isinstance(output, str) else (output or b"").decode("utf-8", "replace"))


POOLS = ("GPU, tensors", "GPU, reserved", "GPU, in use", "host, resident")


def table(results: Results) -> str:
    """Write what came of each job as Markdown."""
    versions = ", ".join(
        f"{name} {version}" for name, version in results.versions.items() if name != "device"
    )
    heads = ("job", "ended", *POOLS, "more")
    lines = [
        f"# Jobs on one GPU: {results.versions['device']}",
        "",
        f"{versions}. GiB, foretold / measured (error).",
        "",
        "| " + " | ".join(heads) + " |",
        "|---" * len(heads) + "|",
        *(_row(name, row.get("result")) for name, row in results.rows.items()),
    ]
    missing = results.lacking("result")
    lines += ["", f"{len(results.rows) - len(missing)} of {len(results.rows)} jobs ended as they must"]
    return "\n".join(lines) + "\n"


def _row(name: str, result: Answer | None) -> str:
    if result is None or "error" in result:
        cells: Iterator[str] = iter(
            [name, f"**{result['error']}**" if result else "not yet", "", "", "", "", ""]
        )
    else:
        memory = result.get("memory", {})
        cells = iter([name, result["ended"], *(_pair(memory.get(pool)) for pool in POOLS), result["facts"]])
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in cells) + " |"


def _pair(sides: list[int | None] | None) -> str:
    foretold, measured = sides or (None, None)
    if measured is None:
        return ""
    if foretold is None:
        return f"- / {measured / 2**30:.2f}"
    return f"{foretold / 2**30:.2f} / {measured / 2**30:.2f} ({foretold / measured - 1:+.1%})"


def main() -> None:
    """Do what has no result yet, until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=510)
    parser.add_argument("--first", type=int, default=len(JOBS), help="how many jobs")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    questions = dict.fromkeys(list(JOBS)[: options.first])
    results = Results(options.out / "gpu-jobs.json", versions(options.device), questions)
    with tempfile.TemporaryDirectory() as folder:
        for name in results.lacking("result"):
            if deadline - time.monotonic() < AT_LEAST:
                break
            results.add(name, "result", answer := done(JOBS[name], Bed(options.device, Path(folder))))
            written_whole(options.out / "gpu-jobs.md", table(results))
            left = deadline - time.monotonic()
            print(f"{left:4.0f} s left  {name}: {answer.get('error') or answer['ended']}", flush=True)
    print(table(results), flush=True)
    sys.exit(1 if results.lacking("result") else 0)


if __name__ == "__main__":
    main()
