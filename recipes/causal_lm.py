"""Pre-train or fine-tune any causal language model with the Hugging Face Trainer.

An ordinary Trainer program: it knows nothing of zlaunch and runs unchanged under `deepspeed`,
`torchrun` and plain `python`.

    python causal_lm.py                                    a small Llama learns Python source
    python causal_lm.py --dataset notes.txt                the same model, your text
    python causal_lm.py --model DIR_OR_HUB_ID --dataset data.jsonl --learning_rate 2e-5

Without --model it trains a small Llama from random weights on bytes; without --dataset it reads
the source of Python's standard library, which is on every machine that can run this file.
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
    """Whether a directory holds a trained model, or an adapter of one."""
    return any(any(Path(directory).glob(pattern)) for pattern in ("*.safetensors", "*model*.bin"))


@dataclass
class RecipeArguments:
    """What to train, and on what."""

    model: str | None = field(default=None, metadata={"help": "hub id or local directory"})
    dataset: str | None = field(default=None, metadata={"help": "hub id or local file"})
    text_column: str = field(default="text", metadata={"help": "column that holds the text"})
    sequence_length: int = field(default=128, metadata={"help": "tokens per sample"})
    from_scratch: bool = field(default=False, metadata={"help": "random weights for --model"})

    def __post_init__(self) -> None:
        """Refuse what is not there, before anything is loaded."""
        if self.dataset and Path(self.dataset).suffix in READERS and not Path(self.dataset).is_file():
            raise SystemExit(f"there is no dataset {self.dataset}")
        if self.model and not self.from_scratch and Path(self.model).is_dir() and not has_weights(self.model):
            raise SystemExit(
                f"`{self.model}` has no weights: `--from_scratch True` trains a new model of its config"
            )


@dataclass
class Arguments(TrainingArguments):
    """TrainingArguments, with defaults for the small model; a pre-trained one wants a lower rate."""

    learning_rate: float = 1e-3
    warmup_steps: float = 10
    num_train_epochs: float = 1
    logging_steps: float = 5
    save_strategy: str = "no"


def python_sources() -> Dataset:
    """Read 128 KiB of the standard library: one epoch takes about a minute on two cores."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
    text = "".join(file.read_text("utf-8", "replace") for file in files[:20])
    return Dataset.from_dict({"text": [text[: 128 * 1024]]})


def read_dataset(recipe: RecipeArguments) -> Dataset:
    """Read the corpus: a local file, a hub dataset, or Python's own source."""
    if recipe.dataset is None:
        return python_sources()
    if reader := READERS.get(Path(recipe.dataset).suffix):
        return load_dataset(reader, data_files=recipe.dataset, split="train")
    return load_dataset(recipe.dataset, split="train")


def into_blocks(dataset: Dataset, tokenizer, recipe: RecipeArguments) -> Dataset:
    """Tokenize, join all documents, and cut them into samples of equal length."""
    length = recipe.sequence_length
    if recipe.text_column not in dataset.column_names:
        raise SystemExit(f"no column {recipe.text_column!r}; --text_column can be {dataset.column_names}")

    def cut(batch):
        ids = tokenizer(batch[recipe.text_column], add_special_tokens=False)["input_ids"]
        tokens = list(chain.from_iterable([*document, tokenizer.eos_token_id] for document in ids))
        whole = len(tokens) // length * length
        return {"input_ids": [tokens[i : i + length] for i in range(0, whole, length)]}

    blocks = dataset.map(cut, batched=True, remove_columns=dataset.column_names, desc="tokenizing")
    if len(blocks) == 0:
        raise SystemExit(f"the dataset is shorter than one sample of {length} tokens; see --sequence_length")
    return blocks


def load_model(recipe: RecipeArguments):
    """Load the model and its tokenizer.

    The TrainingArguments must exist by now: under ZeRO-3 they make `from_pretrained` and
    `from_config` partition each layer as it is created, so no rank ever holds the whole model.
    """
    if recipe.model is None:
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(SMALL_LLAMA)), ByT5Tokenizer()
    try:
        tokenizer = AutoTokenizer.from_pretrained(recipe.model)
    except ValueError as error:
        print(error, file=sys.stderr)  # many lines, and the last says the least
        raise SystemExit(f"{recipe.model} has no tokenizer that transformers can read") from None
    if recipe.from_scratch:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(recipe.model))
    else:
        model = AutoModelForCausalLM.from_pretrained(recipe.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def join_deepspeed_on_cpu(args: TrainingArguments) -> None:
    """Start DeepSpeed's communication where transformers starts only torch's.

    On GPUs the TrainingArguments do both. On a CPU DeepSpeed would otherwise count one rank while
    it creates the model, and refuse the batch sizes.
    """
    if args.deepspeed and args.use_cpu:
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo")


def main() -> None:
    """Train."""
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
    """End without tearing Python down: native threads of torch sometimes abort a finished run there."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
    leave()
