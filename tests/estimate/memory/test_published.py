import re
from functools import cache

from tests.estimate.memory.published import Published, published
from tools.write_speed import PAGE, page
from zlaunch.estimate.memory.closed_form import forecast
from zlaunch.estimate.speed.step_time import DeviceSpeed, Roofline, step_speed
from zlaunch.hosts.machine.gpu_catalog import known_gpus

COVERED = 0.90


@cache
def predicted() -> list[tuple[Published, Roofline]]:
    runs = [(run, run.workload) for run in published()]
    return [(run, step_speed(job, run.machine, forecast(job).flops).roofline) for run, job in runs]


def share_inside(held_out: bool) -> float:
    inside = [
        roof.likely[0] <= run.seconds <= roof.likely[1]
        for run, roof in predicted()
        if run.is_for_calibration != held_out
    ]
    return sum(inside) / len(inside)


def test_nine_in_ten_runs_that_nothing_was_fitted_to_are_in_range() -> None:
    assert share_inside(held_out=True) >= COVERED


def test_nine_in_ten_runs_that_speeds_were_fitted_to_are_in_range() -> None:
    assert share_inside(held_out=False) >= COVERED


def test_both_halves_have_twenty_runs_and_five_sources_or_more() -> None:
    for half in (True, False):
        runs = [run for run in published() if run.is_for_calibration is half]
        assert len(runs) >= 20
        assert len({run.source for run in runs}) >= 5


def test_ranges_are_narrow_enough_to_say_something() -> None:
    """Of jobs on one host without offloading: half of them within a factor of 2.2, all within 6."""
    widths = sorted(
        roof.likely[1] / roof.likely[0]
        for run, roof in predicted()
        if run.row["gpus"] <= run.row["per_host"] and "offload_optimizer" not in run.row
    )
    assert widths[len(widths) // 2] <= 2.2
    assert widths[-1] <= 6


def test_no_run_is_faster_than_the_bound() -> None:
    assert [run.id for run, roof in predicted() if run.seconds < roof.seconds] == []


def test_seconds_follow_from_what_was_published() -> None:
    for run in published():
        row = run.row
        sequences = row["micro_batch"] * row["accumulation"]
        seconds = {
            "s/step": row["published"],
            "samples/s": sequences * row["gpus"] / row["published"],
            "tokens/s/GPU": sequences * row["seq_len"] / row["published"],
        }.get(row["unit"], run.seconds)
        assert abs(run.seconds / seconds - 1) < 1e-3, run.id


def test_each_run_has_an_id_of_its_own() -> None:
    ids = [run.id for run in published()]
    assert len(ids) == len({*ids})


def test_a_gpu_is_called_calibrated_if_a_run_on_it_was_compared() -> None:
    compared = {run.row["gpu"] for run in published()}
    job = published()[0].workload
    called = {
        name
        for name, gpu in known_gpus().items()
        if step_speed(job, DeviceSpeed(gpu), 1e15).roofline.is_calibrated
    }
    assert called == compared | {"V100-16GB"}  # which is as fast as that of 32 GB


def test_the_page_is_what_the_tool_writes() -> None:
    assert PAGE.read_text("utf-8") == page()


def test_layers_and_micro_batches_are_told_apart() -> None:
    run = next(run for run in published() if run.workload.ds_config.get("gradient_accumulation_steps", 1) > 1)
    terms = step_speed(run.workload, run.machine, 1e15).roofline.terms
    (why,) = (term.why for term in terms if term.name == "launches")
    assert re.fullmatch(r"\d+ layers x \d+ micro-batches", why)
