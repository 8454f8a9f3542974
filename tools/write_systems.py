"""Write docs/systems.md, which names the tests that prove each system: `python -m tools.write_systems`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "systems.md"

HEAD = """# What works, and which test proves it

This page lists the systems that ZeRO tutorials are about. `make docs` generates it, and a test makes sure
that the tests in it exist. They run on a CPU, with the real packages. What was verified on GPUs is in
[GPU checks](gpu.md).

| | system | works as | proven by |
|--:|---|---|---|
"""


@dataclass(frozen=True)
class System:
    """A row: `proofs` are test files below tests/, each with names of its tests."""

    name: str
    works: str
    proofs: tuple[tuple[str, tuple[str, ...]], ...]


def _by(file: str, test: str, *others: str) -> tuple[str, tuple[str, ...]]:
    return file, (test, *others)


_PRESETS = _by("jobs/test_training.py", "test_every_preset_trains_with_exactly_the_ds_config_that_was_shown")
_MEMORY = _by(
    "estimate/rehearsal/test_equal_to_real_ranks.py",
    "test_a_rehearsal_says_to_the_byte_what_each_phase_of_real_training_holds",
)

SYSTEMS = (
    System(
        "DDP",
        "`--stage 0`; estimate of memory and traffic",
        (
            _PRESETS,
            _by(
                "estimate/speed/test_communication.py",
                "test_the_volume_is_the_papers_where_deepspeed_does_as_the_paper_says",
            ),
        ),
    ),
    System(
        "ZeRO-1",
        "`--stage 1`; `round_robin_gradients` if asked for",
        (
            _PRESETS,
            _MEMORY,
            _by(
                "resume/test_can_resume.py",
                "test_numbers_that_would_be_loaded_in_another_order_are_refused",
            ),
        ),
    ),
    System(
        "ZeRO-2",
        "`--stage 2`; buckets that follow the model",
        (
            _PRESETS,
            _MEMORY,
            _by("config/resolve/test_autos.py", "test_an_auto_becomes_a_value"),
            _by("estimate/test_candidates.py", "test_buckets_are_one_for_speed_and_one_for_memory"),
        ),
    ),
    System(
        "ZeRO-3",
        "`--stage 3`; sizes that follow the model, whole model saved",
        (_PRESETS, _MEMORY, _by("config/resolve/test_autos.py", "test_stage_3_sizes_follow_the_model")),
    ),
    System(
        "ZeRO-Offload",
        "`--offload cpu`; host memory checked and ops compiled before the ranks start",
        (
            _PRESETS,
            _MEMORY,
            _by("checks/test_resources.py", "test_a_forecast_says_what_the_hosts_memory_takes"),
            _by(
                "jobs/test_op_builds.py",
                "test_environments_do_not_rebuild_each_others_ops_and_lost_objects_are_made_before_the_ranks",
            ),
        ),
    ),
    System(
        "ZeRO-Infinity",
        "`--offload nvme --nvme DIR`; free space checked first",
        (
            _by(
                "checks/test_resources.py",
                "test_an_offload_to_nvme_locks_its_buffers_and_fills_the_drive",
            ),
            _by(
                "jobs/test_training.py",
                "test_nvme_offload_swaps_to_a_directory_of_its_own_and_cleans_it_up",
                "test_parameters_that_stay_on_nvme_are_used_again_in_the_backward_pass",
            ),
        ),
    ),
    System(
        "ZeRO-Inference",
        "`zlaunch train generate`: stage 3 without an optimizer, parameters on the CPU or NVMe",
        (
            _by(
                "jobs/test_recipes.py",
                "test_text_is_generated_by_ranks_that_share_a_model",
                "test_a_model_larger_than_memory_generates_from_nvme_and_not_from_the_cpu",
            ),
        ),
    ),
    System(
        "Hugging Face Trainer",
        "its arguments resolve every `auto`; contradictions are refused",
        (
            _by("contract/test_trainer.py", "test_every_value_is_the_one_the_trainer_fills_in"),
            _by(
                "contract/test_handover.py",
                "test_the_trainer_compares_a_key_if_zlaunch_says_so_and_only_then",
            ),
        ),
    ),
    System(
        "accelerate without Trainer",
        "`zlaunch train accelerate_loop`, and scripts as they are",
        (
            _by(
                "jobs/test_programs.py",
                "test_an_accelerate_script_trains_with_zero_on_a_cpu_each_rank_on_its_own_data",
            ),
            _by(
                "jobs/test_recipes.py",
                "test_a_loop_with_accelerate_leaves_optimizer_and_schedule_to_deepspeed",
                "test_a_loop_with_accelerate_trains_on_one_process_without_deepspeed",
            ),
        ),
    ),
    System(
        "`deepspeed` launcher",
        "`--launcher deepspeed`: one host, filters, hostfile",
        (
            _PRESETS,
            _by("contract/test_launchers.py", "test_deepspeeds_runner_finds_the_same_hosts_and_devices"),
            _by("cluster/test_losses.py", "test_hosts_that_ssh_reaches_train_as_one_does"),
            _by("cluster/test_hosts.py", "test_a_filter_leaves_one_host"),
        ),
    ),
    System(
        "`torchrun`",
        "`--launcher torchrun`: one host; several over ssh, in Slurm, or with a zlaunch on each",
        (
            _PRESETS,
            _by("contract/test_launchers.py", "test_torchrun_understands_its_command_line"),
            _by(
                "cluster/test_losses.py",
                "test_hosts_that_ssh_reaches_train_as_one_does",
                "test_nodes_of_slurm_train_as_one_host_does",
            ),
            _by("cluster/test_clusters_page.py", "test_a_command_works_as_it_is_printed"),
        ),
    ),
    System(
        "Memory estimate",
        "`zlaunch estimate`, from `config.json` alone",
        (
            _MEMORY,
            _by("program/test_estimate.py", "test_a_model_on_the_hub_is_estimated_from_its_config_alone"),
        ),
    ),
    System(
        "Mixed precision",
        "`--precision bf16`, `fp16` or `fp32`; collapse of the loss scale and NaN explained",
        (
            _PRESETS,
            _by("deaths/test_deaths.py", "test_a_death_is_told_as_it_was"),
            _by(
                "contract/test_native_ops.py",
                "test_deepspeed_trains_in_fp16_on_the_cpus_that_are_said_to_have_it",
            ),
        ),
    ),
    System(
        "Optimizers and schedulers",
        "those of DeepSpeed and of the script; illegal combinations are refused",
        (
            _by(
                "contract/test_deepspeed_optimizers.py",
                "test_every_optimizer_of_deepspeed_has_a_model",
                "test_the_defaults_of_an_optimizer_are_its_constructors",
            ),
            _by(
                "contract/test_schedules.py",
                "test_a_schedule_of_deepspeed_is_the_one_deepspeed_follows",
                "test_a_schedule_of_the_trainer_is_the_one_transformers_follows",
            ),
            _by("contract/test_late_rules.py", "test_the_engine_fails_with_what_a_late_rule_is_about"),
        ),
    ),
    System(
        "Checkpoints",
        "`zlaunch checkpoint`, `train --resume`: other ranks, stages and offload",
        (
            _by(
                "resume/test_can_resume.py",
                "test_the_next_losses_are_the_same_on_other_ranks_at_other_stages_and_in_other_precision",
            ),
            _by(
                "checkpoint/test_export.py",
                "test_the_weights_are_those_of_the_conversion_that_comes_with_deepspeed",
            ),
        ),
    ),
    System(
        "Mixture of experts",
        "`zlaunch train moe`: stages 2 and 3, leaf modules",
        (_by("jobs/test_recipes.py", "test_a_mixture_of_experts_is_trained"),),
    ),
    System(
        "The tutorials' experiment",
        "`zlaunch tour`: memory of each phase and traffic, measured",
        (
            _by(
                "jobs/test_tour.py",
                "test_every_phase_of_every_job_takes_what_was_predicted",
                "test_all_ranks_send_the_same_and_the_baseline_what_the_textbook_says",
            ),
        ),
    ),
    System(
        "Debugging",
        "`--debug RANK`: an editor attaches to a rank, here or on another host",
        (
            _by("program/test_debug.py", "test_the_rank_stops_at_a_breakpoint"),
            _by("cluster/test_debug_there.py", "test_an_editor_attaches_to_a_rank_on_another_host"),
        ),
    ),
    System(
        "Progress",
        "phases, steps, loss, memory and time left in one line",
        (
            _by(
                "jobs/test_watch.py",
                "test_a_trainer_tells_its_course_without_a_change",
                "test_an_engine_without_a_trainer_tells_its_course",
            ),
            _by(
                "cli/views/test_progress.py",
                "test_the_line_is_never_wider_than_asked_and_never_more_than_one",
                "test_the_time_in_a_phase_is_shown_before_the_first_step",
            ),
        ),
    ),
    System(
        "ds_configs as people write them",
        "comments, `2e8` for integers, old and removed keys: read, explained, mended",
        (
            _by(
                "dsconfig/test_read.py",
                "test_a_comment_is_no_part_of_the_value",
                "test_a_number_is_what_deepspeeds_reader_makes_of_it",
            ),
            _by("dsconfig/test_schema_check.py", "test_a_removed_key_is_told_from_one_that_never_was"),
            _by(
                "program/test_validate.py",
                "test_fixing_writes_the_mended_text",
                "test_an_older_release_reads_what_the_newest_refuses",
            ),
        ),
    ),
)


def page() -> str:
    """Return the page."""
    return HEAD + "".join(f"{row}\n" for row in _rows())


def _rows() -> Iterator[str]:
    for number, one in enumerate(SYSTEMS, 1):
        proofs = "<br>".join(_proof(*proof) for proof in one.proofs)
        yield f"| {number} | {one.name} | {one.works} | {proofs} |"


def _proof(file: str, tests: tuple[str, ...]) -> str:
    said = [test.removeprefix("test_").replace("_", " ") for test in tests]
    return f"[{file}](../tests/{file}): {'; '.join(said)}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
