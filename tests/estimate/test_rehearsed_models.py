"""Whose model is rehearsed, and on what: from any config.json that transformers writes, or that brings its code."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.estimate.rehearsing import rehearse, rehearse_apart
from tests.estimate.test_rehearsal import LLAMA, workload
from zlaunch.errors import Unavailable
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.workload import Images, Lora, Workload
from zlaunch.job.model import read_model

pytestmark = pytest.mark.job

VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 14,
}
BERT = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SPEECH = {
    "model_type": "wav2vec2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
QWEN = {
    "model_type": "qwen2_5_vl",
    "text_config": {**LLAMA, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}},
    "vision_config": {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "out_hidden_size": 256,
    },
    "image_token_id": 7,
}
MAMBA2 = {
    "model_type": "mamba2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 1000,
    "num_heads": 8,
    "head_dim": 16,
    "expand": 2,
    "state_size": 16,
    "n_groups": 1,
}


def of(config: dict[str, Any], *architectures: str, **changed: Any) -> Workload:
    named = {"architectures": list(architectures)} if architectures else {}
    return replace(workload(2, save=False, **changed), model={**config, **named})


KINDS = {
    "an image classifier": of({"model_type": "vit", **VISION}, "ViTForImageClassification"),
    "a type with two classes for its task": of({"model_type": "deit", **VISION}),
    "an encoder of images alone": of({"model_type": "vit", **VISION}, "ViTModel"),
    "a classifier of speech": of(SPEECH, "Wav2Vec2ForSequenceClassification"),
    "a classifier of sequences": of(LLAMA, "LlamaForSequenceClassification"),
    "answers found in a text": of(BERT, "BertForQuestionAnswering"),
    "a choice of answers": of(BERT, "BertForMultipleChoice"),
    "two losses": of(BERT, "BertForPreTraining"),
    "an encoder alone": of(BERT, "BertModel"),
    "a class that nobody knows": of(LLAMA, "LlamaForRewardModel"),
    "images of one size": of(
        {
            "model_type": "llava",
            "text_config": LLAMA,
            "vision_config": {"model_type": "clip_vision_model", **VISION},
        },
        "LlavaForConditionalGeneration",
    ),
    "images of any size": of(
        QWEN,
        "Qwen2_5_VLForConditionalGeneration",
    ),
    "images of a given size": replace(
        of(QWEN, "Qwen2_5_VLForConditionalGeneration"), images=Images(2, 200, 130), seq_len=128
    ),
    "pages that may have an image": of(
        {**BERT, "model_type": "layoutlmv3", "coordinate_size": 12, "shape_size": 8},
        "LayoutLMv3ForTokenClassification",
    ),
    "infinity": of({**MAMBA2, "time_step_limit": [0.0, float("inf")]}, "Mamba2ForCausalLM"),
    "infinity as transformers writes it": of(
        {**MAMBA2, "time_step_limit": [0.0, {"__float__": "Infinity"}]}, "Mamba2ForCausalLM"
    ),
}

REMARKS = {
    "a classifier of speech": "a sequence of 64 is counted as that many audio frames, 20480 samples",
    "an encoder of images alone": "`ViTModel` computes no loss: counted as `ViTForImageClassification`",
    "an encoder alone": "`BertModel` computes no loss: counted as `BertForMaskedLM`",
    "a class that nobody knows": "`LlamaForRewardModel` is not in transformers: counted as `LlamaForCausalLM`",
    "images of any size": "images of any size are counted with `--images 1x1024x768`",
    "images of a given size": "counted with 2 images of 196 x 140 in each sequence, 35 tokens each",
    "images of one size": "counted with one image of 56 x 56 in each sequence, its tokens included",
}
MISSING = {"images of any size": ("images",), "pages that may have an image": ("images",)}


@pytest.fixture(scope="module")
def told() -> dict[str, Forecast]:
    return dict(zip(KINDS, rehearse(list(KINDS.values())), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_is_rehearsed_and_says_what_is_not_counted(
    kind: str, told: dict[str, Forecast]
) -> None:
    forecast = told[kind]
    assert (forecast.why_not_rehearsed, forecast.late_error) == (None, None)
    assert forecast.notes == ((REMARKS[kind],) if kind in REMARKS else ())
    assert forecast.missing == MISSING.get(kind, ())


def test_infinity_in_a_config_is_read_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba2", "time_step_limit": [0.0, Infinity]}')
    assert read_model(tmp_path).value["time_step_limit"] == [0.0, float("inf")]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (of({"model_type": "no_such_type"}), "no_such_type"),
        (of({"model_type": "resnet", "architectures": ["ResNetForImageClassification"]}), "image_size"),
    ],
    ids=["unknown", "images of unknown size"],
)
def test_of_a_model_that_cannot_be_rehearsed_nobody_can_tell(asked: Workload, why: str) -> None:
    with pytest.raises(Unavailable, match=f"cannot tell how much memory this model takes: .*{why}"):
        rehearse([asked])


CLIP = {
    "model_type": "clip",
    "architectures": ["CLIPModel"],
    "projection_dim": 16,
    "text_config": {**VISION, "vocab_size": 100, "max_position_embeddings": 16},
    "vision_config": VISION,
}
REFUSED = {
    "a parameter without dimensions at stage 2": (
        replace(of(CLIP), seq_len=16),
        [
            "RuntimeError: self.dim() cannot be 0 to view ",
            "(deepspeed/runtime/engine.py:",
            "during initialize)",
        ],
    ),
    "a parameter without dimensions at stage 3": (
        replace(workload(3, save=False), model=CLIP, seq_len=16, zero_init=True),
        ["RuntimeError: self.dim() cannot be 0 to view ", "(deepspeed/runtime/zero/partition_parameters.py:"],
    ),
    "a weight norm at stage 3": (
        replace(
            workload(3, save=False), model={**SPEECH, "architectures": ["Wav2Vec2ForCTC"]}, zero_init=True
        ),
        ["IndexError: Dimension out of range", "(transformers/", "during load under zero.Init)"],
    ),
}
"""What DeepSpeed, or transformers inside `zero.Init`, fails at → the parts of its words."""


@pytest.fixture(scope="module")
def refused() -> dict[str, Forecast]:
    return dict(zip(REFUSED, rehearse([asked for asked, _ in REFUSED.values()]), strict=True))


@pytest.mark.parametrize("kind", REFUSED)
def test_what_torch_refuses_to_deepspeed_while_a_model_is_loaded_ends_the_job(
    kind: str, refused: dict[str, Forecast]
) -> None:
    words = refused[kind].late_error or ""
    assert [part for part in REFUSED[kind][1] if part not in words] == []


def test_adapters_without_peft_are_not_rehearsed_and_the_command_that_installs_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "peft.py").write_text("raise ModuleNotFoundError(name='peft')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (forecast,) = rehearse_apart([replace(of(LLAMA), lora=Lora(4))])
    python = sys.executable
    why = f"peft is not installed in {python}: `{python} -m pip install peft`"
    assert (forecast.method, forecast.why_not_rehearsed) == ("closed form", why)


REAL = """
import json, sys, deepspeed, transformers
from transformers.integrations import HfDeepSpeedConfig
deepspeed.init_distributed("gloo")
zero = HfDeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
                          "zero_optimization": {"stage": 3}})
for config in json.load(sys.stdin):
    cls = getattr(transformers, config["architectures"][0])
    try:
        cls._from_config(transformers.AutoConfig.for_model(**config))
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.full
def test_real_deepspeed_fails_with_the_same_words(refused: dict[str, Forecast]) -> None:
    models = {kind: dict(asked.model) for kind, (asked, _) in REFUSED.items() if "stage 3" in kind}
    ranks = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29577",
    }
    done = subprocess.run(
        [sys.executable, "-c", REAL],
        input=json.dumps(list(models.values())),
        env={**os.environ, **ranks, "DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    raised = [line for line in done.stdout.splitlines() if "Error: " in line]
    for kind, words in zip(models, raised, strict=True):
        assert (refused[kind].late_error or "").startswith(words)


CODE = """
import torch
from transformers import PreTrainedModel, PretrainedConfig
from transformers.modeling_outputs import CausalLMOutput

class Config(PretrainedConfig):
    model_type = "{kind}"
    def __init__(self, width=8, vocab_size=50, **rest):
        super().__init__(**rest)
        self.width, self.vocab_size = width, vocab_size

class Model(PreTrainedModel):
    config_class = Config
    def __init__(self, config):
        super().__init__(config)
        self.words = torch.nn.Embedding(config.vocab_size, config.width)
        self.head = torch.nn.Linear(config.width, config.vocab_size, bias=False)
        self.post_init()
    def _init_weights(self, module):
        pass
    def forward(self, input_ids, labels=None):
        logits = self.head(self.words(input_ids))
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        return CausalLMOutput(loss=loss, logits=logits)
"""


def with_code(folder: Path, kind: str, more: str = "") -> Workload:
    """Make a model that brings its own code, of a type that is transformers' own or is not."""
    auto_map = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    config = {**LLAMA, "model_type": kind, "architectures": ["Model"], "auto_map": auto_map, "width": 16}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(more + CODE.replace("{kind}", kind))
    return replace(of(config), remote_code=str(folder))


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers copies a model's code to."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))


@pytest.mark.parametrize("kind", ["llama", "mine"])
def test_a_model_s_own_code_goes_before_a_built_in_of_the_same_type(kind: str, tmp_path: Path) -> None:
    (forecast,) = rehearse_apart([with_code(tmp_path, kind)])
    assert (forecast.why_not_rehearsed, forecast.late_error) == (None, None)
    assert forecast.parameters == 2 * 16 * LLAMA["vocab_size"]  # type: ignore[operator]


def test_a_model_s_own_code_that_may_not_run_is_not_taken_for_the_built_in(tmp_path: Path) -> None:
    asked = replace(with_code(tmp_path, "mine"), remote_code=None)
    with pytest.raises(Unavailable, match="has no model type `mine`"):
        rehearse_apart([asked])


def test_a_model_s_own_code_runs_only_where_it_can_be_killed(tmp_path: Path) -> None:
    """That is in the rehearsal, not in the program that forks it, whose parent this process is."""
    log = tmp_path / "log"
    rehearse_apart(
        [with_code(tmp_path, "mine", f"import os\nopen({str(log)!r}, 'a').write(f'{{os.getppid()}} ')\n")]
    )
    assert str(os.getpid()) not in log.read_text().split()


def test_own_code_that_needs_what_is_not_installed_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no_such_package"):
        rehearse_apart([with_code(tmp_path, "mine", "import no_such_package\n")])
