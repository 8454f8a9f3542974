"""Make the inputs of the programs: tiny models with random weights, and generated data.

    python -m tools.programs.inputs FOLDER [--even]

runs in the environment of the programs and fills FOLDER/hub (a model hub) and FOLDER/data (files). With
`--even`, all sentences have the same number of tokens: memory then does not depend on the order of a data set.
"""

import io
import json
import pickle
import random
import sys
import tarfile
import wave as wave_file
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORDS = {
    "who": ["the cat", "a dog", "my friend", "the old man", "our teacher", "a small bird"],
    "does": ["sees", "likes", "finds", "wants", "takes", "forgets"],
    "what": ["the red house", "a green tree", "the long road", "some cold water", "a good book"],
    "when": ["in the morning", "after the rain", "every day", "at night", "on the way home"],
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def sentences(count: int, seed: int = 0) -> Iterator[str]:
    """Yield sentences of a small grammar."""
    chance = random.Random(seed)  # noqa: S311 - nothing is secret
    for _ in range(count):
        yield " ".join(chance.choice(words) for words in WORDS.values()) + "."


EVEN = {"who": 2, "does": 1, "what": 3, "when": 3}
"""Words of each part of an even sentence."""


def make_even() -> None:
    """Leave only phrases of which sentences of one length are made."""
    for part, count in EVEN.items():
        WORDS[part] = [phrase for phrase in WORDS[part] if len(phrase.split()) == count]


def main(folder: Path) -> None:
    """Make everything once."""
    hub, data = folder / "hub", folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    _make_models(hub / "models")
    _make_datasets(hub / "datasets")
    _make_files(data)
    _make_ds_configs(folder / "ds")


def _make_models(models: Path) -> None:
    import torch
    import transformers as hf

    torch.manual_seed(0)
    wordpiece, bytelevel = _wordpiece(), _bytelevel()
    tiny = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    bert = hf.BertConfig(vocab_size=len(wordpiece), max_position_embeddings=128, **tiny)
    _save(models / "bert-base-cased", hf.BertForMaskedLM(bert), wordpiece)
    roberta = hf.RobertaConfig(vocab_size=len(bytelevel), max_position_embeddings=514, **tiny)
    _save(models / "roberta-base", hf.RobertaForMaskedLM(roberta), bytelevel)
    _save(models / "sentence-transformers/all-distilroberta-v1", hf.RobertaModel(roberta), bytelevel)
    tokens = {f"{name}_token_id": getattr(bytelevel, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    decoder = {"vocab_size": len(bytelevel), "max_position_embeddings": 512, "num_key_value_heads": 2, **tiny}
    llama = hf.LlamaConfig(**decoder, **tokens)
    _save(models / "tiny-llama", hf.LlamaForCausalLM(llama), bytelevel)
    qwen = hf.Qwen2Config(**decoder, **{**tokens, "bos_token_id": None})
    _save(models / "tiny-qwen2", hf.Qwen2ForCausalLM(qwen), bytelevel)
    opt = hf.OPTConfig(
        vocab_size=len(bytelevel), hidden_size=64, word_embed_proj_dim=64, num_hidden_layers=2, ffn_dim=128,
        num_attention_heads=4, max_position_embeddings=512, bos_token_id=bytelevel.bos_token_id,
        eos_token_id=bytelevel.eos_token_id, pad_token_id=bytelevel.pad_token_id,
    )  # fmt: skip
    _save(models / "tiny-opt", hf.OPTForCausalLM(opt), bytelevel)
    t5 = hf.T5Config(
        vocab_size=len(bytelevel), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        decoder_start_token_id=bytelevel.pad_token_id, pad_token_id=bytelevel.pad_token_id,
        eos_token_id=bytelevel.eos_token_id,
    )  # fmt: skip
    _save(models / "tiny-t5", hf.T5ForConditionalGeneration(t5), bytelevel)
    _save_resnet(models / "timm/resnet50d.ra2_in1k")
    speech = hf.Wav2Vec2Config(
        **tiny, vocab_size=32, conv_dim=(32, 32, 32), conv_kernel=(10, 8, 4), conv_stride=(5, 4, 4),
        num_feat_extract_layers=3, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
    )  # fmt: skip
    hf.Wav2Vec2Model(speech).save_pretrained(models / "tiny-wav2vec2")
    hf.Wav2Vec2FeatureExtractor().save_pretrained(models / "tiny-wav2vec2")


def _save_resnet(folder: Path) -> None:
    import timm  # type: ignore[import-not-found]
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    model = timm.create_model("resnet50d", pretrained=False)
    save_file(model.state_dict(), folder / "model.safetensors")
    config = {"architecture": "resnet50d", "num_classes": 1000, "pretrained_cfg": model.pretrained_cfg}
    (folder / "config.json").write_text(json.dumps(config))


def _save(folder: Path, model: Any, tokenizer: Any) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = folder / "tokenizer_config.json"
    config.write_text(
        config.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast")
    )  # for transformers 4


def _wordpiece() -> Any:
    from tokenizers import BertWordPieceTokenizer, Tokenizer
    from transformers import BertTokenizerFast

    trained = BertWordPieceTokenizer(lowercase=False)
    trained.train_from_iterator(sentences(500), vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    return BertTokenizerFast(tokenizer_object=Tokenizer.from_str(trained.to_str()), model_max_length=128)


def _bytelevel() -> Any:
    from tokenizers import ByteLevelBPETokenizer, Tokenizer
    from transformers import PreTrainedTokenizerFast

    special = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        sentences(500), vocab_size=500, special_tokens=[*special.values()], show_progress=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained.to_str()),
        model_max_length=512,
        chat_template=CHAT,
        **{f"{name}_token": token for name, token in special.items()},
    )


def _make_datasets(datasets: Path) -> None:
    pairs = list(zip(sentences(640, 1), sentences(640, 2), strict=True))
    mrpc = [
        {
            "sentence1": one,
            "sentence2": one if number % 5 else other,
            "label": int(number % 5 > 0),
            "idx": number,
        }
        for number, (one, other) in enumerate(pairs)
    ]
    splits = {"train": mrpc[:512], "validation": mrpc[512:576], "test": mrpc[576:]}
    pairs = pairs[:160]
    _write_dataset(datasets / "nyu-mll/glue", {"mrpc": splits}, ["not_equivalent", "equivalent"])
    text = {name: [{"text": line} for line in sentences(count, 3)] for name, count in _SIZES.items()}
    configs = {"wikitext-2-v1": text, "wikitext-2-raw-v1": text}
    _write_dataset(datasets / "Salesforce/wikitext", configs)
    (datasets / "wikitext").symlink_to("Salesforce/wikitext")
    chats = [[{"role": "user", "content": one}, {"role": "assistant", "content": one}] for one, _ in pairs]
    _write_dataset(datasets / "local/tiny-chat", {"default": _halves([{"messages": chat} for chat in chats])})
    preferences = [
        {
            "prompt": chat[:1],
            "chosen": chat[1:],
            "rejected": [{"role": "assistant", "content": "no no no no."}],
        }
        for chat in chats
    ]
    _write_dataset(datasets / "local/tiny-preferences", {"default": _halves(preferences)})
    _write_dataset(
        datasets / "local/tiny-prompts", {"default": _halves([{"prompt": chat[:1]} for chat in chats])}
    )
    whats = [(line, next(what for what in WORDS["what"] if what in line)) for line in sentences(4600, 10)]
    questions = [
        {"text": line, "coarse_label": 0, "fine_label": WORDS["what"].index(what)} for line, what in whats
    ]
    trec = {"train": questions[:4500], "test": questions[4500:]}
    _write_dataset(datasets / "omkar334/trec", {"default": trec})
    alpaca = [{"instruction": f"say: {one}", "input": "", "output": one} for one, _ in pairs]
    _write_dataset(datasets / "tatsu-lab/alpaca", {"default": {"train": alpaca}})
    rlhf = [
        {"prompt": f"\n\nHuman: {one}\n\nAssistant:", "response": one, "chosen": one, "rejected": "no."}
        for one, _ in pairs
    ]
    _write_dataset(datasets / "Dahoas/rm-static", {"default": _halves(rlhf)})
    sounds = [{"audio": {"bytes": _sound(n % 2), "path": f"{n}.wav"}, "label": n % 2} for n in range(160)]
    _write_dataset(datasets / "local/tiny-speech", {"default": _halves(sounds)}, ["low", "high"])


def _sound(octave: int) -> bytes:
    """Make a WAV file of half a second: a tone with noise."""
    import numpy as np

    times = np.arange(8000) / 16000
    wave = np.sin(2 * np.pi * 220 * 2**octave * times) + np.random.default_rng(octave).normal(0, 0.1, 8000)
    written = io.BytesIO()
    with wave_file.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((wave * 10000).astype(np.int16).tobytes())
    return written.getvalue()


_SIZES = {"train": 600, "validation": 60, "test": 60}


def _halves(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {"train": rows[:128], "test": rows[128:]}


def _write_dataset(
    folder: Path, configs: dict[str, dict[str, list[dict[str, Any]]]], labels: list[str] | None = None
) -> None:
    from datasets import ClassLabel, Dataset

    card = ["---", "configs:"]
    for config, splits in configs.items():
        card += [f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            data = Dataset.from_list(rows)
            if labels:
                data = data.cast_column("label", ClassLabel(names=labels))
            file = folder / config / f"{split}-00000-of-00001.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            data.to_parquet(file)
            card += [f"  - split: {split}", f"    path: {config}/{split}-*"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))


def _translated(sentence: str) -> str:
    """Capitalize a sentence, whose number of tokens changes with that."""
    if "--even" in sys.argv:
        return sentence
    return sentence.upper()


def _make_files(data: Path) -> None:
    (data / "train.txt").write_text("\n".join(sentences(600, 4)) + "\n")
    (data / "validation.txt").write_text("\n".join(sentences(60, 5)) + "\n")
    for name, seed in (("train", 6), ("validation", 7)):
        rows = [{"translation": {"en": one, "de": _translated(one)}} for one in sentences(160, seed)]
        (data / f"translation-{name}.json").write_text("\n".join(map(json.dumps, rows)) + "\n")
    words = " ".join(sentences(20_000, 8)).split()[
        : 35 * 4160
    ]  # Lightning's examples split off 4000 sequences of 35
    (data / "wikitext-2.txt").write_text(" ".join(words) + "\n")
    chats = [
        [{"role": "user", "content": one}, {"role": "assistant", "content": one}] for one in sentences(160, 9)
    ]
    (data / "chat.jsonl").write_text("\n".join(json.dumps({"messages": chat}) for chat in chats) + "\n")
    _make_cifar(data / "cifar")
    _make_pets(data / "pets")


def _make_ds_configs(folder: Path) -> None:
    """Write the files that `table` names: `stage` for the Trainer, `plain` with an optimizer."""
    folder.mkdir(parents=True, exist_ok=True)
    adamw = {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}
    for stage in (1, 2, 3):
        zero = {"zero_optimization": {"stage": stage}}
        batch = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
        auto = {**batch, "gradient_clipping": "auto", **zero}
        plain = {"train_micro_batch_size_per_gpu": 2, "optimizer": adamw, **zero}
        (folder / f"stage{stage}.json").write_text(json.dumps(auto))
        (folder / f"plain{stage}.json").write_text(json.dumps(plain))
    slow = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}
    pipeline = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "optimizer": slow}
    (folder / "pipeline.json").write_text(json.dumps(pipeline))
    sft = {
        "model_name_or_path": "tiny-llama", "dataset_name": "local/tiny-chat", "max_length": 64, "max_steps": 12,
        "per_device_train_batch_size": 2, "learning_rate": 1e-2, "logging_steps": 2, "bf16": False, "use_cpu": True,
        "output_dir": "out", "save_strategy": "no", "report_to": "none", "deepspeed": str(folder / "stage2.json"),
    }  # fmt: skip
    (folder / "sft.yaml").write_text(json.dumps(sft))  # JSON is YAML


def _make_pets(folder: Path) -> None:
    """Write JPEG files whose names begin with their class, as in the Oxford-IIIT pets."""
    import numpy as np
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    for number in range(40):
        kind = number % 4
        image = chance.integers(0, 60, (64, 64, 3)) + kind * 50
        Image.fromarray(image.astype(np.uint8)).save(folder / f"pet{kind}_{number}.jpg")


def _make_cifar(folder: Path) -> None:
    """Write 100 images in the layout of CIFAR-10: one colour for each class, and noise."""
    import numpy as np

    chance = np.random.default_rng(0)
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True, exist_ok=True)
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        labels = list(range(10)) * 8
        images = chance.integers(0, 40, (len(labels), 3072)) + np.array(labels)[:, None] * 20
        batch = {"data": images.astype(np.uint8), "labels": labels}
        (batches / name).write_bytes(pickle.dumps(batch))
    (batches / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(label) for label in range(10)]}))
    with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(batches, batches.name)


if __name__ == "__main__":
    if "--even" in sys.argv:
        make_even()
    main(Path(sys.argv[1]))
