"""Show known defects of an installed release: `python tools/defect_cases.py NAME…`, once for each rank.

`tools/known_defects` starts it with other releases on `PYTHONPATH`. It uses nothing of zlaunch. It prints a
line of JSON for each: whether the defect shows, and by what. Models are small enough for a CPU; SGD with a
learning rate of 1 makes the change of a weight its gradient.
"""

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

Case = Callable[[], tuple[bool, str]]
CASES: dict[str, Case] = {}
RANKS: dict[str, int] = {}
"""Cases on another number of ranks than 2."""


def case(name: str, ranks: int = 2) -> Callable[[Case], Case]:
    """Register a case by the name of its defect."""

    def register(function: Case) -> Case:
        CASES[name] = function
        RANKS[name] = ranks
        return function

    return register


def rank() -> int:
    """The number of this process."""
    return int(os.environ["RANK"])


def world() -> int:
    """The number of processes."""
    return int(os.environ["WORLD_SIZE"])


class Net(torch.nn.Module):  # type: ignore[misc]
    """Two layers; `tied` uses one matrix twice, `outputs` returns more than a loss."""

    def __init__(self, width: int = 6, tied: bool = False, outputs: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.second = torch.nn.Linear(width, width)
        self.outputs = outputs
        if tied:
            self.second.weight = self.first.weight

    def forward(self, batch: torch.Tensor) -> Any:
        """Return a loss, or the loss and what it is computed from."""
        batch = torch.tanh(self.first(batch.to(self.first.weight.dtype)))
        batch = torch.tanh(self.second(batch))
        loss = (batch.float() ** 2).mean()
        return (loss, batch) if self.outputs else loss


def data(steps: int, accumulated: int, width: int = 6) -> torch.Tensor:
    """Samples by step, rank and micro-batch."""
    return torch.randn((steps, world(), accumulated, 4, width), generator=torch.Generator().manual_seed(1))


def seeded(**options: Any) -> Net:
    """Create the same model each time."""
    torch.manual_seed(0)
    return Net(**options)


def config(stage: int, accumulated: int = 1, **keys: Any) -> dict[str, Any]:
    """Write a ds_config; `zero` has further keys of `zero_optimization`."""
    zero = {"stage": stage, **keys.pop("zero", {})}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": accumulated,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,
        **keys,
    }


def engine_of(model: torch.nn.Module, settings: dict[str, Any], lr: float = 1.0) -> Any:
    """Create an engine, with SGD unless the ds_config has an optimizer."""
    import deepspeed

    given: dict[str, Any] = {}
    if "optimizer" not in settings:
        given["optimizer"] = torch.optim.SGD(model.parameters(), lr=lr)
    else:
        given["model_parameters"] = [*model.parameters()]
    engine, *_ = deepspeed.initialize(model=model, config=settings, **given)
    return engine


def weights(engine: Any) -> torch.Tensor:
    """Return all weights in one vector."""
    import deepspeed

    parameters = [*engine.module.parameters()]
    with deepspeed.zero.GatheredParameters(parameters, enabled=engine.zero_optimization_stage() == 3):
        return torch.cat([parameter.detach().float().flatten() for parameter in parameters])


def trained(
    settings: dict[str, Any],
    steps: int = 1,
    backward: dict[str, Any] | None = None,
    micro_batches: int = 0,
    **options: Any,
) -> torch.Tensor:
    """Train with DeepSpeed; return the change of the weights.

    `backward` are arguments of that method. With `micro_batches`, the samples of so many are one.
    """
    accumulated = settings["gradient_accumulation_steps"]
    engine = engine_of(seeded(**options), settings)
    before = weights(engine)
    for step in data(steps, micro_batches or accumulated, options.get("width", 6)):
        batches = step[rank()]
        if micro_batches:
            batches = batches.flatten(0, 1)[None]
        for batch in batches:
            engine.backward(loss_of(engine(batch)), **(backward or {}))
            engine.step()
    return weights(engine) - before


def loss_of(output: Any) -> torch.Tensor:
    """Return the loss of what a model returns."""
    return output[0] if isinstance(output, tuple) else output


def expected(accumulated: int = 1, steps: int = 1, **options: Any) -> torch.Tensor:
    """Train with plain torch on all samples; return the change of the weights."""
    model = seeded(**options)
    before = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step in data(steps, accumulated, options.get("width", 6)):
        optimizer.zero_grad()
        for batch in step.flatten(0, 1):
            (loss_of(model(batch)) / (world() * accumulated)).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]) - before


def off(settings: dict[str, Any], steps: int = 1, limit: float = 0.1, **options: Any) -> tuple[bool, str]:
    """Whether the change of the weights is not that of plain torch."""
    change = trained(settings, steps, **options)
    right = expected(settings["gradient_accumulation_steps"], steps, **options)
    distance = float((change - right).norm() / right.norm())
    length = float(change.norm() / right.norm())
    return not distance <= limit, f"updates are off by {distance:.0%}, their length is {length:.3g} x"


def fails(settings: dict[str, Any], text: str, **options: Any) -> tuple[bool, str]:
    """Whether a training fails with a text."""
    try:
        trained(settings, **options)
    except Exception:  # noqa: BLE001 - of any kind
        error = traceback.format_exc()
        return text in error, error.strip().splitlines()[-1]
    return False, "it trains"


BF16: dict[str, Any] = {"bf16": {"enabled": True}}
MUON = {"type": "Muon", "params": {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}}


@case("only-the-last-micro-batch")
def _() -> tuple[bool, str]:
    return off(config(2, 3))


@case("divided-twice")
def _() -> tuple[bool, str]:
    return off(config(2, 3), outputs=True)


@case("division-not-left-out")
def _() -> tuple[bool, str]:
    change = trained(config(2, 3), backward={"scale_wrt_gas": False})
    length = float(change.norm() / (3 * expected(3)).norm())
    return length < 0.9, f"with `scale_wrt_gas=False`, the length of updates is {length:.3g} x"


@case("offloaded-micro-batches", ranks=1)
def _() -> tuple[bool, str]:
    return off(config(2, 3, zero={"offload_optimizer": {"device": "cpu"}}), steps=2)


@case("last-micro-batch-not-reduced")
def _() -> tuple[bool, str]:
    return off(config(1, 2, data_types={"grad_accum_dtype": "fp32"}, **BF16))


@case("bf16-gradients-kept")
def _() -> tuple[bool, str]:
    return off(config(0, **BF16), steps=3)


@case("fp16-loss-not-scaled")
def _() -> tuple[bool, str]:
    return off(config(0, fp16={"enabled": True, "loss_scale": 1024}))


@case("optimizer-stepped-before")
def _() -> tuple[bool, str]:
    adam = {"type": "AdamW", "params": {"lr": 0.1, "weight_decay": 0.0, "torch_adam": True}}
    lengths = [float(trained(config(stage, optimizer=adam, **BF16)).norm()) for stage in (0, 1)]
    share = lengths[0] / lengths[1]
    return share < 0.9, f"the first update has {share:.3g} x the length of that at stage 1"


@case("large-parameters")
def _() -> tuple[bool, str]:
    autocast = {"enabled": True, "dtype": "bfloat16"}
    settings = config(2, torch_autocast=autocast, zero={"reduce_bucket_size": 20})
    return fails(settings, "Error")


@case("flat-buffer-on-cpu")
def _() -> tuple[bool, str]:
    return fails(config(2), "is a view and is being modified inplace")


@case("padding-added")
def _() -> tuple[bool, str]:
    empty = torch.empty

    def visible(*arguments: Any, **options: Any) -> torch.Tensor:
        """Make memory that nobody wrote to NaN."""
        tensor = empty(*arguments, **options)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    torch.empty = visible
    zero = {"stage3_use_all_reduce_for_fetch_params": True, "stage3_param_persistence_threshold": 0}
    return off(config(3, zero=zero), width=5)


@case("small-secondary-shards", ranks=4)
def _() -> tuple[bool, str]:
    zero = {"zero_hpz_partition_size": 4, "stage3_param_persistence_threshold": 0}
    return fails(config(3, zero=zero), "IndexError", width=1)


@case("stale-secondary-shards")
def _() -> tuple[bool, str]:
    import deepspeed

    zero = {"zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0}
    engine = engine_of(seeded(), config(3, zero=zero))
    batch = data(1, 1)[0, 0, 0]
    engine(batch)
    with deepspeed.zero.GatheredParameters([*engine.module.parameters()], modifier_rank=0):
        if rank() == 0:
            for parameter in engine.module.parameters():
                parameter.data.zero_()
    loss = float(engine(batch))
    return loss != 0, f"with all weights set to 0, the loss is {loss:.3g}"


@case("bucket-never-reset")
def _() -> tuple[bool, str]:
    import deepspeed

    kind = deepspeed.runtime.zero.stage3.DeepSpeedZeroOptimizer_Stage3
    name = "_DeepSpeedZeroOptimizer_Stage3__avg_scatter_grads"
    name = name if hasattr(kind, name) else "_DeepSpeedZeroOptimizer_Stage3__avg_scatter_contiguous_grads"
    inner, calls = getattr(kind, name), [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        return inner(*arguments, **options)

    setattr(kind, name, counted)
    zero = {"reduce_bucket_size": 60, "stage3_param_persistence_threshold": 0}
    trained(config(3, 4, zero=zero))
    return calls[0] > 12, f"{calls[0]} reductions of 4 micro-batches with 4 parameters"


@case("infinite-norm")
def _() -> tuple[bool, str]:
    engine = engine_of(seeded(), config(1, gradient_clipping=1.0))
    loss = engine(data(1, 1)[0, rank(), 0])
    engine.backward(loss + engine.module.first.bias[0] * float("inf"))
    engine.step()
    bad = int((~torch.isfinite(weights(engine))).sum())
    return bad > 1, f"with 1 infinite gradient, {bad} weights are not finite"


@case("bf16-states-not-saved", ranks=1)
def _() -> tuple[bool, str]:
    engine = engine_of(seeded(), config(0, **BF16))
    with tempfile.TemporaryDirectory() as folder:
        engine.save_checkpoint(folder, tag="tag")
        files = sorted(Path(folder, "tag").iterdir())
        state = torch.load(files[0], weights_only=False)
    names = [file.name for file in files]
    is_saved = bool(state.get("optimizer")) or any("optim" in name for name in names)
    return not is_saved, f"it saves {', '.join(names)}, optimizer: {bool(state.get('optimizer'))}"


@case("muon-refused")
def _() -> tuple[bool, str]:
    settings = config(2, optimizer=MUON, **BF16)
    settings["zero_allow_untested_optimizer"] = False
    return fails(settings, "untested ZeRO Optimizer")


@case("muon-partitioned-gradients")
def _() -> tuple[bool, str]:
    scattered = trained(config(2, optimizer=MUON, zero={"reduce_scatter": True}), width=7)
    reduced = trained(config(2, optimizer=MUON, zero={"reduce_scatter": False}), width=7)
    distance = float((scattered - reduced).norm() / reduced.norm())
    return distance > 0.1, f"updates differ by {distance:.0%} between `reduce_scatter` true and false"


@case("muon-is-sgd")
def _() -> tuple[bool, str]:
    change, gradient = trained(config(0, optimizer=MUON)), expected()
    size = 36
    angle = float(torch.nn.functional.cosine_similarity(change[:size], gradient[:size], dim=0))
    return angle > 0.9999, f"cosine of the first matrix's update and gradient: {angle:.5f}"


@case("muon-is-adam")
def _() -> tuple[bool, str]:
    import deepspeed

    settings = config(3, optimizer=MUON, **BF16, zero={"reduce_scatter": False})
    with deepspeed.zero.Init(config_dict_or_path=settings):
        model = seeded()
    engine_of(model, settings)
    marked = sum(bool(getattr(parameter, "use_muon", False)) for parameter in model.parameters())
    return marked == 0, f"{marked} of 2 matrices are trained with Muon"


@case("muon-each-micro-batch")
def _() -> tuple[bool, str]:
    settings = config(3, 4, optimizer=MUON, zero={"reduce_scatter": False})
    apart = trained(settings)
    together = trained({**settings, "gradient_accumulation_steps": 1}, micro_batches=4)
    distance = float((apart - together).norm() / together.norm())
    return (
        distance > 0.1,
        f"updates differ by {distance:.0%} between four micro-batches and one of their samples",
    )


@case("muon-updates-clipped")
def _() -> tuple[bool, str]:
    settings = config(1, optimizer=MUON, **BF16)
    free, clipped = (trained({**settings, "gradient_clipping": limit}) for limit in (0.0, 1e-3))
    share = float(clipped[:36].norm() / free[:36].norm())
    return share < 0.1, f"with a limit of 0.001, the first matrix moves {share:.3g} x as much"


@case("lion-moves-the-unused", ranks=1)
def _() -> tuple[bool, str]:
    lion = {"type": "Lion", "params": {"lr": 0.1, "weight_decay": 0.0}}
    engine = engine_of(seeded(), config(2, optimizer=lion, zero={"offload_optimizer": {"device": "cpu"}}))
    before = weights(engine)
    engine.backward(engine(data(1, 1)[0, 0, 0]) * 0.0)
    engine.step()
    moved = int((weights(engine) != before).sum())
    return moved > 0, f"without gradients, {moved} weights move"


def _groups(*rates: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.zeros(1)], "lr": rate} for rate in rates], lr=1.0)


@case("muon-warmup", ranks=1)
def _() -> tuple[bool, str]:
    from deepspeed.runtime.lr_schedules import WarmupLR

    schedule = WarmupLR(_groups(0.1, 0.2))
    return schedule.max_lrs != [0.1, 0.2], f"groups of 0.1 and 0.2 warm up to {schedule.max_lrs}"


@case("warmup-to-0.001", ranks=1)
def _() -> tuple[bool, str]:
    from deepspeed.runtime.lr_schedules import WarmupLR

    schedule = WarmupLR(_groups(0.1))
    return schedule.max_lrs != [0.1], f"a group of 0.1 warms up to {schedule.max_lrs}"


@case("cosine-first-group", ranks=1)
def _() -> tuple[bool, str]:
    from deepspeed.runtime.lr_schedules import WarmupCosineLR

    optimizer = _groups(0.1, 0.2)
    WarmupCosineLR(optimizer, total_num_steps=100, warmup_num_steps=10)
    rates = [group["lr"] for group in optimizer.param_groups]
    return rates[1] == 0.2, f"the first step has the rates {rates}"


@case("stairs-ignored", ranks=1)
def _() -> tuple[bool, str]:
    from deepspeed.runtime.lr_schedules import OneCycle

    rates: list[list[float]] = []
    for stairs in (0, 2):
        optimizer = _groups(0.1)
        schedule = OneCycle(
            optimizer,
            cycle_min_lr=0.0,
            cycle_max_lr=1.0,
            cycle_first_step_size=10,
            cycle_first_stair_count=stairs,
            cycle_momentum=False,
        )
        rates.append([])
        for _step in range(10):
            schedule.step()
            rates[-1].append(float(optimizer.param_groups[0]["lr"]))
    return rates[0] == rates[1], f"with 2 stairs: {sorted({round(rate, 3) for rate in rates[1]})}"


@case("accumulate-fails")
def _() -> tuple[bool, str]:
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import DummyOptim  # noqa: F401 - fails early if accelerate is too old

    plugin = DeepSpeedPlugin(hf_ds_config=config(2, 2, train_batch_size=4 * 2 * world()))
    accelerator = Accelerator(deepspeed_plugin=plugin, cpu=False)
    model = seeded()
    samples = torch.utils.data.DataLoader(data(1, 4)[0, rank()].flatten(0, 1), batch_size=4)
    model, optimizer, samples = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 1.0), samples)
    try:
        for batch in samples:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch))
                optimizer.step()
    except AssertionError as error:
        return "no_sync" in str(error), str(error)
    return False, "it trains"


def main(names: Sequence[str]) -> None:
    """Run cases on this rank."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    torch.set_num_threads(1)
    import deepspeed
    import deepspeed.comm.torch
    from deepspeed.accelerator import get_accelerator

    backend: Any = sys.modules["deepspeed.comm.torch"]  # the attribute of that name is torch itself
    backend.build_shm_op = lambda: None  # which would be compiled for each release
    get_accelerator().is_fp16_supported = lambda: True
    deepspeed.init_distributed("gloo", distributed_port=int(os.environ["MASTER_PORT"]))
    for name in names:
        try:
            shows, how = CASES[name]()
        except Exception as error:  # noqa: BLE001 - it is reported
            traceback.print_exc()
            shows, how = False, f"the case itself fails: {type(error).__name__}: {error}"
        print(f"\n{json.dumps({'name': name, 'shows': shows, 'how': how})}", flush=True)
    os._exit(0)  # some of the failures leave threads that wait


if __name__ == "__main__":
    main(sys.argv[1:])
