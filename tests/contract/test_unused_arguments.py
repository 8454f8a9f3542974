"""Arguments that are said to have no effect, against what the installed Trainer makes of them."""

import itertools
from types import SimpleNamespace
from typing import Any

from tests.contract.trainer_side import trainer_fills, training_arguments
from tests.each import each
from zlaunch.dsconfig.text.document import leaves
from zlaunch.hosts.machine.interpreter import installed_stack
from zlaunch.job.args import ScriptArgs
from zlaunch.job.trainer_args import read_arguments
from zlaunch.job.unused_arguments import OPTIMIZER_ARGUMENTS, SCHEDULE_ARGUMENTS, unused_arguments

INSTALLED = installed_stack().trainer
BY_KEY = {
    "--adam_beta1 0.5": ("optimizer", "betas"),
    "--adam_beta2 0.5": ("optimizer", "betas"),
    "--adam_epsilon 0.5": ("optimizer", "eps"),
    "--weight_decay 0.5": ("optimizer", "weight_decay"),
    "--warmup_steps 7": ("scheduler", "warmup_num_steps"),
    "--max_grad_norm 0.5": ("", "gradient_clipping"),
}
KINDS = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")


def config(kind: str, keys: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    written: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "scheduler": {"type": kind, "params": {"total_num_steps": 100}},
    }
    for section, key in keys:
        node = written
        if section:
            node = written[section]["params"]
        node[key] = "auto"
    return written


def is_unused(line: str, written: dict[str, Any]) -> bool:
    args, _ = read_arguments(ScriptArgs.of(line.split()), release=INSTALLED)
    return any(line in found.message for found in unused_arguments(dict(leaves(written)), args))


@each(("kind", "line"), itertools.product(KINDS, BY_KEY))
def test_an_argument_has_no_effect_exactly_if_the_trainer_fills_in_the_same_without_it(
    kind: str, line: str
) -> None:
    for keys in ((), (BY_KEY[line],)):
        written = config(kind, keys)
        with_it, without = trainer_fills(written, line.split()), trainer_fills(written, [])
        number = f"{line.split(maxsplit=1)[0]} {type(INSTALLED.defaults[line.split(maxsplit=1)[0][2:]])(float(line.split()[1]))}"
        assert is_unused(number, written) == (with_it.config == without.config)


@each("sections", [(), ("optimizer",), ("scheduler",), ("optimizer", "scheduler")])
def test_the_trainer_makes_its_own_optimizer_and_schedule_exactly_if_no_section_does(
    sections: tuple[str, ...],
) -> None:
    import torch
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig, deepspeed_optim_sched

    written = {
        key: value for key, value in config("WarmupLR", ()).items() if key in ("zero_optimization", *sections)
    }
    made: list[str] = []
    weight = torch.nn.Parameter(torch.zeros(1))

    class Trainer(SimpleNamespace):
        def create_optimizer(self) -> torch.optim.Optimizer:
            made.append("optimizer")
            return torch.optim.SGD([weight])

        def create_scheduler(self, **_: Any) -> None:
            made.append("scheduler")

    theirs = HfTrainerDeepSpeedConfig(written)
    optimizer, schedule = deepspeed_optim_sched(Trainer(), theirs, None, 10, [weight])
    if getattr(schedule, "lr_scheduler_callable", None) is not None:
        schedule.lr_scheduler_callable(optimizer)
    elif schedule is None:  # the Trainer makes one later
        made.append("scheduler")
    unused = {
        "optimizer": is_unused("--optim sgd", written),
        "scheduler": is_unused("--lr_scheduler_type cosine", written),
    }
    assert {name: name not in made for name in unused} == unused


def test_every_argument_about_the_optimizer_and_the_schedule_is_known() -> None:
    from transformers import TrainingArguments

    theirs = {
        name for name in TrainingArguments.__dataclass_fields__ if name.startswith(("optim", "lr_scheduler"))
    }
    assert theirs == {*OPTIMIZER_ARGUMENTS, *SCHEDULE_ARGUMENTS}


def test_of_the_optimizers_that_are_replaced_only_adafactor_has_an_epsilon_that_adam_cannot_take() -> None:
    """Accelerate hands DeepSpeedCPUAdam the parameter groups as the optimizer of `--optim` made them."""
    import torch
    from transformers import Trainer
    from transformers.training_args import OptimizerNames

    odd = []
    for name in OptimizerNames:
        try:
            kind, options = Trainer.get_optimizer_cls_and_kwargs(training_arguments(("--optim", name.value)))
            optimizer = kind([torch.nn.Parameter(torch.zeros(1))], **options)
        except (ImportError, ValueError, TypeError):  # a package that is not installed, or one for a model
            continue
        if not isinstance(optimizer.param_groups[0].get("eps", 0.0), float):
            odd.append(name.value)
    assert odd == ["adafactor"]
