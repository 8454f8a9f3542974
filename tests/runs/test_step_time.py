"""The time of a step, as the records of a run tell it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.recorded_run import NUM_RANKS, SECONDS, write_run
from tests.running import zlaunch
from zlaunch.diagnosis.collect import job_evidence
from zlaunch.rundir import phases
from zlaunch.runs.run import Run
from zlaunch.runs.step_time import StepTime, step_time, timed_lines


def changed(file: Path, **members: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | members))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", 100)


def measured(root: Path) -> StepTime:
    found = step_time(Run(root))
    assert found is not None
    return found


def test_the_parts_of_a_step_add_up_to_it(root: Path) -> None:
    found = measured(root)
    assert sum(found.parts.values()) == pytest.approx(found.seconds) == pytest.approx(SECONDS)
    assert next(iter(found.parts)) == phases.BACKWARD


def sampled(root: Path, steps: int, **parts: float) -> StepTime:
    """Measure so many steps of each rank on its GPU, where they took these seconds."""
    for rank in range(NUM_RANKS):
        seconds = {part: steps * value for part, value in parts.items()}
        changed(root / f"ranks/rank-{rank}.pulse.json", gpu_steps=steps, gpu_parts=seconds)
    return measured(root)


def test_steps_that_were_measured_on_the_gpu_tell_the_shares_of_all(root: Path) -> None:
    found = sampled(root, 3, forward=1.0, backward=3.0)
    assert found.on_gpu
    assert found.parts == pytest.approx({phases.BACKWARD: 0.75 * SECONDS, phases.FORWARD: 0.25 * SECONDS})


def test_too_few_steps_on_a_gpu_tell_no_parts_and_no_verdict(root: Path) -> None:
    found = sampled(root, 2, communication=2.0, backward=1.0)
    assert (found.on_gpu, found.parts, found.losses) == (False, {}, [])
    assert found.seconds == pytest.approx(SECONDS)
    shown = zlaunch("runs", "show", root, cwd=root.parent).out
    assert "time of a step: 1.3 s; too few were measured on the GPU to tell its parts" in " ".join(
        shown.split()
    )


def test_several_engines_that_train_have_no_batch_in_common(root: Path) -> None:
    changed(root / "ranks/rank-0.program.json", num_engines=2)
    assert str(measured(root).throughput) == ""


def test_the_engine_says_what_trained_if_it_is_not_what_was_planned(root: Path) -> None:
    file = root / "ranks/rank-0.program.json"
    engine = json.loads(file.read_text())["engine"]
    changed(
        file, engine={**engine, "stage": 1, "grad_accum": 2}, trainer_args={"gradient_checkpointing": True}
    )
    job = job_evidence(Run(root))
    assert (job.stage, job.grad_accum, job.gradient_checkpointing) == (1, 2, True)


def test_the_parts_of_a_line_are_those_of_one_step(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", 11)
    history: list[dict[str, Any]] = [
        {"step": step, "time": float(step), "step_seconds": 1.0} for step in range(1, 7)
    ]
    history[2]["phases"] = {"forward": 3.0}  # since the start
    history.insert(4, {"step": 4, "time": 4.5, "count": 0, "phases": {"forward": 1.0}})
    history[6]["phases"] = {"forward": 2.0}
    (root / "steps.jsonl").write_text("".join(json.dumps({"version": 1, **line}) + "\n" for line in history))
    lines = timed_lines(Run(root))
    assert {line.step: line.parts for line in lines if line.parts} == {
        3: {"forward": 3.0},
        6: {"forward": 1.0},
    }


def test_samples_and_tokens_are_those_of_all_ranks(root: Path) -> None:
    throughput = measured(root).throughput
    assert throughput.samples_per_second == pytest.approx(64 / SECONDS)
    assert throughput.tokens_per_second == pytest.approx(8192 * NUM_RANKS / SECONDS)


def test_the_forecast_of_a_step_is_shown_beside_it(root: Path) -> None:
    assert measured(root).predicted == "0.90 s to 1.6 s, bound by compute"
    shown = zlaunch("runs", "show", root, cwd=root.parent)
    assert "1.3 s in all; predicted: 0.90 s to 1.6 s, bound by compute" in shown.out


def test_the_terms_of_a_forecast_are_sorted_by_the_parts_of_a_step(root: Path) -> None:
    terms = {"compute": [0.4, 0.9], "memory": [0.1, 0.1], "launches": [0.01, 0.04], "network": [0.2, 0.2]}
    forecast = json.loads((root / "forecast.json").read_text())
    forecast["step"] |= {"terms": {**terms, "pcie": [0.0, 0.0], "optimizer": [0.1, 0.4]}}
    (root / "forecast.json").write_text(json.dumps(forecast))
    expected = {"forward and backward": 0.7, "communication": 0.2, "optimizer step": 0.2}
    assert measured(root).predicted_parts == pytest.approx(expected)


def test_the_slowest_rank_is_named_first(root: Path) -> None:
    verdict = measured(root).losses[0].verdict
    assert verdict.cause == "rank 5 on w1 is slower than the others, which wait for it"


LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "architectures": ["LlamaForCausalLM"],
}  # fmt: skip


def test_mfu_counts_six_operations_per_weight_and_token_against_the_dense_peak(root: Path) -> None:
    file = root / "ranks/rank-0.program.json"
    engine = json.loads(file.read_text())["engine"]
    changed(file, engine={**engine, "model_config": LLAMA})
    throughput = measured(root).throughput
    assert throughput.flops_per_second is not None
    matrices = 8.03e9 - 128256 * 4096  # looking up an embedding is no product
    assert throughput.flops_per_second == pytest.approx(6 * matrices * 8192 / SECONDS, rel=0.03)
    assert throughput.mfu == pytest.approx(throughput.flops_per_second / 989e12, rel=0.01)
    assert throughput.hfu == throughput.mfu


def test_recomputation_counts_for_hfu_alone(root: Path) -> None:
    file = root / "ranks/rank-0.program.json"
    engine = json.loads(file.read_text())["engine"]
    changed(file, engine={**engine, "model_config": LLAMA})
    before = measured(root).throughput
    job = root / "job.json"
    changed(job, script=["train.py", "--gradient_checkpointing"])
    after = measured(root).throughput
    assert before.mfu == after.mfu is not None
    assert after.hfu is not None
    assert 1.1 < after.hfu / after.mfu < 4 / 3  # neither the head nor a layer's last product is recomputed


def test_a_run_of_few_steps_has_no_time_of_a_step(tmp_path: Path) -> None:
    assert step_time(Run(write_run(tmp_path / "run", 11))) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"parts": {}},
        {"timed_steps": -5},
        {"timed_steps": 10**17},
        {"parts": {"forward": -1.0}},
        {"gpu_parts": {}},
    ],
)
def test_absurd_numbers_do_no_harm(root: Path, odd: dict[str, Any]) -> None:
    for rank in range(NUM_RANKS):
        changed(root / f"ranks/rank-{rank}.pulse.json", **odd)
    found = step_time(Run(root))
    assert found is None or found.seconds > 0


def test_the_fastest_run_is_listed_first(tmp_path: Path) -> None:
    for name, tokens in (("slow", 100), ("fast", 300), ("silent", 0)):
        root = write_run(tmp_path / "runs" / name, 100)
        for rank in range(NUM_RANKS):
            changed(
                root / f"ranks/rank-{rank}.pulse.json",
                tokens=tokens * 8192,
                **({} if tokens else {"parts": {}}),
            )
    listed = zlaunch("runs", "list", "--sort", "speed", "--json", cwd=tmp_path)
    assert [run["id"] for run in json.loads(listed.out)] == ["fast", "slow", "silent"]
    assert (
        "train.py: 49.2 samples/s, 151,237 tokens/s: the script raised"
        in zlaunch("runs", "list", "--sort", "speed", cwd=tmp_path).out
    )
