import inspect
from types import SimpleNamespace

import pytest


def test_a_time_between_events_can_be_divided_by_as_deepspeeds_comms_logger_does() -> None:
    from zlaunch.estimate.rehearsal.device import Event  # which imports torch

    assert Event().elapsed_time(Event()) > 0


def test_kernels_on_the_cpu_take_no_memory_of_a_gpu() -> None:
    import torch

    from zlaunch.estimate.rehearsal.allocation_log import AllocationLog
    from zlaunch.estimate.rehearsal.cuda_semantics import kernel_memory
    from zlaunch.estimate.rehearsal.fake_tensors import FakeGpuMode

    class OnHost(FakeGpuMode):
        def _replay_or_trace(self, func: object, *_: object) -> None:
            """Compute nothing."""

    mode = OnHost(AllocationLog(), lambda _: "other", kernel_memory(1 << 20), torch.device("cpu"))
    row = torch.zeros(4)
    mode._run(torch.ops.aten._softmax_backward_data.default, (), (row, row, 0, row.dtype), {})
    assert mode.log.entries == []


def test_questions_about_a_fake_gpu_may_name_it_as_those_about_a_real_one() -> None:
    import torch

    from zlaunch.estimate.rehearsal.allocation_log import AllocationLog
    from zlaunch.estimate.rehearsal.program.cuda import _answers

    answers = _answers(AllocationLog(), num_devices=8, gpu_bytes=80 << 30)
    naming = [name for name in answers if "device" in inspect.signature(getattr(torch.cuda, name)).parameters]
    assert {"max_memory_reserved", "mem_get_info", "current_stream"} < set(naming)
    for name in naming:
        answers[name](device=0)


def test_a_recorded_result_counts_for_one_default_type_alone() -> None:
    import torch

    from zlaunch.estimate.rehearsal.op_results import call_key

    def key() -> object:
        return call_key(torch.ops.aten.empty.memory_format, ([4],), {"device": torch.device("cpu")})

    before, with_32_bits = torch.get_default_dtype(), key()
    try:
        torch.set_default_dtype(torch.bfloat16)
        assert key() != with_32_bits
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("metrics", "every", "keeps"), [(len, None, True), (len, 4, False), (None, None, False)]
)
def test_a_trainer_keeps_predictions_on_the_gpu_unless_it_moves_them_to_the_host_or_needs_none(
    metrics: object, every: int | None, keeps: bool
) -> None:
    from zlaunch.estimate.rehearsal.program import evaluation

    args = SimpleNamespace(prediction_loss_only=False, eval_accumulation_steps=every)
    trainer = SimpleNamespace(compute_metrics=metrics, args=args)
    assert evaluation.keeps_predictions(trainer) is keeps
