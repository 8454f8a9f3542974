from zlaunch.launch.tour import (
    MODES_OF_PARITY,
    NVME,
    PARITY,
    TOUR,
    Experiment,
    LoggedCall,
    overrides_of,
    sent_by,
)


def test_buckets_and_limits_are_as_large_as_a_layer() -> None:
    keys = dict(overrides_of(Experiment(width=16), TOUR[3]))
    assert keys["zero_optimization.reduce_bucket_size"] == 256
    assert keys["zero_optimization.stage3_prefetch_bucket_size"] == 256


def test_only_stage_3_gets_keys_of_stage_3() -> None:
    with_keys = {
        mode.label for mode in TOUR if any("stage3" in key for key, _ in overrides_of(Experiment(), mode))
    }
    assert with_keys == {"ZeRO-3"}


def test_calls_of_a_kind_are_added_up_however_a_release_names_them() -> None:
    calls = [
        LoggedCall("all_gather_into_tensor", 10, 2),
        LoggedCall("all_gather_base", 1, 1),
        LoggedCall("reduce_scatter_tensor", 40, 1),
        LoggedCall("all_reduce", 8, 1),
        LoggedCall("broadcast", 4, 1),
    ]
    sent = {"all-gather": 63, "reduce-scatter": 30, "all-reduce": 12, "other": 3}
    assert sent_by(calls, world_size=4) == sent


def test_buffers_for_nvme_are_left_to_zlaunch() -> None:
    assert not any("stage3" in key for key, _ in overrides_of(PARITY, NVME))


def test_directories_of_runs_have_names_without_special_characters() -> None:
    slugs = [mode.slug for mode in (*MODES_OF_PARITY, NVME)]
    assert slugs[-3:] == ["zero-2-cpu", "zero-3-cpu", "zero-3-nvme"]
