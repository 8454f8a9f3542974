"""What is shown of measured configurations."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from tests.asking import answer, forecast, question
from tests.facts import facts_of
from tests.making import local, script
from zlaunch.cli.views.measured_plan import check_output, measured_lines, write_measured
from zlaunch.errors import Unavailable
from zlaunch.estimate.changes import Options
from zlaunch.estimate.strategies import STRATEGIES
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import GpuChoice, JobSpec
from zlaunch.launch.measure.race import Limits, MeasuredTrial, Measurement
from zlaunch.launch.measure.runner import Sample
from zlaunch.launch.measure.trials import TrialJob

JOB = JobSpec(script=Path("train.py"), gpus=GpuChoice(count=2), args=ScriptArgs(("--steps", "9")))
FACTS = facts_of(JOB, script(), topology=local(0, 1))


def measured(number: int, *seconds: float, memory: int = 2 << 30) -> MeasuredTrial:
    strategy = STRATEGIES[number]
    options = strategy.options | Options(micro_batch=8, grad_accum=1)
    trial = TrialJob(strategy, options, JOB, 8, 1)
    samples = [Sample("runs/1", 9.0, one, 18, memory, 3 << 30, batch=16) for one in seconds]
    return MeasuredTrial(trial, samples)


def result(*trials: MeasuredTrial, why: str = "", kept: int = 0) -> Measurement:
    passed = [("--stage 2 --offload cpu", "DeepSpeed refuses it"), ("--stage 3", "DeepSpeed refuses it")]
    return Measurement(trials, passed, why, False, kept, 4, Limits())


def text(shown: Measurement) -> str:
    return "\n".join(measured_lines(shown, FACTS))


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_predictions_stand_beside_what_was_measured() -> None:
    shown = text(result(measured(1, 0.812, 0.812), measured(4, 1.27, 1.3, 1.2)))
    assert shown.splitlines()[:6] == [
        "train.py on 2 ranks on the CPU, global batch 16",
        "",
        "                            step time               memory  of a rank",
        "stage offload        batch  predicted  measured  predicted   measured  runs",
        "1     -              8 x 1          -    812 ms    3.0 GiB    2.0 GiB     2",
        "2     CPU optimizer  8 x 1          -    1.27 s    3.0 GiB    2.0 GiB     3",
    ]
    assert "measured: 812 ms a step, 2 runs" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80


def test_columns_without_predictions_are_explained() -> None:
    unknown = replace(result(measured(1, 0.8)), why_not_predicted="the model of the script is unknown")
    assert "nothing was predicted: the model of the script is unknown" in text(unknown).splitlines()
    known = replace(
        measured(1, 0.8), trial=replace(measured(1, 0.8).trial, estimate=answer(question(), forecast(1)))
    )
    assert (
        "no step time was predicted: there is no GPU whose speed is known" in text(result(known)).splitlines()
    )


def test_what_is_passed_over_is_grouped_by_its_reason() -> None:
    shown = " ".join(text(result(measured(1, 1.0))).split())
    assert "not measured: `--stage 2 --offload cpu`, `--stage 3`: DeepSpeed refuses it" in shown
    assert "4 more configurations not run; `--top N` runs more of them" in shown


def test_an_early_end_says_why_and_that_the_command_continues() -> None:
    shown = " ".join(
        text(result(measured(1, 1.0), why="it was interrupted; the same command continues")).split()
    )
    assert "ended early: it was interrupted; the same command continues" in shown


def test_runs_that_differ_too_much_are_told() -> None:
    shown = " ".join(text(result(measured(0, 1.0, 2.0), measured(1, 1.6, 1.7))).split())
    assert "`--stage 1 --micro-batch 8 --grad-accum 1` may be as fast" in shown
    assert "other programs seem to use this machine" in shown


def test_the_command_that_trains_with_the_fastest_has_the_arguments_of_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_measured(result(measured(1, 0.5)), FACTS, Path("ds.json"))
    told = " ".join(capsys.readouterr().err.split())
    assert "wrote ds.json (measured: 500 ms a step, 1 run) and ds.measured.json" in told
    assert "zlaunch train train.py --ds-config ds.json --gpus 2 -- --steps 9" in told


def test_the_same_measurement_writes_its_files_again_unless_they_were_changed(tmp_path: Path) -> None:
    output = tmp_path / "ds.json"
    for seconds in (1.0, 2.0):
        check_output(output)
        write_measured(result(measured(1, seconds)), FACTS, output)
    output.write_text("{}")
    with pytest.raises(Unavailable, match="already exists"):
        check_output(output)


def test_the_command_that_trains_with_the_fastest_can_be_pasted_and_keeps_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fastest = measured(1, 0.5)
    job = replace(JOB, python=Path("/my env/bin/python"))
    fastest = replace(fastest, trial=replace(fastest.trial, job=job))
    write_measured(result(fastest), FACTS, Path("my $plan's.json"))
    words = shlex.split(capsys.readouterr().err.splitlines()[-1])
    assert words[3:7] == ["--python", "/my env/bin/python", "--ds-config", "my $plan's.json"]
