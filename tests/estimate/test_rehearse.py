"""The program that rehearses: kept between questions, and asked only what nothing else answers."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.asking import forecast
from tests.estimate.memory.jobs import config, job
from tests.estimate.rehearsing import rehearse, rehearse_apart
from tests.estimate.test_rehearsal import workload
from zlaunch.errors import Refused, Unavailable
from zlaunch.estimate import self_test
from zlaunch.estimate.forecast import Forecast, Phase
from zlaunch.estimate.forecast_cache import ForecastCache
from zlaunch.estimate.memory import closed_form
from zlaunch.estimate.rehearse import MOST_LAYERS, MOST_RANKS, Rehearser, _forecast, too_large
from zlaunch.estimate.self_test import _PEAKS, why_not_believed
from zlaunch.estimate.workload import Workload
from zlaunch.hosts.machine.gpu_catalog import known_gpus
from zlaunch.job.stack import TESTED


def program_of(rehearser: Rehearser) -> object:
    return rehearser._program


@pytest.mark.job
def test_one_program_answers_question_after_question_and_what_is_known_at_once(tmp_path: Path) -> None:
    known, *others = (workload(stage) for stage in range(4))
    told, cache = forecast(1.0, kept=True), ForecastCache(tmp_path)
    cache.keep(known, told)
    progress: list[tuple[int, int]] = []
    with Rehearser(cache) as rehearser:
        assert rehearser([known]) == [told]
        assert program_of(rehearser) is None
        first = rehearser([others[0], known], lambda done, total: progress.append((len(done), total)))
        program = program_of(rehearser)
        second = rehearser(others[1:])
        assert program_of(rehearser) is program is not None
    told_since = [one for one in (*first, *second) if isinstance(one, Forecast)]
    assert [one.method for one in told_since] == ["rehearsal"] * 4
    assert first[1] == told
    assert progress == [(1, 2), (2, 2)]
    assert [cache.find(one) for one in others] == [
        replace(one, kept=True) for one in told_since if one != told
    ]


@pytest.mark.job
def test_a_program_that_dies_leaves_the_closed_form_and_the_next_question_starts_another() -> None:
    with Rehearser() as rehearser:
        rehearser([workload(0)])
        assert rehearser._program is not None
        rehearser._program._process.kill()
        (told,), (again,) = rehearser([workload(1)]), rehearser([workload(1)])
    assert isinstance(told, Forecast)
    assert told.why_not_rehearsed == "the rehearsal process died"
    assert isinstance(again, Forecast)
    assert again.method == "rehearsal"


def only(rehearser: Rehearser, asked: Workload) -> Forecast:
    (told,) = rehearser([asked])
    assert isinstance(told, Forecast)
    return told


@pytest.mark.job
def test_a_job_that_was_trained_is_only_resumed_when_it_is_asked_for_again() -> None:
    asked = replace(workload(3), save=True)
    with Rehearser() as rehearser:
        trained = only(rehearser, replace(asked, resume=False))
        resumed = only(rehearser, asked)
        assert only(rehearser, replace(asked, resume=False)) == trained  # with the same seconds
    with Rehearser() as rehearser:
        at_once = only(rehearser, asked)
    assert resumed.seconds > trained.seconds
    assert replace(resumed, seconds=0.0) == replace(at_once, seconds=0.0)


def llama(changes: dict[str, Any] | None = None, **rest: Any) -> Workload:
    return replace(job("llama-3-8b", 3, **rest), model={**config("llama-3-8b"), **(changes or {})})


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (llama({"num_hidden_layers": 5_000}), "5000 layers would take minutes"),
        (llama(world_size=1 << 20), "1048576 ranks would take minutes"),
        (llama({"vocab_size": 10**9}), "it takes at least "),
        (llama(seq_len=134_000_000), "it takes at least "),
        (llama(micro_batch=1_000_000), "it takes at least "),
    ],
)
def test_what_is_far_too_large_is_not_rehearsed(
    workload: Workload, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))  # a rehearsal could not even start
    (found,) = rehearse_apart([workload])
    assert found.method == "closed form"
    assert (found.why_not_rehearsed or "").startswith(words)


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer", "num_decoder_layers"])
def test_a_million_layers_are_refused_at_their_key(key: str) -> None:
    with pytest.raises(Refused) as caught:
        too_large(llama({key: 10**6}))
    (finding,) = caught.value.findings
    assert (finding.code, finding.where) == ("absurd-size", key)


@pytest.mark.parametrize(
    "workload",
    [
        job("llama-3-70b", 0, seq_len=8192),
        job("llama-3-70b", 3, world_size=MOST_RANKS),
        job("mixtral-8x7b", 0),
        llama({"num_hidden_layers": MOST_LAYERS}),
        replace(llama(micro_batch=1_000_000), accelerator="cpu"),  # of a host's memory nothing is known here
        replace(llama(), model={"model_type": "mamba", "hidden_size": 768}),  # nobody can tell
    ],
)
def test_what_may_be_meant_is_rehearsed(workload: Workload) -> None:
    assert too_large(workload) is None


@given(st.integers(1, 1 << 27), st.integers(1, 1 << 20))
def test_what_is_not_rehearsed_for_its_size_fits_on_no_gpu(seq_len: int, micro_batch: int) -> None:
    workload = llama(seq_len=seq_len, micro_batch=micro_batch)
    found = closed_form.forecast(workload)
    if too_large(workload) is not None:
        assert all(
            found.bounds(found.peak("gpu"))[0] > 9 * gpu.usable_bytes()[1] for gpu in known_gpus().values()
        )


@pytest.mark.job
def test_the_others_keep_their_order() -> None:
    found = rehearse([llama(seq_len=134_000_000), job("gpt2", 0), llama(world_size=1 << 20)])
    assert [one.method for one in found] == ["closed form", "rehearsal", "closed form"]


def told_of_probes() -> dict[int, Forecast]:
    phases = [[Phase(name, {"gpu": size}, {}) for name, size in peaks.items()] for peaks in _PEAKS]
    return {number: replace(forecast(1.0), phases=tuple(told)) for number, told in enumerate(phases)}


def test_a_rehearsal_that_counts_a_known_job_right_is_believed() -> None:
    assert why_not_believed(told_of_probes()) is None


@pytest.mark.parametrize("harm", ["a phase takes less", "it fails", "it is the closed form"])
def test_a_rehearsal_that_counts_a_known_job_wrong_is_not_believed(harm: str) -> None:
    told = told_of_probes()
    phases = tuple(replace(phase, peak={"gpu": phase.peak["gpu"] * 9 // 10}) for phase in told[1].phases)
    if harm == "a phase takes less":
        told[1] = replace(told[1], phases=phases)
    elif harm == "it is the closed form":
        told[1] = replace(told[1], method="closed form")
    else:
        del told[1]
    assert why_not_believed(told) is not None


@pytest.mark.job
def test_releases_that_are_new_are_put_to_the_test_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TESTED, "torch", ("1.0", "1.1"))
    with Rehearser() as rehearser:
        (believed,) = rehearser([workload(1)])
    monkeypatch.setattr(self_test, "_PEAKS", ({"forward": 1}, {}))
    with Rehearser() as rehearser:
        (told,) = rehearser([workload(1)])
    assert isinstance(believed, Forecast)
    assert isinstance(told, Forecast)
    assert (believed.method, told.method) == ("rehearsal", "closed form")
    assert told.why_not_rehearsed == "with these packages, the rehearsal of a known job is wrong in forward"


def test_mics_is_no_job_for_the_closed_form() -> None:
    """Releases before DeepSpeed 0.19 have it, and their engine needs more than the ds_config."""
    reply = _forecast(job("llama-3-8b", 3, mics_shard_size=4), {"failure": "no sharded parameters"})
    assert isinstance(reply, Unavailable)
    assert "with MiCS; no rehearsal: no sharded parameters" in reply.message
