"""Pre-train or fine-tune any causal language model.

By default, it trains a small byte-level Llama from random weights on source code of Python, and downloads
nothing. Documents are packed into samples of equal length. The model is saved to --output_dir.

    zlaunch train causal_lm --stage 3 --offload cpu
    zlaunch train causal_lm -- --model MODEL --dataset data.jsonl --lora_rank 16
    deepspeed causal_lm.py --deepspeed ds_config.json
    torchrun --nproc_per_node 2 causal_lm.py --deepspeed ds_config.json
    accelerate launch causal_lm.py --deepspeed ds_config.json

ZeRO: stages 0 to 3; CPU and NVMe offload.

On GPUs: nothing has to change. For real models, add `--gradient_checkpointing True`, and fine-tune with a
`--learning_rate` of about 2e-5, or 2e-4 with LoRA. Without a GPU, give other launchers `--use_cpu`.
"""

import sysconfig
import time
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from datasets import Dataset, load_dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    ByT5Tokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

SMALL_LLAMA = Path(__file__).parent / "small_llama"
READERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}


@dataclass
class RecipeArguments:
    """Model and dataset."""

    model: str | None = field(default=None, metadata={"help": "model on the Hub, or a local directory"})
    from_scratch: bool = field(default=False, metadata={"help": "initialize --model with random weights"})
    lora_rank: int = field(default=0, metadata={"help": "train LoRA adapters of this rank only, with peft"})
    dataset: str | None = field(default=None, metadata={"help": "dataset on the Hub, or a local file"})
    text_column: str = field(default="text", metadata={"help": "column with the text"})
    streaming: bool = field(default=False, metadata={"help": "read --dataset while training"})
    sequence_length: int = field(default=128, metadata={"help": "tokens per sample"})
    eval_fraction: float = field(default=0.0, metadata={"help": "share of the samples to evaluate with"})

    def __post_init__(self) -> None:
        if self.dataset and Path(self.dataset).suffix in READERS and not Path(self.dataset).is_file():
            raise SystemExit(f"no such dataset: {self.dataset}")
        if self.streaming and (self.dataset is None or self.eval_fraction):
            raise SystemExit("--streaming needs a --dataset, and cannot split it for --eval_fraction")
        is_local = self.model and not self.from_scratch and Path(self.model).is_dir()
        if is_local and not {file.suffix for file in Path(self.model).iterdir()} & {".safetensors", ".bin"}:
            raise SystemExit(f"no weights in `{self.model}`; `--from_scratch True` initializes random ones")


@dataclass
class Arguments(TrainingArguments):
    """TrainingArguments with defaults for the small model; use a lower learning rate to fine-tune."""

    output_dir: str = "trainer_output"
    learning_rate: float = 1e-3
    warmup_steps: int = 10
    num_train_epochs: float = 1
    logging_steps: float = 5
    save_strategy: str = "no"


def read_dataset(recipe: RecipeArguments) -> Dataset:
    """Read a local file, a dataset on the Hub, or 128 KiB of the standard library."""
    if recipe.dataset is None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
        text = "".join(file.read_text("utf-8", "replace") for file in files[:20])[: 128 * 1024]
        return Dataset.from_dict({"text": [text]})
    reader = READERS.get(Path(recipe.dataset).suffix)
    source = {"path": reader, "data_files": recipe.dataset} if reader else {"path": recipe.dataset}
    return load_dataset(**source, split="train", streaming=recipe.streaming)


def into_blocks(dataset: Dataset, tokenizer, recipe: RecipeArguments) -> Dataset:
    """Pack: tokenize and concatenate all documents, and split them into samples of equal length."""
    length, columns = recipe.sequence_length, dataset.column_names or list(next(iter(dataset)))
    if recipe.text_column not in columns:
        raise SystemExit(f"no column {recipe.text_column!r}; the dataset has {columns}")

    def cut(batch):
        ids = tokenizer(batch[recipe.text_column], add_special_tokens=False)["input_ids"]
        tokens = list(chain.from_iterable([*document, tokenizer.eos_token_id] for document in ids))
        return {"input_ids": [tokens[i : i + length] for i in range(0, len(tokens) - length + 1, length)]}

    blocks = dataset.map(cut, batched=True, remove_columns=columns)
    if not recipe.streaming and len(blocks) < (2 if recipe.eval_fraction else 1):
        raise SystemExit(f"the dataset has too few tokens for samples of {length}: `--sequence_length`")
    return blocks


def load_model(recipe: RecipeArguments):
    """Load the model; under ZeRO-3, TrainingArguments that exist already partition each layer at once."""
    tokenizer = AutoTokenizer.from_pretrained(recipe.model) if recipe.model else ByT5Tokenizer()
    if recipe.model and not recipe.from_scratch:
        model = AutoModelForCausalLM.from_pretrained(recipe.model)
    else:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(recipe.model or SMALL_LLAMA))
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if recipe.lora_rank:
        from peft import LoraConfig, get_peft_model

        lora = LoraConfig(r=recipe.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model.enable_input_require_grads()  # for --gradient_checkpointing, as the embedding is frozen
        model = get_peft_model(model, lora)
    return model, tokenizer


def main() -> None:
    """Train the model, save it, and evaluate it."""
    recipe, args = HfArgumentParser((RecipeArguments, Arguments)).parse_args_into_dataclasses()
    if args.deepspeed and args.use_cpu:  # without a GPU, transformers leaves this out, which ZeRO-3 needs
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo")
    if not recipe.lora_rank and Path(args.output_dir, "adapter_config.json").exists():
        raise SystemExit(f"`{args.output_dir}` has an adapter; name another directory: `--output_dir`")
    model, tokenizer = load_model(recipe)
    with args.main_process_first(desc="tokenizing"):
        blocks = into_blocks(read_dataset(recipe), tokenizer, recipe)
    split = blocks.train_test_split(recipe.eval_fraction, seed=args.seed) if recipe.eval_fraction else {}
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=split.get("train", blocks),
        eval_dataset=split.get("test"),
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    if split:
        trainer.log_metrics("eval", trainer.evaluate())
    trainer.accelerator.end_training()
    time.sleep(1 if args.use_cpu else 0)  # gloo's threads would abort a rank whose Python ends meanwhile


if __name__ == "__main__":
    main()
