import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.diagnosis.diagnose import SIGNATURES
from zlaunch.diagnosis.evidence import Evidence, JobEvidence
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface, Handover
from zlaunch.job.spec import JobSpec, Offload, RestartPolicy
from zlaunch.resume.restart import (
    DETERMINED,
    DIVERGED,
    HEALS,
    OUT_OF_MEMORY,
    FailedAttempt,
    Retry,
    can_heal,
    propose_retries,
    resumed,
    smaller_jobs,
)

GPU, HOST = "gpu-out-of-memory", "host-out-of-memory"
JOB = JobSpec(Path("train.py"), ScriptArgs.of(("--learning_rate", "1e-4")))
ON_GPU = JobEvidence(
    accelerator="cuda", stage=1, micro_batch=8, grad_accum=2, world_size=4, gradient_checkpointing=False
)


def failed(code: str, step: int = 5, cause: str = "it died", how: str = "failed") -> FailedAttempt:
    return FailedAttempt(Outcome(how, 137, -signal.SIGKILL, Verdict(code, cause)), step)


def proposed(policy: RestartPolicy, *failures: FailedAttempt, ran: JobEvidence = ON_GPU) -> list[Retry]:
    return list(propose_retries(JOB, Evidence(job=ran), failures, policy))


def test_every_code_that_is_judged_here_is_one_of_a_signature() -> None:
    known = {signature.code for signature in SIGNATURES}
    assert known >= HEALS | DETERMINED | OUT_OF_MEMORY | {DIVERGED}


def test_nothing_is_tried_again_unless_that_was_asked_for() -> None:
    assert proposed(RestartPolicy(), failed("killed")) == []
    assert proposed(RestartPolicy(), failed("gpu-out-of-memory")) == []


@pytest.mark.parametrize("code", sorted(HEALS))
def test_what_may_heal_is_started_again(code: str) -> None:
    (proposal,) = proposed(RestartPolicy(max_restarts=1), failed(code))
    assert proposal.job == JOB


def test_a_job_that_was_ended_because_it_stalled_is_started_again() -> None:
    assert len(proposed(RestartPolicy(max_restarts=1), failed("stalled", how="stalled"))) == 1


def test_a_job_that_diverged_goes_back_to_before_its_last_finite_loss_once_unless_more_is_allowed() -> None:
    lost = Evidence(job=ON_GPU, is_diverged=True)

    def tried(policy: RestartPolicy, times: int) -> list[bool]:
        failures = [failed(DIVERGED)] * times
        return [one.needs_checkpoint for one in propose_retries(JOB, lost, failures, policy)]

    assert tried(RestartPolicy(max_restarts=3), 1) == []
    assert tried(RestartPolicy(max_restarts=3, on_nan="stop"), 1) == []
    assert tried(RestartPolicy(on_nan="rollback"), 1) == [True]
    assert tried(RestartPolicy(on_nan="rollback"), 2) == []
    assert tried(RestartPolicy(max_restarts=2, on_nan="rollback"), 2) == [True]
    (proposal,) = propose_retries(JOB, lost, [failed(DIVERGED)], RestartPolicy(on_nan="rollback"))
    assert resumed(JOB, proposal, None) is None


def test_there_are_no_more_restarts_than_were_allowed() -> None:
    assert len(proposed(RestartPolicy(max_restarts=2), failed("killed"), failed("killed"))) == 1
    assert proposed(RestartPolicy(max_restarts=2), *[failed("killed")] * 3) == []


@pytest.mark.parametrize("code", ["wrong-arguments", "config-disagrees", "disk-full", "loss-scale-collapsed"])
def test_what_would_come_again_is_not_started_again(code: str) -> None:
    assert proposed(RestartPolicy(max_restarts=3), failed(code)) == []


@pytest.mark.parametrize("code", sorted(OUT_OF_MEMORY))
def test_a_job_without_memory_is_not_started_again_as_it_was(code: str) -> None:
    assert proposed(RestartPolicy(max_restarts=3), failed(code)) == []


def test_an_exception_at_the_first_step_is_not_started_again() -> None:
    assert not can_heal([failed("script-exception", step=0)])


def test_an_exception_at_the_first_step_after_a_checkpoint_is_not_started_again() -> None:
    assert not can_heal([replace(failed("script-exception", step=7), resumed_step=7)])


def test_an_exception_later_on_may_have_had_to_do_with_the_moment() -> None:
    assert can_heal([failed("script-exception", step=7)])


def test_the_same_exception_at_the_same_step_comes_again() -> None:
    assert not can_heal([failed("script-exception", step=7), failed("script-exception", step=7)])


@pytest.mark.parametrize("how", ["finished", "stumbled", "stopped"])
def test_only_a_failure_is_tried_again(how: str) -> None:
    assert proposed(RestartPolicy(3, "retry"), failed("killed", how=how)) == []


def test_attempts_for_want_of_memory_do_not_count_as_restarts() -> None:
    failures = [failed("gpu-out-of-memory"), failed("gpu-out-of-memory"), failed("killed")]
    assert len(proposed(RestartPolicy(1, "retry"), *failures)) == 1


def test_what_changes_least_is_tried_first() -> None:
    whys = [proposal.why.split(":")[0] for proposal in smaller_jobs(JOB, ON_GPU, GPU)]
    assert whys == [
        "smaller micro-batch",
        "activation checkpointing",
        "higher ZeRO stage",
        "optimizer offload",
    ]


def test_on_a_cpu_nothing_is_moved_to_the_host() -> None:
    on_cpu = replace(ON_GPU, accelerator="cpu", stage=3, micro_batch=1)
    assert [proposal.why for proposal in smaller_jobs(JOB, on_cpu, HOST)] == [
        "activation checkpointing: `-- --gradient_checkpointing`"
    ]


def test_the_parameters_move_last_and_only_at_stage_3() -> None:
    ran = replace(ON_GPU, stage=3, micro_batch=1, gradient_checkpointing=True, offload={"optimizer": "cpu"})
    assert [proposal.job.offload for proposal in smaller_jobs(JOB, ran, GPU)] == [Offload("cpu", "cpu")]


def test_a_job_of_another_stage_cannot_resume_from_the_checkpoint() -> None:
    assert {
        proposal.why.split(":")[0] for proposal in smaller_jobs(JOB, ON_GPU, GPU) if not proposal.resumes
    } == {"higher ZeRO stage"}


@given(st.integers(1, 256), st.integers(1, 64))
def test_the_global_batch_and_the_learning_rate_stay_what_they_are(micro: int, pieces: int) -> None:
    for proposal in smaller_jobs(JOB, replace(ON_GPU, micro_batch=micro, grad_accum=pieces), GPU):
        args = proposal.job.args
        now = int(args.value("per_device_train_batch_size") or micro)
        accumulated = int(args.value("gradient_accumulation_steps") or pieces)
        assert now * accumulated == micro * pieces
        assert args.value("learning_rate") == "1e-4"


def test_a_script_that_reads_its_batch_from_the_ds_config_gets_it_there() -> None:
    first = next(smaller_jobs(JOB, replace(ON_GPU, interface=ConfigInterface.DEEPSPEED), GPU))
    assert first.job.overrides == (("train_micro_batch_size_per_gpu", 4), ("gradient_accumulation_steps", 4))
    assert first.job.args.words == JOB.args.words


def test_a_script_that_is_not_given_a_ds_config_has_no_smaller_job() -> None:
    ran = replace(ON_GPU, interface=ConfigInterface.NONE, handover=Handover.NOT)
    assert not list(smaller_jobs(JOB, ran, GPU))


def test_a_program_that_takes_no_more_arguments_is_tried_at_a_higher_stage_first() -> None:
    first = next(smaller_jobs(JOB, replace(ON_GPU, handover=Handover.ACCELERATE), GPU))
    assert (first.job.stage, first.job.args.words, first.job.overrides) == (2, JOB.args.words, ())


def test_a_ds_config_of_the_user_is_overridden_along_with_the_arguments() -> None:
    first = next(smaller_jobs(replace(JOB, ds_config=Path("ds.json")), ON_GPU, GPU))
    assert first.job.overrides == (("train_micro_batch_size_per_gpu", 4), ("gradient_accumulation_steps", 4))


@pytest.mark.parametrize(("micro", "left"), [(3, 1), (9, 3), (12, 6), (1, None)])
def test_a_micro_batch_is_cut_into_as_few_pieces_as_will_do(micro: int, left: int | None) -> None:
    tried = next(smaller_jobs(JOB, replace(ON_GPU, micro_batch=micro), GPU)).job
    size = tried.args.value("per_device_train_batch_size")
    assert size == (None if left is None else str(left))


@pytest.mark.parametrize("code", sorted(OUT_OF_MEMORY - {"gpu-out-of-memory"}))
def test_a_host_that_is_full_gets_nothing_more(code: str) -> None:
    assert not [one for one in smaller_jobs(JOB, ON_GPU, code) if one.job.offload is not None]


def test_an_optimizer_on_nvme_stays_there() -> None:
    ran = replace(ON_GPU, stage=3, micro_batch=1, gradient_checkpointing=True, offload={"optimizer": "nvme"})
    assert [one.job.offload for one in smaller_jobs(JOB, ran, GPU)] == [Offload("nvme", "cpu")]


def given_to(job: JobSpec | None) -> str | None:
    assert job is not None
    return job.resume or job.args.value("resume_from_checkpoint")


def test_the_newest_checkpoint_goes_to_the_script() -> None:
    second = resumed(JOB, Retry(JOB, "again"), Path("out/checkpoint-3"))
    assert second is not None
    third = resumed(JOB, Retry(second, "again"), Path("out/checkpoint-9"))
    assert (given_to(second), given_to(third)) == ("out/checkpoint-3", "out/checkpoint-9")


def test_a_job_that_cannot_resume_is_not_given_the_checkpoint_of_an_attempt_before() -> None:
    second = resumed(JOB, Retry(JOB, "again"), Path("out/checkpoint-3"))
    assert second is not None
    assert given_to(resumed(JOB, Retry(second, "the next stage", resumes=False), None)) is None


def test_a_job_that_was_asked_to_resume_is_not_restarted_at_step_0_at_another_stage() -> None:
    asked = replace(JOB, args=JOB.args.followed_by(("--resume_from_checkpoint", "mine")))
    assert resumed(asked, Retry(asked, "the next stage", resumes=False), None) is None
    assert given_to(resumed(asked, Retry(asked, "again"), None)) == "mine"


def test_a_job_that_began_with_a_universal_checkpoint_resumes_from_what_it_saved_itself() -> None:
    begun = replace(JOB, resume="mine", overrides=(("checkpoint.load_universal", True),))
    second = resumed(begun, Retry(begun, "again"), Path("out/checkpoint-3"), loads_universal=True)
    assert second is not None
    assert dict(second.overrides) == {"checkpoint.load_universal": False}
    third = resumed(begun, Retry(second, "again"), Path("out/checkpoint-9"))
    assert third is not None
    assert third.overrides == second.overrides
    first_again = resumed(begun, Retry(second, "again"), None)
    assert first_again is not None
    assert (first_again.resume, first_again.overrides) == ("mine", begun.overrides)
