"""Pre-train or fine-tune any causal language model with the Hugging Face Trainer.

Without --model, it trains a small byte-level Llama from random weights. Without --dataset, it reads the
source code of Python's standard library, so that no download is needed.

    zlaunch train causal_lm --stage 3 --offload cpu
    zlaunch train causal_lm -- --model DIR_OR_HUB_ID --dataset data.jsonl
    deepspeed causal_lm.py --deepspeed ds_config.json
    torchrun --nproc_per_node 2 causal_lm.py --deepspeed ds_config.json
    accelerate launch --use_deepspeed --num_processes 2 causal_lm.py

ZeRO: stages 0 to 3; optimizer and parameters on the CPU or NVMe.

On GPUs: nothing has to change. `--use_cpu` keeps the launchers other than zlaunch on the CPU.
"""

import atexit
import os
import sys
import sysconfig
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


def has_weights(directory: str) -> bool:
    """Whether a directory contains model weights or an adapter."""
    return any(any(Path(directory).glob(pattern)) for pattern in ("*.safetensors", "*model*.bin"))


@dataclass
class RecipeArguments:
    """Model and dataset."""

    model: str | None = field(default=None, metadata={"help": "model on the Hub, or a local directory"})
    dataset: str | None = field(default=None, metadata={"help": "dataset on the Hub, or a local file"})
    text_column: str = field(default="text", metadata={"help": "column with the text"})
    sequence_length: int = field(default=128, metadata={"help": "tokens per sample"})
    from_scratch: bool = field(default=False, metadata={"help": "initialize --model with random weights"})

    def __post_init__(self) -> None:
        """Check the paths before anything is loaded."""
        if self.dataset and Path(self.dataset).suffix in READERS and not Path(self.dataset).is_file():
            raise SystemExit(f"no such dataset: {self.dataset}")
        if self.model and not self.from_scratch and Path(self.model).is_dir() and not has_weights(self.model):
            raise SystemExit(
                f"no weights in `{self.model}`; `--from_scratch True` initializes random ones from its config"
            )


@dataclass
class Arguments(TrainingArguments):
    """TrainingArguments with defaults for the small model; use a lower learning rate to fine-tune."""

    output_dir: str = "trainer_output"
    learning_rate: float = 1e-3
    warmup_steps: float = 10
    num_train_epochs: float = 1
    logging_steps: float = 5
    save_strategy: str = "no"

    def __post_init__(self) -> None:
        """Before release 5, transformers takes only an int for a number of steps."""
        if self.warmup_steps == int(self.warmup_steps):
            self.warmup_steps = int(self.warmup_steps)
        super().__post_init__()


def python_sources() -> Dataset:
    """Read 128 KiB of the standard library; one epoch takes about a minute on two cores."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
    text = "".join(file.read_text("utf-8", "replace") for file in files[:20])
    return Dataset.from_dict({"text": [text[: 128 * 1024]]})


def read_dataset(recipe: RecipeArguments) -> Dataset:
    """Read a local file, a dataset on the Hub, or the source of the standard library."""
    if recipe.dataset is None:
        return python_sources()
    if reader := READERS.get(Path(recipe.dataset).suffix):
        return load_dataset(reader, data_files=recipe.dataset, split="train")
    return load_dataset(recipe.dataset, split="train")


def into_blocks(dataset: Dataset, tokenizer, recipe: RecipeArguments) -> Dataset:
    """Tokenize and concatenate all documents, and split them into samples of equal length."""
    length = recipe.sequence_length
    if recipe.text_column not in dataset.column_names:
        raise SystemExit(f"no column {recipe.text_column!r}; the dataset has {dataset.column_names}")

    def cut(batch):
        ids = tokenizer(batch[recipe.text_column], add_special_tokens=False)["input_ids"]
        tokens = list(chain.from_iterable([*document, tokenizer.eos_token_id] for document in ids))
        whole = len(tokens) // length * length
        return {"input_ids": [tokens[i : i + length] for i in range(0, whole, length)]}

    blocks = dataset.map(cut, batched=True, remove_columns=dataset.column_names, desc="tokenizing")
    if len(blocks) == 0:
        raise SystemExit(f"the dataset has fewer than {length} tokens; reduce `--sequence_length`")
    return blocks


def load_model(recipe: RecipeArguments):
    """Load the model and its tokenizer.

    Create the TrainingArguments first: under ZeRO-3 they make `from_pretrained` and `from_config`
    partition each layer when it is created, so that no rank ever holds the whole model.
    """
    if recipe.model is None:
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(SMALL_LLAMA)), ByT5Tokenizer()
    try:
        tokenizer = AutoTokenizer.from_pretrained(recipe.model)
    except ValueError as error:
        print(error, file=sys.stderr)  # several lines; the last one alone is not helpful
        raise SystemExit(f"no tokenizer in `{recipe.model}` that transformers can read") from None
    if recipe.from_scratch:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(recipe.model))
    else:
        model = AutoModelForCausalLM.from_pretrained(recipe.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def join_deepspeed_on_cpu(args: TrainingArguments) -> None:
    """Initialize DeepSpeed's communication on a CPU, where transformers initializes only torch's.

    Without this call, DeepSpeed would assume one rank while it creates the model, and reject the
    batch sizes. On GPUs, the TrainingArguments initialize both.
    """
    if args.deepspeed and args.use_cpu:
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo")


def main() -> None:
    """Train the model."""
    recipe, args = HfArgumentParser((RecipeArguments, Arguments)).parse_args_into_dataclasses()
    join_deepspeed_on_cpu(args)
    model, tokenizer = load_model(recipe)
    with args.main_process_first(desc="tokenizing"):
        dataset = into_blocks(read_dataset(recipe), tokenizer, recipe)
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=dataset,
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    if args.save_strategy != "no":
        trainer.save_model()


def leave() -> None:
    """Exit without Python's teardown, in which native threads of torch sometimes abort a finished run."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
    leave()
