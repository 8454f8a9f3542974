"""What a run trained with, and how that differs from its plan."""

from collections.abc import Iterator, Mapping
from typing import Final

from zlaunch.dsconfig.precision import precision_of
from zlaunch.dsconfig.text.document import KeyPath, dotted, leaves, value_at
from zlaunch.job.script import ConfigInterface
from zlaunch.job.unused_arguments import unused_in_training
from zlaunch.rundir.record import EngineRecord, ProgramRecord
from zlaunch.rundir.run_files import RunFiles
from zlaunch.secrets import hide_in

MOST_LINES: Final = 6

_DECISIVE: Final = (
    "stage",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
)


def engine_line(run: RunFiles) -> str | None:
    """Describe the engine that trained, or what trained instead; None if nothing was recorded."""
    if (engine := run.program.get("engine")) is not None:
        return _described(engine)
    if parallel := run.program.get("parallel"):
        return f"no DeepSpeed engine; {' and '.join(parallel)}"
    return None


def _described(engine: EngineRecord) -> str:
    parts = [
        f"ZeRO stage {engine.get('stage')}",
        precision_of(engine.get("ds_config", {})),
        f"batch {engine.get('train_batch_size')}",
    ]
    if optimizer := engine.get("optimizer"):
        parts.append(optimizer)
    return ", ".join(parts)


def unused(run: RunFiles) -> list[str]:
    """List the Trainer's arguments that had no effect, because the ds_config decided instead."""
    engine = run.program.get("engine", {})
    if "ds_config" not in engine or run.job.get("interface") != ConfigInterface.TRAINER.value:
        return []
    return unused_in_training(engine["ds_config"], run.program.get("trainer_args", {}))


def differences(run: RunFiles) -> list[str]:
    """List what differs from the plan; empty as long as no step was taken."""
    interface = run.job.get("interface")
    has_trained = any(heartbeat.get("step") for heartbeat in run.heartbeats.values())
    if interface is None or not (has_trained or run.ending.get("how") == "finished"):
        return []
    engine = run.program.get("engine")
    if interface == ConfigInterface.NONE.value and engine is not None:
        return [f"the script created a DeepSpeed engine: {_described(engine)}"]
    differing = _other_first_step(run)
    if interface == ConfigInterface.NONE.value:
        return differing
    if engine is None:
        return [*differing, _no_engine(run.program)]
    planned = {**run.provenance.get("expected", run.config)}
    if interface != ConfigInterface.DEEPSPEED.value:
        planned.pop("steps_per_print", None)  # accelerate turns these lines off
    keys = list(_key_differences(planned, engine))
    differing += keys[:MOST_LINES]
    if len(keys) > MOST_LINES:
        differing.append(f"{len(keys) - MOST_LINES} more")
    return differing


def _other_first_step(run: RunFiles) -> list[str]:
    wanted, first = run.job.get("resumed_step"), run.heartbeats.get(0, {}).get("first_step")
    if not wanted or first in (None, wanted):
        return []
    return [f"the script began at step {first}, not at step {wanted} of its checkpoint"]


def _no_engine(program: ProgramRecord) -> str:
    if instead := " and ".join(program.get("parallel", [])):
        return f"the script trained with {instead}, so the ds_config had no effect"
    if program.get("trainer_args"):
        return "the script created no DeepSpeed engine, so the ds_config had no effect"
    return "the script created no DeepSpeed engine, unless in a process that it started"


def _key_differences(planned: Mapping[str, object], engine: EngineRecord) -> Iterator[str]:
    real = engine.get("ds_config", {})
    numbers: Mapping[KeyPath, object] = {
        ("zero_optimization", "stage"): engine.get("stage"),
        ("train_micro_batch_size_per_gpu",): engine.get("micro_batch"),
        ("gradient_accumulation_steps",): engine.get("grad_accum"),
        ("train_batch_size",): engine.get("train_batch_size"),
    }
    for path, value in sorted(leaves(planned), key=_importance):
        used = numbers.get(path, value_at(real, path))
        is_off = used is None and value in (False, {}, "none")
        if value not in ("auto", used) and not is_off:
            name = dotted(path)
            yield f"`{name}` is {_value_text(hide_in(used, name))}, not {_value_text(hide_in(value, name))}"


def _importance(leaf: tuple[KeyPath, object]) -> tuple[bool, str]:
    path, _ = leaf
    return path[-1] not in _DECISIVE, dotted(path)


def _value_text(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
