"""Train a mixture of experts, with leaf modules at stage 3.

It trains a small Mixtral, or one of your own. Every token goes to two of the experts of a layer, and only
these compute it. ZeRO-3 gathers weights in the order in which modules run, but which experts run differs from
rank to rank. So the block with all its experts is declared a leaf: it is gathered as a whole, and no rank
waits for the experts of another.

    zlaunch train moe --stage 3
    zlaunch train moe --stage 2
    zlaunch train moe --stage 3 -- --model MIXTRAL_DIR --learning_rate 2e-5
    deepspeed moe.py --deepspeed ds_config.json
    torchrun --nproc_per_node 2 moe.py --deepspeed ds_config.json
    accelerate launch moe.py --deepspeed ds_config.json

ZeRO: stages 2 and 3; leaf modules at stage 3.

On GPUs: nothing has to change. A model that fits on each GPU trains faster with stage 2, which gathers
nothing. Without a GPU, give other launchers `--use_cpu`.
"""

import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

from datasets import Dataset
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
from transformers.integrations import is_deepspeed_zero3_enabled

SMALL_MIXTRAL = Path(__file__).parent / "small_mixtral"


@dataclass
class RecipeArguments:
    """Model and data."""

    model: str | None = field(
        default=None, metadata={"help": "model with experts on the Hub, or a directory"}
    )
    leaf: str = field(default="SparseMoeBlock", metadata={"help": "end of the class name of a leaf module"})
    sequence_length: int = field(default=128, metadata={"help": "tokens per sample"})
    samples: int = field(default=512, metadata={"help": "number of samples of Python's source code"})


@dataclass
class Arguments(TrainingArguments):
    """TrainingArguments with defaults for the small model."""

    output_dir: str = "moe_output"
    learning_rate: float = 1e-3
    num_train_epochs: float = 1
    logging_steps: float = 5
    save_strategy: str = "no"


def load_model(recipe: RecipeArguments):
    """Load the model and its tokenizer; at stage 3, declare its blocks of experts as leaf modules."""
    if recipe.model is None:
        config, tokenizer = AutoConfig.from_pretrained(SMALL_MIXTRAL), ByT5Tokenizer()
        model = AutoModelForCausalLM.from_config(config)
    else:
        model = AutoModelForCausalLM.from_pretrained(recipe.model, output_router_logits=True)
        tokenizer = AutoTokenizer.from_pretrained(recipe.model)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if is_deepspeed_zero3_enabled():
        from deepspeed.utils import set_z3_leaf_modules

        leaves = {type(one) for one in model.modules() if type(one).__name__.endswith(recipe.leaf)}
        set_z3_leaf_modules(model, [*leaves])
        print(f"leaf modules: {', '.join(one.__name__ for one in leaves)}")
    return model, tokenizer


def read_blocks(tokenizer, recipe: RecipeArguments) -> Dataset:
    """Cut the source code of Python's standard library into samples of equal length."""
    length, tokens = recipe.sequence_length, []
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py")):
        tokens += tokenizer(file.read_text("utf-8", "replace"))["input_ids"]
        if len(tokens) >= length * recipe.samples:
            break
    starts = range(0, min(len(tokens) - length + 1, length * recipe.samples), length)
    return Dataset.from_dict({"input_ids": [tokens[start : start + length] for start in starts]})


def main() -> None:
    """Train the model and save it."""
    recipe, args = HfArgumentParser((RecipeArguments, Arguments)).parse_args_into_dataclasses()
    if args.deepspeed and args.use_cpu:  # without a GPU, transformers leaves this out, which ZeRO-3 needs
        import deepspeed

        deepspeed.init_distributed(dist_backend="gloo")
    model, tokenizer = load_model(recipe)
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=read_blocks(tokenizer, recipe),
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    trainer.accelerator.end_training()
    if args.use_cpu:
        time.sleep(1)  # gloo's threads free the last tensors, and abort a rank if Python ends meanwhile


if __name__ == "__main__":
    main()
