"""Rehearsals with older packages than the installed ones, whose newer features are removed."""

import pytest

Shape = tuple[int, ...]


def test_a_tensor_has_its_device_where_an_older_torch_names_it_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    from zlaunch.estimate.rehearsal import fake_tensors

    monkeypatch.delattr(FakeTensor, "fake_device")
    fake_tensors.define_fake_device()
    with FakeTensorMode():
        tensor = torch.empty(1, device="meta").to("cpu")
    assert tensor._fake_device == tensor.device == torch.device("cpu")


def test_attention_with_fewer_keys_is_counted_where_an_older_torch_refuses_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.utils import flop_counter

    from zlaunch.estimate.rehearsal import patches

    def old(*shapes: Shape) -> int:
        assert len({shape[1] for shape in shapes}) == 1
        return len(shapes) * shapes[0][1]

    monkeypatch.setattr(flop_counter, "sdpa_flop_count", old)
    monkeypatch.setattr(flop_counter, "sdpa_backward_flop_count", old)
    patches._count_flops_of_grouped_attention()
    query, key = (1, 8, 4, 16), (1, 2, 4, 16)
    assert flop_counter.sdpa_flop_count(query, key, key) == 3 * 8
    assert flop_counter.sdpa_backward_flop_count(query, query, key, key) == 4 * 8


def test_a_model_has_its_class_where_an_older_transformers_lacks_a_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.auto import modeling_auto

    from zlaunch.estimate.rehearsal import model

    monkeypatch.delattr(modeling_auto, "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES")
    assert model.choose_class(LlamaConfig(), None).type is LlamaForCausalLM
