"""Rules about `optimizer.params`: one name stands for several classes with different arguments."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from zlaunch.config.rules.rule import CPU, Context, Subject, Violation, fails_later, ignored, zero
from zlaunch.dsconfig.schema.optimizer import TorchOptimizer
from zlaunch.dsconfig.schema.scheduler import TorchScheduler
from zlaunch.hosts.machine.torch_optim import Arguments, Kind

_BASE = frozenset({"lr", "weight_decay"})
_ADAM = _BASE | {"betas", "eps", "amsgrad", "adam_w_mode", "torch_adam", "fp32_optimizer_states"}
_TORCH = frozenset({"maximize", "foreach", "differentiable", "fused"})

TAKES: Mapping[str, frozenset[str]] = {
    "FusedAdam": _ADAM | {"bias_correction", "set_grad_none"},
    "DeepSpeedCPUAdam": _ADAM | {"bias_correction"},
    "torch.optim.AdamW": _ADAM | _TORCH | {"capturable"},
    "FusedLion": _BASE | {"betas", "set_grad_none"},
    "DeepSpeedCPULion": _BASE | {"betas", "fp32_optimizer_states"},
    "torch.optim.Adagrad": _BASE | _TORCH | {"eps", "lr_decay", "initial_accumulator_value"},
    "DeepSpeedCPUAdagrad": _BASE | {"eps", "amsgrad", "fp32_optimizer_states"},
}
"""Class → the keys of `params` that reach it, or that the engine takes out before."""

_CLASSES = {
    "adam": ("FusedAdam", "DeepSpeedCPUAdam"),
    "adamw": ("FusedAdam", "DeepSpeedCPUAdam"),
    "lion": ("FusedLion", "DeepSpeedCPULion"),
    "adagrad": ("torch.optim.Adagrad", "DeepSpeedCPUAdagrad"),
}
"""Name → its class on the GPU, and its class on the host."""


def class_of(subject: Subject) -> str | None:
    """Name the class that DeepSpeed creates."""
    name = subject.optimizer
    if name in ("adam", "adamw") and subject.has_torch_adam:
        return "torch.optim.AdamW"
    if name not in _CLASSES:
        return None
    on_gpu, on_host = _CLASSES[name]
    if "offload_optimizer" in subject.offloads:
        return on_host
    return on_gpu


@fails_later(
    {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "fused": True}}},
    {"optimizer.params.torch_adam": True},
)
def argument_of_another_class(subject: Subject) -> Iterator[Violation]:
    """Adam, Lion and Adagrad use one class on the GPU and another on the CPU, with different arguments."""
    if (chosen := class_of(subject)) is None:
        return
    for keys in subject.written:
        if keys[:2] == ("optimizer", "params") and keys[2] not in TAKES[chosen]:
            hint = "delete it"
            if subject.optimizer in ("adam", "adamw") and keys[2] in TAKES["torch.optim.AdamW"]:
                hint = 'delete it, or add `"torch_adam": true`'
            yield Violation(
                ".".join(keys), f"DeepSpeed creates {chosen} here, which has no argument `{keys[2]}`", hint
            )


def _of_torch(subject: Subject) -> Iterator[tuple[Kind, str, dict[str, object], Arguments]]:
    """List the classes of torch that DeepSpeed creates, with the keys that it passes to each."""
    config, find = subject.config, subject.context.torch
    created: tuple[tuple[Kind, object], ...] = (
        ("optimizer", config.optimizer),
        ("scheduler", config.scheduler),
    )
    for kind, section in created:
        if isinstance(section, TorchOptimizer | TorchScheduler) and find is not None:
            arguments = find(kind, section.type)
            if arguments is not None:
                yield kind, section.type, section.params, arguments


def _find_sgd(kind: Kind, _: str) -> Arguments | None:
    if kind == "optimizer":
        return Arguments(frozenset({"lr", "momentum"}))
    return None


_SGD = Context(torch=_find_sgd)
_STEP = Context(torch=lambda *_: Arguments(frozenset({"step_size", "gamma"}), ("step_size",)))


@fails_later(
    {"optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentums": 0.9}}},
    {"optimizer.params.momentums": None},
    _SGD,
)
def no_argument_of_torch(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed passes `params` to torch's class, which raises a TypeError for a name that it does not know.

    The names are those of the installed torch.
    """
    for kind, name, params, arguments in _of_torch(subject):
        for key in [key for key in params if key not in arguments.names]:
            hint = "delete it"
            if similar := get_close_matches(key, arguments.names - params.keys(), 1):
                hint = f"did you mean `{similar[0]}`?"
            yield Violation(f"{kind}.params.{key}", f"torch's {name} has no argument `{key}`", hint)


@fails_later(
    {"scheduler": {"type": "StepLR", "params": {"gamma": 0.9}}}, {"scheduler.params.step_size": 100}, _STEP
)
def argument_of_torch_missing(subject: Subject) -> Iterator[Violation]:
    """Torch's class raises a TypeError without an argument that has no default, after the model is loaded."""
    for kind, name, params, arguments in _of_torch(subject):
        for key in arguments.needed:
            if key not in params:
                yield Violation(
                    subject.nearest(f"{kind}.params"),
                    f"torch's {name} needs the argument `{key}`",
                    f"add it to `{kind}.params`, or choose another {kind}",
                )


_NEEDS_OBJECTS: Mapping[str, str] = {
    "LBFGS": "calls a function at each step, and DeepSpeed's engine passes none",
    "LambdaLR": "takes a function, which JSON cannot hold",
    "MultiplicativeLR": "takes a function, which JSON cannot hold",
    "SequentialLR": "takes other schedulers, which JSON cannot hold",
    "ChainedScheduler": "takes other schedulers, which JSON cannot hold",
}
"""Class of torch → why no ds_config can use it."""


@fails_later(
    {"scheduler": {"type": "LambdaLR", "params": {"lr_lambda": "lambda epoch: 1"}}},
    {"scheduler": None},
)
def objects_not_in_json(subject: Subject) -> Iterator[Violation]:
    """Some classes of torch take functions or other objects, which a ds_config cannot name."""
    for kind, section in (("optimizer", subject.config.optimizer), ("scheduler", subject.config.scheduler)):
        if isinstance(section, TorchOptimizer | TorchScheduler) and section.type in _NEEDS_OBJECTS:
            yield Violation(
                f"{kind}.type",
                f"torch's {section.type} {_NEEDS_OBJECTS[section.type]}",
                f"choose another {kind}, or create it in the script",
            )


@fails_later(
    {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "amsgrad": True}}},
    {"optimizer.params.torch_adam": True},
)
def amsgrad_not_there(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed's GPU implementations of Adam and Lamb raise an error for `amsgrad`."""
    refuses = class_of(subject) == "FusedAdam" or subject.optimizer == "lamb"
    if refuses and subject.param("amsgrad") is True:
        hint = 'delete it, or add `"torch_adam": true`'
        if subject.optimizer == "lamb":
            hint = "delete it"
        yield Violation(
            "optimizer.params.amsgrad", "DeepSpeed's GPU optimizers do not support `amsgrad`", hint
        )


@ignored(
    {
        "zero_optimization": {"stage": 2, "offload_optimizer": CPU},
        "optimizer": {"type": "Adagrad", "params": {"lr": 1e-4, "amsgrad": True}},
    },
    {"optimizer.params.amsgrad": None},
)
def amsgrad_not_on_the_host(subject: Subject) -> Iterator[Violation]:
    """DeepSpeedCPUAdagrad accepts `amsgrad` and ignores it."""
    if class_of(subject) == "DeepSpeedCPUAdagrad" and subject.param("amsgrad") is True:
        yield Violation("optimizer.params.amsgrad", "DeepSpeedCPUAdagrad ignores `amsgrad`", "delete it")


@ignored(
    {
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "fp32_optimizer_states": False}},
    },
    {zero("offload_optimizer"): CPU},
)
def momentum_argument_unread(subject: Subject) -> Iterator[Violation]:
    """Only DeepSpeedCPUAdam reads `fp32_optimizer_states`; the engine drops it for other optimizers."""
    reads = class_of(subject) in ("DeepSpeedCPUAdam", None)
    if (
        subject.optimizer in ("adam", "adamw")
        and subject.param("fp32_optimizer_states") is False
        and not reads
    ):
        yield Violation(
            "optimizer.params.fp32_optimizer_states",
            "only a CPU optimizer reads `fp32_optimizer_states`; the states stay in fp32",
            'delete it, or add `"offload_optimizer": {"device": "cpu"}`',
        )
