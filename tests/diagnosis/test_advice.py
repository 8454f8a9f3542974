"""What to change is computed for the job: it says numbers, and never what is on already."""

import signal
from typing import Any

import pytest

from tests.diagnosis.deaths import CUDA_OOM, FORECAST, GIB, SITE, frame, kills, printed, raised, run, stopped
from tests.diagnosis.table import WEIGHTS_ONLY
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.stall import StallEvidence
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.job.script import ConfigInterface, Handover
from zlaunch.rundir import phases

BUCKET = {"zero_optimization": {"reduce_bucket_size": 500_000_000}}


def gpu_oom(
    phase: str = phases.FORWARD, words: str | None = None, world_size: int = 2, **job: Any
) -> Verdict:
    message = words or CUDA_OOM.format(free="8.00 MiB", between="16.00 MiB", others="")
    about = {"world_size": world_size, "stage": 2, "micro_batch": 4, "grad_accum": 2, **job}
    return diagnose(run(raised("OutOfMemoryError", message, phase=phase), job=about))


def host_oom(phase: str = phases.STEPPING, peak: int = 6 * GIB, **job: Any) -> Verdict:
    rank = printed("", -9, phase=phase, peak_rss_bytes=peak)
    return diagnose(run(rank, oom_kills=kills(1), job={"stage": 3, "world_size": 1, **job}))


def test_a_smaller_micro_batch_keeps_the_global_batch() -> None:
    assert gpu_oom().advice[0] == (
        "`-- --per_device_train_batch_size 2 --gradient_accumulation_steps 4`: saves activations; "
        "more micro-steps for the same global batch"
    )


def test_a_verdict_names_downsides_only_where_all_advice_fits() -> None:
    words = CUDA_OOM.format(free="8.00 MiB", between="0 bytes", others="Process 7 has 60.00 GiB in use. ")
    advice = gpu_oom(words=words, interface=ConfigInterface.DEEPSPEED, stage=1).advice
    assert [one.partition("`: ")[2].partition("; ")[0] for one in advice] == [
        "saves activations",
        "partitions optimizer states and gradients across 2 ranks",
        "saves optimizer states",
    ]


def test_an_odd_micro_batch_is_split_evenly() -> None:
    flags = "--per_device_train_batch_size 1 --gradient_accumulation_steps 6"
    assert flags in gpu_oom(micro_batch=3).advice[0]


def test_a_script_without_the_trainer_is_told_keys_of_the_ds_config() -> None:
    keys = "--set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=4"
    assert keys in gpu_oom(interface=ConfigInterface.DEEPSPEED).advice[0]


def test_a_script_that_trains_without_the_ds_config_is_told_nothing_that_would_change_it() -> None:
    advice = gpu_oom(interface=ConfigInterface.NONE, handover=Handover.NOT, stage=0).advice
    assert not [one for one in advice if one.startswith(("`--stage", "`--offload", "`--set", "`-- "))]


@pytest.mark.parametrize("phase", [phases.LOADING, phases.INITIALIZING, phases.STEPPING])
def test_where_no_activations_are_a_smaller_batch_is_not_proposed(phase: str) -> None:
    assert "batch" not in " ".join(gpu_oom(phase).advice)


def test_checkpointing_is_proposed_only_if_it_is_known_to_be_off() -> None:
    proposed = [
        "--gradient_checkpointing" in " ".join(gpu_oom(gradient_checkpointing=known).advice)
        for known in (None, True, False)
    ]
    assert proposed == [False, False, True]


@pytest.mark.parametrize(
    ("stage", "offload", "expected"),
    [
        (0, {}, ["--stage 1", "--stage 2 --offload cpu"]),
        (2, {}, ["--stage 3", "--offload cpu"]),
        (3, {}, ["--offload optimizer:cpu", "--offload cpu"]),
        (2, {"optimizer": "cpu"}, ["--stage 3", "--stage 3 --offload cpu"]),
        (3, {"optimizer": "cpu"}, ["--offload cpu"]),
        (3, {"optimizer": "cpu", "param": "cpu"}, []),
    ],
)
def test_the_walk_goes_on_from_where_the_job_is(
    stage: int, offload: dict[str, str], expected: list[str]
) -> None:
    advice = gpu_oom(stage=stage, offload=offload, micro_batch=1).advice
    assert [one.partition("`:")[0].lstrip("`") for one in advice] == expected


def test_one_rank_alone_shares_with_nobody() -> None:
    assert "`--stage" not in " ".join(gpu_oom(world_size=1, micro_batch=1).advice)


def test_growing_segments_are_proposed_where_the_gaps_would_have_held_it() -> None:
    torn = CUDA_OOM.format(free="813.12 MiB", between="1.21 GiB", others="")
    assert gpu_oom(words=torn).advice[0].startswith("`PYTORCH_ALLOC_CONF=expandable_segments:True`")


def test_growing_segments_are_not_proposed_where_the_gaps_were_too_small() -> None:
    assert "expandable_segments" not in " ".join(gpu_oom().advice)


def test_another_process_on_the_gpu_is_named_where_it_holds_what_is_missing() -> None:
    shared = CUDA_OOM.format(
        free="8.00 MiB", between="0 bytes", others="Process 4711 has 40.00 GiB memory in use. "
    )
    assert gpu_oom(words=shared).advice[0].startswith("process 4711 holds 40.00 GiB of this GPU")


def test_a_bucket_that_is_larger_than_it_needs_to_be_is_recognized_by_its_size() -> None:
    words = CUDA_OOM.format(free="8.00 MiB", between="0 bytes", others="").replace("2.00 GiB", "954.00 MiB")
    advice = gpu_oom(phases.BACKWARD, words, config=BUCKET).advice
    assert advice[0].startswith("`--set zero_optimization.reduce_bucket_size=50000000`")


def test_a_forecast_stands_beside_what_torch_held() -> None:
    assert "70.0 GiB of tensors predicted" in gpu_oom(forecast=FORECAST).facts


def test_the_host_is_relieved_by_taking_parameters_back_or_by_a_drive() -> None:
    assert host_oom(offload={"optimizer": "cpu", "param": "cpu"}).advice == (
        "`--offload optimizer:cpu`: saves host memory; parameters stay in GPU memory",
        "`--offload nvme --nvme DIR`: saves host memory; slower steps; needs a fast drive",
    )


def test_a_job_that_moved_nothing_to_the_host_gets_no_advice() -> None:
    assert host_oom(offload={"optimizer": "none"}).advice == ()


def test_a_model_that_each_rank_loads_whole_at_stage_3_is_recognized() -> None:
    advice = host_oom(phases.LOADING, forecast=FORECAST).advice
    assert advice == (
        "create `TrainingArguments` before the model, so that stage 3 partitions it while loading",
    )


def test_a_model_that_is_loaded_as_predicted_is_not_blamed_on_its_order() -> None:
    assert host_oom(phases.LOADING, GIB // 2, forecast=FORECAST).advice == ()


def test_peaks_and_forecast_stand_in_the_evidence_of_a_kill() -> None:
    """A forecast is of tensors: what the program itself takes is added, as `zlaunch runs show` does."""
    facts = host_oom(forecast=FORECAST, accelerator="cuda").facts
    assert "peak RSS in GiB: 6.0 (rank 0); predicted: 4.8 each" in facts


def test_on_a_cpu_what_a_gpu_would_hold_lies_in_the_memory_of_the_host() -> None:
    facts = host_oom(forecast=FORECAST, accelerator="cpu").facts
    assert "peak RSS in GiB: 6.0 (rank 0); predicted: 73.6 each" in facts


@pytest.mark.parametrize(("gpu", "is_said"), [({"uncorrected_errors": 3}, True), ({}, False), (None, False)])
def test_errors_that_a_gpu_counted_in_its_memory_stand_beside_its_fault(gpu: Any, is_said: bool) -> None:
    rank = raised("AcceleratorError", "CUDA error: uncorrectable ECC error encountered", sample={"gpu": gpu})
    said = "uncorrected errors of its memory since the driver was loaded: 3"
    assert (said in diagnose(run(rank)).facts) == is_said


@pytest.mark.parametrize(
    ("optimizer", "is_named"), [("torch.optim.adamw.AdamW", True), ("torch.optim.sgd.SGD", False)]
)
def test_deepspeeds_adam_is_named_where_the_script_brings_torchs(optimizer: str, is_named: bool) -> None:
    said = (
        f"You are using ZeRO-Offload with a client provided optimizer (<class '{optimizer}'>) which in most"
    )
    advice = diagnose(run(raised("ZeRORuntimeException", said))).advice
    assert ("deepspeed.ops.adam.DeepSpeedCPUAdam" in " ".join(advice)) is is_named


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ("utils/file_baton.py:49 wait", "`find /tmp/ext/py311_cpu -name lock -delete`"),
        ("filelock/_api.py:338 acquire", "`lslocks` shows the processes"),
        ("_core/_acquire.py:177 _poll_until_acquired", "`lslocks` shows the processes"),
    ],
)
def test_a_lock_that_torch_goes_by_is_deleted_and_one_of_a_process_is_not(place: str, advice: str) -> None:
    log = "Using /tmp/ext/py311_cpu as PyTorch extensions root...\n"
    rank = stopped(0, log=log, phase=phases.BUILDING)
    (found,) = diagnose(run(rank, stall=StallEvidence(65.0, 0, {0: place}))).advice
    assert found.startswith(advice)


FORCED = "if you trust the file, `--env TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1` loads it"


@pytest.mark.parametrize(
    ("file", "code", "is_forced"),
    [
        ("train.py", "state = torch.load(FILE)", True),
        ("train.py", "state = torch.load(FILE, weights_only=True)", False),
        (
            f"{SITE}/deepspeed/runtime/checkpoint_engine/fast_checkpoint_engine.py",
            "sd = torch.load(path)",
            True,
        ),
        (f"{SITE}/accelerate/utils/other.py", "return torch.load(f, **kwargs)", False),
    ],
)
def test_the_variable_that_lets_torch_load_anything_is_named_where_it_has_an_effect(
    file: str, code: str, is_forced: bool
) -> None:
    error = raised("UnpicklingError", WEIGHTS_ONLY, frame(file, 7, "load", code))
    verdict = diagnose(run(error))
    assert (verdict.code, FORCED in verdict.advice) == ("weights-only-refused", is_forced)


def test_a_bus_error_of_unknown_cause_names_shared_memory() -> None:
    bus, illegal = (diagnose(run(printed("", -number))) for number in (signal.SIGBUS, signal.SIGILL))
    assert "/dev/shm" in bus.advice[0]
    assert illegal.advice == ()


def test_ranks_that_wait_at_different_places_at_stage_3_are_told_what_all_have_to_run() -> None:
    stall = StallEvidence(70.0, 7, {0: "train.py:9 main", 1: "net.py:4 forward"}, (1,))
    two, three = (
        diagnose(run(stopped(0), stopped(1), stall=stall, job={"stage": stage})) for stage in (2, 3)
    )
    assert "the same layers in the same order" in three.advice[0]
    assert two.advice == ()


def test_a_script_written_for_gpus_is_told_what_works_on_a_cpu_too() -> None:
    words = "Cannot access accelerator device when none is available."
    on = {
        name: diagnose(run(raised("RuntimeError", words), job={"accelerator": name}))
        for name in ("cpu", "cuda")
    }
    assert "`.to(engine.device)`" in on["cpu"].advice[0]
    assert on["cuda"].advice == ()


def test_an_overflow_in_fp16_that_only_the_script_asked_for_is_answered_with_bf16() -> None:
    for seen in ({"loss": float("inf")}, {"taken_steps": 40, "skipped_steps": 40}):
        rank = printed("", 0, heartbeat={**seen, "loss_scale": 1.0})
        verdict = diagnose(run(rank, launcher_returncode=0, job={"handover": Handover.NOT}))
        assert verdict.advice[0].startswith("write `bf16` in place of `fp16` in the script's own ds_config")
