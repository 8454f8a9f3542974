"""What an interpreter's transformers knows, read from its source; transformers is not imported."""

import re

from zlaunch.hosts.machine.interpreter import Interpreter


def model_types(python: Interpreter) -> frozenset[str]:
    """The model types of an interpreter's transformers, without importing it."""
    auto = python.folder("transformers") / "models" / "auto"
    files = (auto / name for name in ("auto_mappings.py", "configuration_auto.py"))  # the first since 5.6
    text = "".join(file.read_text("utf-8") for file in files if file.exists())
    return frozenset(re.findall(r'"([\w.-]+)"[,:]\s*"\w+Config"', text))


def trainer_optimizers(python: Interpreter) -> tuple[str, ...]:
    """The optimizers that the Trainer of an interpreter's transformers knows by name."""
    text = (python.folder("transformers") / "training_args.py").read_text("utf-8")
    return _words_of("OptimizerNames", text)


def trainer_schedules(python: Interpreter) -> tuple[str, ...]:
    """The learning rate schedules that the Trainer of an interpreter's transformers knows by name."""
    text = (python.folder("transformers") / "trainer_utils.py").read_text("utf-8")
    return _words_of("SchedulerType", text)


CHOICES = {"optim": trainer_optimizers, "lr_scheduler_type": trainer_schedules}
"""Arguments of the Trainer that take one of several words → what lists them."""


def _words_of(enumeration: str, source: str) -> tuple[str, ...]:
    _, _, after = source.partition(f"class {enumeration}(")
    return tuple(re.findall(r'^    [A-Z_0-9]+ = "(\w+)"', after.partition("\nclass ")[0], re.MULTILINE))


def trainer_arguments(python: Interpreter) -> dict[str, str]:
    """The names of TrainingArguments in an interpreter's transformers, with their types as text."""
    folder = python.folder("transformers")
    files = (folder / name for name in ("training_args.py", "training_args_seq2seq.py"))
    text = "".join(file.read_text("utf-8") for file in files)
    return dict(re.findall(r"^    (\w+): ([^=\n]+)", text, re.MULTILINE))
