"""Everything that the installed Trainer refuses together with DeepSpeed, read from its source."""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from zlaunch.config.codes import ELSEWHERE
from zlaunch.config.rules import RULES
from zlaunch.hosts.machine.interpreter import installed_stack
from zlaunch.job.trainer_releases import NEWEST, is_before

MODULES = (
    *("transformers.trainer", "transformers.training_args", "transformers.integrations.deepspeed"),
    *("accelerate.utils.dataclasses",),
)
DATA, MODEL, CODE, RELEASE = "depends on data", "depends on the model", "only in code", "release too old"
REFUSED = {
    "Using --fsdp xxx together with --deepspeed i": "fsdp-and-deepspeed",
    " can't be used with `save_only_model` along ": "best-model-is-not-saved",
    "`auto_find_batch_size` isn't supported yet w": "batch-size-search-at-stage-3",
    "Please correct the following DeepSpeed confi": "differs-from-argument",
    "The model's config file has neither `hidden_": "no-hidden-size",
    "Please specify the ZeRO optimization config ": "no-zero-section",
    "` without `auto` (set to correct value) in t": "auto-nobody-fills",
    "`--mixed_precision` arg cannot be set to `": "differs-from-argument",
    "For sweeps with deepspeed, `args.deepspeed` ": CODE,
    "Tried to use an already configured `Accelera": CODE,
    "ZeRO inference only makes sense with ZeRO St": "inference-needs-stage-3",
    "trainer_config_process() wasn't called yet t": CODE,
    "'enabled' can only be set through calling 'A": CODE,
    "A `DeepSpeedPlugin` object must be enabled m": CODE,
    "Invalid optimization level for MS-AMP. Pleas": CODE,
    "MS-AMP is not supported for ZeRO Stage 3. Pl": CODE,
    ".\nPlease specify them appropriately in the D": "ignored-field",
    "[deepspeed] failed to resume from checkpoint": DATA,
    "Can't find a valid checkpoint at ": DATA,
    "Weight conversions (e.g., MoE expert fusion)": MODEL,
    "Sequence parallelism is enabled but no SP pr": CODE,
    "DeepSpeed version must be >= 0.14.0 to use M": RELEASE,
    "When `zero3_init_flag` is set, it requires T": RELEASE,
    "Could not find a transformer layer class cal": MODEL,
    " or a hub-hosted flash attention kernel (e.g": CODE,
    ". 'eager' and 'flex_attention' are not suppo": CODE,
    "when `sp_seq_length_is_variable` is `False` ": CODE,
}
"""Beginning of the longest piece of a message → what zlaunch calls it, or why it cannot know before the start."""


def refusals(module: str) -> Iterator[str]:
    """List the exceptions whose condition or message is about DeepSpeed, by a piece of their message."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    yield from _raised(ast.parse(Path(spec.origin).read_text("utf-8")), "")


def _raised(node: ast.AST, around: str) -> Iterator[str]:
    if isinstance(node, ast.If):
        around = f"{around} {ast.unparse(node.test)}"
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        around = f"{around} {node.name}"
    if isinstance(node, ast.Raise) and node.exc is not None:
        texts = [part.value for part in ast.walk(node.exc) if isinstance(part, ast.Constant)]
        message = max((text for text in texts if isinstance(text, str)), key=len, default="")
        if message and "deepspeed" in f"{around} {message}".lower():
            yield message[:44]
    for child in ast.iter_child_nodes(node):
        yield from _raised(child, around)


@pytest.mark.skipif(
    is_before(installed_stack().trainer.transformers, NEWEST), reason="read for the newest one"
)
def test_everything_that_the_trainer_refuses_is_known() -> None:
    found = {message for module in MODULES for message in refusals(module)}
    assert found == set(REFUSED)


def test_every_name_is_one_of_zlaunchs() -> None:
    names = {rule.code for rule in RULES} | {*ELSEWHERE}
    assert {name for name in REFUSED.values() if "-" in name} <= names
