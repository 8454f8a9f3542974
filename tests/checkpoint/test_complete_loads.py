"""The law of `checkpoint verify`: what it calls complete is loaded whole by the real packages."""

import copy
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.made import T, safetensors
from zlaunch.checkpoint.find import find
from zlaunch.checkpoint.safetensors import SafetensorsFile
from zlaunch.checkpoint.summary import summarize

pytestmark = pytest.mark.job

SIZES = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 40}
MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("LlamaConfig", {"intermediate_size": 24}, "5GB"),
    "llama in shards": ("LlamaConfig", {"intermediate_size": 24, "tie_word_embeddings": True}, "10KB"),
    "qwen2": ("Qwen2Config", {"intermediate_size": 24, "num_key_value_heads": 1}, "5GB"),
    "gpt2": ("GPT2Config", {"n_positions": 32}, "5GB"),
    "classifier": ("LlamaConfig", {"intermediate_size": 24, "pad_token_id": 0}, "5GB"),
}
"""Name → class of the config, settings, and largest size of a file."""

ADAPTERS: dict[str, dict[str, Any]] = {
    "adapter": {},
    "adapter with a head": {"modules_to_save": ["lm_head"]},
    "adapter of DoRA": {"use_dora": True},
    "adapter with tokens": {"trainable_token_indices": [1, 2]},
}
"""Name → settings of LoRA."""

CONFIGS = ("config.json", "adapter_config.json", "generation_config.json")
"""Without all of these, a file of weights is not for `from_pretrained`."""

POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models, and an adapter of one, as the packages save them."""
    import peft
    import transformers

    folder = tmp_path_factory.mktemp("models")
    for name, (config, more, size) in MODELS.items():
        model = auto(folder / name).from_config(getattr(transformers, config)(**{**SIZES, **more}))
        model.save_pretrained(folder / name, max_shard_size=size)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "llama")
    for name, more in ADAPTERS.items():
        lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **more)
        peft.get_peft_model(copy.deepcopy(base), lora).save_pretrained(folder / name)
    loha = peft.LoHaConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    peft.get_peft_model(copy.deepcopy(base), loha).save_pretrained(folder / "adapter of LoHa")
    prompt = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    peft.get_peft_model(copy.deepcopy(base), prompt).save_pretrained(folder / "adapter of prompts")
    return folder


def rewritten(file: Path, change: Callable[[dict[str, T]], Mapping[str, T]]) -> None:
    read = SafetensorsFile(file)
    tensors = {
        name: T(tensor.shape, tensor.dtype, read.read(tensor).tobytes())
        for name, tensor in read.tensors.items()
    }
    safetensors(change(tensors), file)


@st.composite
def damages(draw: st.DrawFn, folder: Path) -> str:
    """Damage a model in one way; return how."""
    files = sorted(file for file in folder.iterdir() if file.name != "README.md")
    weights = [file for file in files if file.suffix == ".safetensors"]
    kinds = ["nothing", "cut", "remove", "pointer", "empty", "drop", "layers", "part", "prefix", "config"]
    if (folder / "config.json").exists():
        kinds += ["bare", "class"]
    kind = draw(st.sampled_from(kinds))
    file = draw(st.sampled_from(weights if kind in ("empty", "drop", "layers", "part", "prefix") else files))
    match kind:
        case "cut":
            file.write_bytes(file.read_bytes()[: draw(st.integers(0, file.stat().st_size - 1))])
        case "remove":
            file.unlink()
        case "pointer":
            file.write_text(POINTER)
        case "empty" | "drop":
            names = draw(st.sets(st.sampled_from(sorted(SafetensorsFile(file).tensors)), min_size=1))
            if kind == "empty":
                rewritten(file, lambda old: {**old, **{name: T((0,)) for name in names}})
            else:
                rewritten(file, lambda old: {one: old[one] for one in old.keys() - names})
        case "part":
            ends = {name.rpartition(".")[2] for name in SafetensorsFile(file).tensors}
            ends |= {
                name.removesuffix(".weight").rpartition(".")[2] for name in SafetensorsFile(file).tensors
            }
            end = draw(st.sampled_from(sorted(ends)))
            rewritten(file, lambda old: {name: old[name] for name in old if end not in name.split(".")})
        case "prefix":
            prefix = draw(st.sampled_from(["module.", "_orig_mod.", "_forward_module.", "base_model.model."]))
            rewritten(file, lambda old: {prefix + name: tensor for name, tensor in old.items()})
        case "layers":
            first = f".{draw(st.integers(1, 2))}."
            rewritten(file, lambda old: {name: old[name] for name in old if first not in name})
        case "config" | "bare" | "class":
            change_config(folder, draw, kind)
    return f"{kind} {file.name}"


def change_config(folder: Path, draw: st.DrawFn, kind: str) -> None:
    file = folder / ("adapter_config.json" if (folder / "adapter_config.json").exists() else "config.json")
    config = json.loads(file.read_text())
    match kind:
        case "config":
            numbers = [key for key, value in config.items() if type(value) is int and key in CHANGED]
            key = draw(st.sampled_from(sorted(numbers)))
            config[key] *= 2
        case "bare":
            kept = draw(st.sets(st.sampled_from(sorted(config)))) | {"model_type"}
            config = {key: config[key] for key in kept}
        case "class":
            named = {"classifier": "LlamaForCausalLM", "llama": "LlamaForSequenceClassification"}
            config["architectures"] = [named.get(folder.name, config["architectures"][0])]
    file.write_text(json.dumps(config))


CHANGED = (
    *("hidden_size", "num_hidden_layers", "vocab_size", "intermediate_size", "num_key_value_heads"),
    *("n_embd", "n_layer", "n_positions", "r", "num_virtual_tokens"),
)


def auto(folder: Path) -> Any:
    """Choose what loads a model: by the class that its config.json names, or else that was saved."""
    import transformers

    is_classifier = folder.name == "classifier"
    if (folder / "config.json").exists():
        named = json.loads((folder / "config.json").read_text()).get("architectures") or [""]
        is_classifier = named[0].endswith("ForSequenceClassification")
    if is_classifier:
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForCausalLM


def loads(folder: Path, base: Path) -> str:
    """Load what is in a directory; say what is missing, or why it does not load."""
    import peft

    try:
        if "adapter" in folder.name:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message=".*missing adapter keys.*")
                peft.PeftModel.from_pretrained(auto(base).from_pretrained(base), folder)
            return ""
        _, info = auto(folder).from_pretrained(folder, output_loading_info=True, local_files_only=True)
    except Exception as error:  # noqa: BLE001 - whatever they raise is the answer
        return f"{type(error).__name__}: {error}"
    return str({key: info[key] for key in ("missing_keys", "mismatched_keys") if info[key]} or "")


@pytest.mark.parametrize("name", [*MODELS, *ADAPTERS, "adapter of LoHa", "adapter of prompts"])
def test_what_is_called_complete_is_loaded_whole(name: str, models: Path, tmp_path: Path) -> None:
    assert loads(models / name, models / "llama") == ""
    (whole,) = find(models / name)
    assert summarize(whole).problems == ()

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.data())
    def whatever_happens_to_it(data: st.DataObject) -> None:
        folder = tmp_path / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(models / name, folder)
        how = data.draw(damages(folder))
        found = find(folder)
        has_config = any(map(Path.exists, map(folder.joinpath, CONFIGS)))
        if found and has_config and not summarize(found[0], complete=True).problems:
            assert loads(folder, models / "llama") == "", how

    whatever_happens_to_it()


def test_adapters_of_all_kinds_are_complete_as_peft_saves_them(models: Path, tmp_path: Path) -> None:
    import peft
    import transformers

    modules = ["q_proj", "v_proj"]
    kinds = {
        "heads": peft.LoraConfig(r=2, target_modules=modules, modules_to_save=["lm_head"]),
        "dora": peft.LoraConfig(r=2, target_modules=modules, use_dora=True),
        "one layer": peft.LoraConfig(r=2, target_modules=modules, layers_to_transform=[1]),
        "one module": peft.LoraConfig(r=2, target_modules=["layers.0.self_attn.q_proj"]),
        "ranks": peft.LoraConfig(r=2, target_modules=modules, rank_pattern={"v_proj": 4}),
        "embedding": peft.LoraConfig(r=2, target_modules=["embed_tokens", "lm_head"]),
        "adalora": peft.AdaLoraConfig(target_modules=modules, total_step=9),
        "ia3": peft.IA3Config(target_modules=modules, feedforward_modules=[]),
        "vera": peft.VeraConfig(r=2, target_modules=modules),
        "prefix": peft.PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
    }
    problems = {}
    for name, config in kinds.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(models / "llama")
        peft.get_peft_model(model, config).save_pretrained(tmp_path / name)
        (found,) = find(tmp_path / name)
        problems[name] = summarize(found, complete=True).problems
    assert problems == dict.fromkeys(kinds, ())
