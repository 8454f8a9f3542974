"""Find an optimizer or a schedule that the installed Trainer does not have, or whose package is missing."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.transformers_source import CHOICES
from zlaunch.job.trainer_args import TrainerArgs
from zlaunch.units import listed

_BY_PACKAGE: Mapping[str, tuple[str, ...]] = {
    "bitsandbytes": (
        *("adamw_bnb_8bit", "adamw_8bit", "ademamix", "ademamix_8bit", "lion_8bit", "lion_32bit"),
        *("paged_adamw_32bit", "paged_adamw_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit"),
        *("paged_lion_32bit", "paged_lion_8bit", "rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"),
    ),
    "galore_torch": (
        *("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise"),
        *("galore_adamw_8bit_layerwise", "galore_adafactor_layerwise"),
    ),
    "apollo_torch": ("apollo_adamw", "apollo_adamw_layerwise"),
    "lomo_optim": ("lomo", "adalomo"),
    "grokadamw": ("grokadamw",),
    "torchao": ("adamw_torch_4bit", "adamw_torch_8bit"),
    "schedulefree": ("schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd"),
    "optimi": ("stable_adamw",),
    "torchdistx": ("adamw_anyprecision",),
    "torch_xla": ("adamw_torch_xla",),
    "torch_npu": ("adamw_torch_npu_fused",),
}
OPTIMIZER_PACKAGES = tuple(_BY_PACKAGE)
_PACKAGE_OF = {optimizer: package for package, names in _BY_PACKAGE.items() for optimizer in names}
_ON_PYPI = {
    **{name: name.replace("_", "-") for name in _BY_PACKAGE},
    "optimi": "torch-optimi",
    "apollo_torch": "git+https://github.com/zhuhanqing/APOLLO",
    "torchdistx": "git+https://github.com/pytorch/torchdistx",
}
_SHOWN = 6
"""Names that a hint lists."""


def unknown_choices(args: TrainerArgs, python: Interpreter) -> Iterator[Finding]:
    """Find a name that the Trainer of an interpreter refuses when its arguments are parsed."""
    if python.packages.get("transformers") is None:
        return
    for argument, choices_in in CHOICES.items():
        if argument not in args.arguments:
            continue
        name, known = str(args[argument].value), choices_in(python)
        if not known or name in known:
            continue
        hint = f"it knows {listed(known, _SHOWN)}"
        if similar := get_close_matches(name, known, 1):
            hint = f"did you mean `--{argument} {similar[0]}`?"
        yield Finding(
            "bad-argument", f"`--{argument} {name}`: the Trainer knows no such name", hint, f"--{argument}"
        )


def missing_package(args: TrainerArgs, python: Interpreter, severity: Severity) -> Iterator[Finding]:
    """Find an optimizer whose package an interpreter lacks: the Trainer fails when it creates it."""
    name = str(args["optim"].value)
    package = _PACKAGE_OF.get(name)
    if package is None or python.packages.get("transformers") is None or package not in python.missing:
        return
    yield Finding(
        "optimizer-needs-a-package",
        f"`--optim {name}` needs the package `{package}`, which `{python.executable}` lacks",
        f"`{python.executable} -m pip install {_ON_PYPI[package]}`, or `--optim adamw_torch`",
        "--optim",
        severity,
    )
