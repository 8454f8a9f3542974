"""Names that packages have moved or replaced since tutorials were written, and where they are now."""

import re
from collections.abc import Mapping

MOVED: Mapping[str, str] = {
    "transformers.deepspeed": "transformers.integrations",
    "transformers.AdamW": "torch.optim.AdamW",
    "transformers.optimization.AdamW": "torch.optim.AdamW",
    "transformers.AutoModelWithLMHead": "transformers.AutoModelForCausalLM",
    "transformers.is_torch_tpu_available": "transformers.utils.is_torch_xla_available",
    "transformers.file_utils.is_offline_mode": "huggingface_hub.is_offline_mode",
    "transformers.utils.is_offline_mode": "huggingface_hub.is_offline_mode",
    "accelerate.DummyOptim": "accelerate.utils.DummyOptim",
    "accelerate.DummyScheduler": "accelerate.utils.DummyScheduler",
    "peft.prepare_model_for_int8_training": "peft.prepare_model_for_kbit_training",
    "datasets.load_metric": "evaluate.load",
}
"""A module, or a name in one → what scripts import instead."""

_MODULES = frozenset(("transformers.integrations",))
"""Those of them that are modules."""

_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_NAME_INSTALLED = re.compile(r"cannot import name '(\w+)' from '([\w.]+)' \([^)\n]*-packages/[^)\n]*\)")
_NO_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


def moved_import(error: str) -> tuple[str, str] | None:
    """Find what an ImportError is about, and what to write; None if it is not known to have moved."""
    named = list(_NO_MODULE.findall(error))
    named += [f"{module}.{name}" for name, module in _NO_NAME.findall(error)]
    return next(((old, _new_import(MOVED[old])) for old in named if old in MOVED), None)


def lacking_import(error: str) -> tuple[str, str] | None:
    """Find what a package lacks that is there itself, and what to do; None for other errors."""
    missing, unnamed = _NO_MODULE.search(error), _NO_NAME_INSTALLED.search(error)
    if missing is not None and "." in missing[1]:
        outer, _, _ = missing[1].rpartition(".")
        if "is not a package" in error:
            return (
                f"`{outer}` is a file, so there is no `{missing[1]}`",
                f"rename your own `{outer}.py`, if it hides a package of this name",
            )
        lacks, package = f"`{outer}` has no module `{missing[1]}`", outer.partition(".")[0]
    elif unnamed is not None:
        lacks, package = f"`{unnamed[2]}` has no `{unnamed[1]}`", unnamed[2].partition(".")[0]
    else:
        return None
    return lacks, f"install the release of `{package}` for which the program was written: this is another one"


def _new_import(new: str) -> str:
    if new in _MODULES:
        return f"import it from `{new}`"
    module, _, name = new.rpartition(".")
    return f"write `from {module} import {name}`"
