from dataclasses import replace

import pytest

from tests.asking import GIB, SITE, forecast, question
from zlaunch.errors import ExitStatus
from zlaunch.estimate.fit import Cluster, Fit, check_fit, memory_need
from zlaunch.estimate.forecast import PROGRAM_BYTES, RESUME, Phase, Resume, program_bytes
from zlaunch.estimate.query import remarks_on
from zlaunch.estimate.uncounted import Effect, Uncounted

LEAST, MOST = (size / GIB for size in SITE.gpu.usable_bytes(8)) if SITE.gpu else (0.0, 0.0)


@pytest.mark.parametrize(
    ("gpu", "reserved", "fit"),
    [
        (0.9 * LEAST, 0.94 * LEAST, Fit.YES),
        (0.9 * LEAST, 0.95 * LEAST, Fit.TIGHT),
        (1.02 * MOST, 1.2 * MOST, Fit.TIGHT),
        (1.07 * MOST, 1.08 * MOST, Fit.NO),
    ],
)
def test_tensors_decide_what_cannot_fit_and_the_cache_what_is_safe(
    gpu: float, reserved: float, fit: Fit
) -> None:
    assert check_fit(forecast(gpu, reserved), SITE).fit is fit


def test_an_answer_that_may_be_off_is_sure_of_less() -> None:
    assert check_fit(forecast(0.94 * LEAST), SITE).fit is Fit.YES
    assert check_fit(forecast(0.94 * LEAST, error=0.1), SITE).fit is Fit.TIGHT
    assert check_fit(forecast(1.07 * MOST), SITE).fit is Fit.NO
    assert check_fit(forecast(1.07 * MOST, error=0.1), SITE).fit is Fit.TIGHT


def test_what_is_not_counted_leaves_open_what_it_could_change() -> None:
    more, less = (Uncounted("`--flag`", "does something", one) for one in (Effect.MORE, Effect.LESS))
    told = {"small": forecast(10), "large": forecast(200)}
    judged = {(one.effect, size): check_fit(told[size], SITE, [one]) for one in (more, less) for size in told}
    assert [verdict.fit for verdict in judged.values()] == [Fit.UNKNOWN, Fit.NO, Fit.YES, Fit.UNKNOWN]
    at_least, *doubts = judged[Effect.MORE, "small"].reasons
    assert (at_least[:17], doubts) == ("it takes at least", ["not counted: `--flag` does something"])


def test_inputs_that_are_not_counted_leave_open_whether_a_job_fits() -> None:
    assert check_fit(forecast(10, missing=("images",)), SITE).fit is Fit.UNKNOWN


def test_what_may_be_off_by_a_factor_is_still_refused_beyond_it() -> None:
    assert check_fit(forecast(2.4 * MOST, error=1.5), SITE).fit is Fit.TIGHT
    assert check_fit(forecast(2.6 * MOST, error=1.5), SITE).fit is Fit.NO


def test_without_a_gpu_nobody_can_tell() -> None:
    assert check_fit(forecast(1), Cluster(1, 8)).fit is Fit.UNKNOWN


def test_all_ranks_of_a_host_share_its_memory() -> None:
    host = replace(SITE, host_bytes=100 * GIB)
    assert check_fit(forecast(1, pageable=10), host).fit is Fit.YES
    verdict = check_fit(forecast(1, pageable=20), host)
    assert verdict.fit is Fit.NO
    assert "host memory" in verdict.reasons[0]


def test_a_host_that_nobody_knows_refuses_nothing() -> None:
    assert check_fit(forecast(1, pageable=10_000), SITE).fit is Fit.YES


def test_every_rank_is_a_program_of_its_own() -> None:
    assert memory_need(forecast(1), SITE).host == 8 * PROGRAM_BYTES


def test_the_files_of_all_ranks_of_a_host_share_its_drive() -> None:
    phases = (Phase("second step", {"nvme": 10}, {"nvme": 10}),)
    assert memory_need(replace(forecast(1), phases=phases), Cluster(2, 4)).nvme == 4 * 10


def test_on_a_cpu_the_memory_of_the_host_decides() -> None:
    site = Cluster(1, 2, host_bytes=10 * GIB)
    fits = [check_fit(forecast(0, pageable=size), site).fit for size in (3, 4, 5)]
    assert fits == [Fit.YES, Fit.TIGHT, Fit.NO]
    assert memory_need(forecast(0), site).host == 2 * program_bytes(on_gpu=False)


def test_a_single_rank_has_no_nccl() -> None:
    alone, together = (memory_need(forecast(1), Cluster(1, ranks)).process for ranks in (1, 2))
    assert alone < together


@pytest.mark.parametrize(
    ("fit", "status"),
    [
        (Fit.YES, ExitStatus.OK),
        (Fit.NO, ExitStatus.REFUSED),
        (Fit.TIGHT, ExitStatus.UNAVAILABLE),
        (Fit.UNKNOWN, ExitStatus.UNAVAILABLE),
    ],
)
def test_every_answer_has_an_exit_status(fit: Fit, status: ExitStatus) -> None:
    assert fit.status is status


def test_only_the_first_rank_of_a_host_puts_the_model_together_to_save_it() -> None:
    phases = (
        Phase("second step", {"pageable": 10}, {"pageable": 6}),
        Phase("save", {"pageable": 106}, {"pageable": 6}),
    )
    need = memory_need(replace(forecast(1), phases=phases), Cluster(1, 4))
    assert need.pageable == 106 + 3 * 6


def resuming(gpu: float) -> Resume:
    held = {"gpu": int(gpu * GIB), "reserved": int(gpu * GIB)}
    return Resume(Phase(RESUME, held, held), {"gpu": {"optimizer states": held["gpu"]}})


def test_what_resuming_takes_decides_about_a_run_that_resumes_and_no_other() -> None:
    one = forecast(0.9 * LEAST, resume=resuming(1.1 * MOST))
    assert check_fit(one, SITE).fit is Fit.YES
    assert check_fit(one.resumed(), SITE).fit is Fit.NO
    assert sum(one.resumed().parts["gpu"].values()) == one.resumed().peak("gpu")


@pytest.mark.parametrize(("gpu", "codes"), [(1.1 * MOST, ["cannot-resume"]), (0.8 * LEAST, [])])
def test_a_job_that_fits_says_whether_it_could_be_resumed(gpu: float, codes: list[str]) -> None:
    found = remarks_on(forecast(0.9 * LEAST, resume=resuming(gpu)), question())
    assert [one.code for one in found] == codes
