"""Classify texts with the Trainer, and measure the accuracy.

Without --model, it trains a small byte-level BERT from random weights. Without --dataset, it learns to tell
generated texts with many a from those with many b.

    zlaunch train classification --stage 2
    zlaunch train classification -- --model MODEL --dataset reviews.csv
    deepspeed classification.py --deepspeed ds_config.json
    torchrun --nproc_per_node 2 classification.py --deepspeed ds_config.json
    accelerate launch classification.py --deepspeed ds_config.json

ZeRO: stages 0 to 3; CPU and NVMe offload.

On GPUs: nothing has to change. Fine-tune with a `--learning_rate` of about 2e-5. Without a GPU, give other
launchers `--use_cpu`.
"""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset, load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ByT5Tokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

SMALL_BERT = Path(__file__).parent / "small_bert"


@dataclass
class RecipeArguments:
    """Model and dataset."""

    model: str | None = field(default=None, metadata={"help": "model on the Hub, or a local directory"})
    dataset: str | None = field(default=None, metadata={"help": "CSV or JSONL file, or dataset on the Hub"})
    text_column: str = field(default="text", metadata={"help": "column with the text"})
    label_column: str = field(default="label", metadata={"help": "column with the class, a number or a word"})
    max_length: int = field(default=128, metadata={"help": "tokens of a text; the rest is cut off"})
    samples: int = field(default=2048, metadata={"help": "number of generated texts"})
    eval_fraction: float = field(default=0.1, metadata={"help": "share of the texts to evaluate with"})


@dataclass
class Arguments(TrainingArguments):
    """TrainingArguments with defaults for the small model; use a lower learning rate to fine-tune."""

    output_dir: str = "classification_output"
    learning_rate: float = 1e-3
    num_train_epochs: float = 1
    logging_steps: float = 5
    save_strategy: str = "no"


def read_texts(recipe: RecipeArguments) -> Dataset:
    """Read a dataset with the columns `text` and `label`, or generate one."""
    if recipe.dataset is None:
        draw = random.Random(0)
        labels = [number % 2 for number in range(recipe.samples)]
        texts = ["".join(draw.choices("ab", (1, 2) if label else (2, 1), k=32)) for label in labels]
        return Dataset.from_dict({"text": texts, "label": labels})
    source = {"path": recipe.dataset}
    if reader := {".csv": "csv", ".json": "json", ".jsonl": "json"}.get(Path(recipe.dataset).suffix):
        source = {"path": reader, "data_files": recipe.dataset}
    names = {recipe.text_column: "text", recipe.label_column: "label"}
    return load_dataset(**source, split="train").select_columns([*names]).rename_columns(names)


def accuracy(prediction) -> dict[str, float]:
    """Return the share of texts whose most probable class is the right one."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main() -> None:
    """Train the model, save it, and measure its accuracy."""
    recipe, args = HfArgumentParser((RecipeArguments, Arguments)).parse_args_into_dataclasses()
    if args.deepspeed and args.use_cpu:  # without a GPU, transformers leaves this out, which ZeRO-3 needs
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo")
    tokenizer = AutoTokenizer.from_pretrained(recipe.model) if recipe.model else ByT5Tokenizer()
    with args.main_process_first(desc="tokenizing"):
        texts = read_texts(recipe).class_encode_column("label")
        texts = texts.map(lambda row: tokenizer(row["text"], truncation=True, max_length=recipe.max_length))
    labels = texts.features["label"].names
    config = AutoConfig.from_pretrained(recipe.model or SMALL_BERT, num_labels=len(labels))
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: number for number, label in enumerate(labels)}
    if recipe.model:
        model = AutoModelForSequenceClassification.from_pretrained(recipe.model, config=config)
    else:
        model = AutoModelForSequenceClassification.from_config(config)
    split = texts.train_test_split(recipe.eval_fraction, seed=args.seed)
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=split["train"],
        eval_dataset=split["test"],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("eval", trainer.evaluate())
    trainer.accelerator.end_training()
    if args.use_cpu:
        time.sleep(1)  # gloo's threads free the last tensors, and abort a rank if Python ends meanwhile


if __name__ == "__main__":
    main()
