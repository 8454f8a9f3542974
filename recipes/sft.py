"""Fine-tune a chat model (SFT), with TRL if it is installed.

A chat becomes text by the chat template of the tokenizer. The loss covers only the last answer of each chat.
Without --model, a small byte-level Llama with random weights learns to repeat numbers in generated chats.

    zlaunch train sft --stage 2
    zlaunch train sft --stage 3 -- --model MODEL --dataset chats.jsonl
    deepspeed sft.py --deepspeed ds_config.json
    torchrun --nproc_per_node 2 sft.py --deepspeed ds_config.json
    accelerate launch sft.py --deepspeed ds_config.json

The dataset has a column `messages`: `[{"role": "user", "content": …}, {"role": "assistant", "content": …}]`.

ZeRO: stages 0 to 3; CPU and NVMe offload.

On GPUs: nothing has to change. Fine-tune with a `--learning_rate` of about 2e-5, and add
`--gradient_checkpointing True`. Without a GPU, give other launchers `--use_cpu`.
"""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset, load_dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    ByT5Tokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

try:
    from trl import SFTConfig as TrainerArguments
    from trl import SFTTrainer
except ImportError:
    TrainerArguments, SFTTrainer = TrainingArguments, None

SMALL_LLAMA = Path(__file__).parent / "small_llama"
TEMPLATE = (
    "{% for one in messages %}{{ one.role }}: {{ one.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For tokenizers without a template of their own."""


@dataclass
class RecipeArguments:
    """Model and dataset."""

    model: str | None = field(default=None, metadata={"help": "model on the Hub, or a local directory"})
    dataset: str | None = field(default=None, metadata={"help": "JSONL file, or dataset on the Hub"})
    chats: int = field(default=512, metadata={"help": "number of generated chats"})


@dataclass
class Arguments(TrainerArguments):
    """Arguments of the Trainer with defaults for the small model; use a lower learning rate to fine-tune."""

    output_dir: str = "sft_output"
    learning_rate: float = 1e-3
    num_train_epochs: float = 1
    logging_steps: float = 5
    save_strategy: str = "no"


def read_chats(recipe: RecipeArguments) -> Dataset:
    """Read or generate chats, each as a prompt and its completion: the last answer."""
    if recipe.dataset is None:
        numbers = [str(random.Random(chat).randrange(10**6)) for chat in range(recipe.chats)]
        rows = [({"role": "user", "content": n}, {"role": "assistant", "content": n}) for n in numbers]
        chats = Dataset.from_dict({"messages": rows})
    elif Path(recipe.dataset).suffix in (".json", ".jsonl"):
        chats = load_dataset("json", data_files=recipe.dataset, split="train")
    else:
        chats = load_dataset(recipe.dataset, split="train")
    columns = chats.column_names
    return chats.map(
        lambda row: {"prompt": row["messages"][:-1], "completion": row["messages"][-1:]},
        remove_columns=columns,
    )


def tokenize(tokenizer, row) -> dict[str, list[int]]:
    """Apply the chat template; -100 takes the prompt out of the loss."""
    prompt = tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(row["prompt"] + row["completion"], tokenize=False)
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    answer = tokenizer(whole.removeprefix(prompt), add_special_tokens=False)["input_ids"]
    return {"input_ids": ids + answer, "labels": [-100] * len(ids) + answer}


def make_trainer(model, args, chats, tokenizer) -> Trainer:
    """Use TRL, which applies the chat template itself, or do as it does."""
    if SFTTrainer is not None:
        return SFTTrainer(model=model, args=args, train_dataset=chats, processing_class=tokenizer)
    with args.main_process_first(desc="tokenizing"):
        rows = chats.map(lambda row: tokenize(tokenizer, row), remove_columns=chats.column_names)
    collator = DataCollatorForSeq2Seq(tokenizer)
    return Trainer(model, args, collator, train_dataset=rows, processing_class=tokenizer)


def main() -> None:
    """Train the model and save it."""
    recipe, args = HfArgumentParser((RecipeArguments, Arguments)).parse_args_into_dataclasses()
    if args.deepspeed and args.use_cpu:  # without a GPU, transformers leaves this out, which ZeRO-3 needs
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo")
    if recipe.model is None:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(SMALL_LLAMA))
        tokenizer = ByT5Tokenizer()
    else:
        model = AutoModelForCausalLM.from_pretrained(recipe.model)
        tokenizer = AutoTokenizer.from_pretrained(recipe.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.chat_template = tokenizer.chat_template or TEMPLATE
    trainer = make_trainer(model, args, read_chats(recipe), tokenizer)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    trainer.accelerator.end_training()
    if args.use_cpu:
        time.sleep(1)  # gloo's threads free the last tensors, and abort a rank if Python ends meanwhile


if __name__ == "__main__":
    main()
