"""What a run trained with, and how that differs from its plan."""

from collections.abc import Iterator, Mapping
from typing import Final

from zlaunch.dsconfig.text.document import KeyPath, dotted, leaves, value_at
from zlaunch.job.script import ConfigInterface
from zlaunch.rundir.record import EngineRecord, ProgramRecord
from zlaunch.rundir.run_files import RunFiles

MOST_LINES: Final = 6

_DECISIVE: Final = (
    "stage",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
)


def program_of(files: RunFiles) -> ProgramRecord:
    """Return what the script of the first rank recorded; empty if it recorded nothing."""
    return files.programs[min(files.programs)] if files.programs else ProgramRecord()


def engine_line(files: RunFiles) -> str | None:
    """Describe the engine that trained, or what trained instead; None if nothing was recorded."""
    program = program_of(files)
    if (engine := program.get("engine")) is not None:
        return ", ".join(_engine_parts(engine))
    if parallel := program.get("parallel"):
        return f"no DeepSpeed engine; {' and '.join(parallel)}"
    return None


def _engine_parts(engine: EngineRecord) -> Iterator[str]:
    yield f"ZeRO stage {engine.get('stage')}"
    config = engine.get("ds_config", {})
    yield next((name for name in ("bf16", "fp16") if value_at(config, (name, "enabled")) is True), "fp32")
    yield f"batch {engine.get('train_batch_size')}"
    if optimizer := engine.get("optimizer"):
        yield optimizer


def differences(files: RunFiles) -> list[str]:
    """List what differs from the plan; empty as long as no step was taken."""
    trained = any(one.get("step") for one in files.heartbeats.values())
    program, interface = program_of(files), files.job.get("interface")
    if interface is None or not (trained or files.ending.get("how") == "finished"):
        return []
    expects_engine = interface != ConfigInterface.NONE.value
    engine = program.get("engine")
    began = [*_other_beginning(files)]
    if engine is None:
        return [*began, *([_no_engine(program)] if expects_engine else [])]
    if not expects_engine:
        return [f"the script created a DeepSpeed engine: {', '.join(_engine_parts(engine))}"]
    found = [*_key_differences(files.provenance.get("expected", files.config), engine)]
    more = [f"{len(found) - MOST_LINES} more"] if len(found) > MOST_LINES else []
    return [*began, *found[:MOST_LINES], *more]


def _other_beginning(files: RunFiles) -> Iterator[str]:
    """Find a script that did not load the checkpoint that it was told of."""
    wanted, steps = files.job.get("resumed_step"), files.heartbeats.get(0, {})
    began = steps.get("first_step")
    if wanted and began not in (None, wanted):
        yield f"the script began at step {began}, not at step {wanted} of its checkpoint"


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
        if value not in ("auto", used) and not (used is None and value in (False, {}, "none")):
            yield f"`{dotted(path)}` is {_shown(used)}, not {_shown(value)}"


def _importance(leaf: tuple[KeyPath, object]) -> tuple[bool, str]:
    path, _ = leaf
    return path[-1] not in _DECISIVE, dotted(path)


def _shown(value: object) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
