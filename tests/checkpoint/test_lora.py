import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.engines import ADAPTERS
from tests.running import zlaunch
from zlaunch.checkpoint.export import plan_export, write_export
from zlaunch.checkpoint.find import checkpoint_at
from zlaunch.checkpoint.safetensors import write_header
from zlaunch.errors import InputMissing, Unavailable, WrongUsage

pytestmark = pytest.mark.job

CLOSE = 1e-5
"""Of logits around one in fp32, computed in another order."""


def live_logits(saved: Path, name: str) -> Any:
    from safetensors.torch import load_file

    return load_file(saved / "adapters" / f"{name}.safetensors")["logits"]


def logits(model: Any) -> Any:
    import torch

    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(12)[None]).logits


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_that_was_exported_answers_like_the_one_that_trained(
    name: str, saved: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    result = zlaunch("checkpoint", "export", saved / "adapters" / name, "out", cwd=tmp_path)
    assert result.status == 0, result.err
    assert 'PeftModel.from_pretrained(model, "out")' in result.err
    assert {one.name for one in (tmp_path / "out").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    base = AutoModelForCausalLM.from_pretrained(saved / "adapters" / "base")
    plain = logits(base)
    model = PeftModel.from_pretrained(base, tmp_path / "out")
    assert logits(model).equal(live_logits(saved, name))
    assert not plain.allclose(live_logits(saved, name), atol=0.01)


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_merged_adapter_answers_like_the_model_that_trained(name: str, saved: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    base = saved / "adapters" / "base"
    words = ("checkpoint", "export", saved / "adapters" / name, "out", "--merge-lora", "--model", base)
    result = zlaunch(*words, cwd=tmp_path)
    assert result.status == 0, result.err
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert logits(model).allclose(live_logits(saved, name), atol=CLOSE)


def test_a_merge_is_that_of_peft(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    monkeypatch.setattr("zlaunch.checkpoint.lora.BLOCK", 100)  # rows are cut among blocks
    folder, base = saved / "adapters" / "lora2", saved / "adapters" / "base"
    write(folder, tmp_path / "kept")
    write(folder, tmp_path / "merged", merge_lora=True)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "kept")
    theirs, ours = model.merge_and_unload().state_dict(), load_file(tmp_path / "merged" / "model.safetensors")
    assert theirs.keys() == ours.keys()
    assert all(ours[key].allclose(theirs[key], atol=1e-7) for key in theirs)


def adapted(folder: Path, *modules: str) -> Any:
    """Save a GPT-2, whose matrices are transposed and whose embeddings are tied, as an engine at stage 0 does."""
    import peft
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = GPT2Config(vocab_size=33, n_positions=8, n_embd=12, n_layer=1, n_head=2)
    lora = peft.LoraConfig(
        r=3, target_modules=modules, fan_in_fan_out=True, init_lora_weights=False, use_rslora=True
    )
    model = peft.get_peft_model(GPT2LMHeadModel(sizes), lora)
    tag = folder / "global_step1"
    tag.mkdir()
    state = {"module": model.state_dict(), "dp_world_size": 1, "mp_world_size": 1, "global_steps": 1}
    torch.save({**state, "ds_config": {}}, tag / "mp_rank_00_model_states.pt")
    lora.save_pretrained(folder)
    sizes.save_pretrained(folder)
    return model


def test_a_merge_into_transposed_weights_and_embeddings_is_that_of_peft(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model = adapted(tmp_path, "c_attn", "wpe")
    write(tmp_path, tmp_path / "out", merge_lora=True)
    theirs, ours = model.merge_and_unload().state_dict(), load_file(tmp_path / "out" / "model.safetensors")
    assert theirs.keys() - ours.keys() == {"lm_head.weight"}  # tied
    assert all(one.allclose(theirs[key], atol=1e-6) for key, one in ours.items())


def test_nothing_is_merged_into_one_of_two_tied_weights(tmp_path: Path) -> None:
    adapted(tmp_path, "wte")
    with pytest.raises(Unavailable, match=r"`transformer.wte.weight` is tied"):
        write(tmp_path, tmp_path / "out", merge_lora=True)


def test_weights_of_the_model_that_the_checkpoint_lacks_are_asked_for(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="no weights of the model under the adapter") as caught:
        write(saved / "adapters" / "lora1-alone", tmp_path / "out", merge_lora=True)
    assert "--model DIR" in str(caught.value.hint)


def test_the_model_that_the_adapter_names_is_taken_if_it_is_here(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied("adapters")
    change(folder / "lora1-alone", base_model_name_or_path=str(folder / "base"))
    write(folder / "lora1-alone", tmp_path / "out", merge_lora=True)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"]


def test_another_model_is_not_merged_into(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("adapters")
    other = folder.parent / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    with pytest.raises(Unavailable, match=r"has no `model.layers.0.self_attn.q_proj.weight`"):
        write(folder / "lora1-alone", tmp_path / "out", merge_lora=True, model=other)


def test_a_model_with_a_damaged_header_is_not_merged_into(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied("adapters")
    described = {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}
    (folder / "base" / "model.safetensors").write_bytes(write_header(described))
    with pytest.raises(Unavailable, match=r"the header of `model.safetensors` is damaged"):
        write(folder / "lora1-alone", tmp_path / "out", merge_lora=True, model=folder / "base")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, "`use_dora` cannot be merged"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed the weights of the model"),
        ({"peft_type": "IA3"}, "only LoRA can be exported"),
    ],
)
def test_what_is_no_plain_product_is_not_merged(
    settings: dict[str, Any], message: str, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied("adapters")
    change(folder / "lora1-alone", **settings)
    with pytest.raises(Unavailable, match=message):
        write(folder / "lora1-alone", tmp_path / "out", merge_lora=True, model=folder / "base")


def test_an_adapter_without_its_settings_is_not_guessed(
    copied: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copied("adapters") / "lora2"
    (folder / "adapter_config.json").unlink()
    with pytest.raises(InputMissing, match=r"there is no adapter_config.json"):
        write(folder, tmp_path / "out")


def test_a_model_without_an_adapter_has_nothing_to_merge(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(WrongUsage, match="no adapter to merge"):
        write(saved / "models" / "dense", tmp_path / "out", merge_lora=True)


def write(folder: Path, out: Path, **options: Any) -> None:
    write_export(plan_export(checkpoint_at(folder), None, **options), out, lambda done: None)


def change(folder: Path, **settings: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
