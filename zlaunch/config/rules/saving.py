"""Rules about how checkpoints are written."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import Subject, Violation, advice, ignored


@advice(
    {"checkpoint": {"writer": {"type": "python"}}, "zero_optimization": {"stage": 2}},
    {"checkpoint.writer": None},
)
def writer_cannot_load(subject: Subject) -> Iterator[Violation]:
    """With a checkpoint writer, `load_checkpoint` fails: torch 2.6 and newer refuses DeepSpeed's classes.

    What it has saved is a usual checkpoint. A job without `writer` loads it, and so does one with
    `TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1` (`load` in
    deepspeed/runtime/checkpoint_engine/fast_checkpoint_engine.py).
    """
    writer = subject.config.checkpoint.writer
    if writer is not None and writer.type != "mock" and subject.stage:
        yield Violation(
            "checkpoint.writer",
            "a job with a checkpoint writer saves checkpoints, but cannot load them with torch 2.6 and newer",
            "leave it out to resume; or `--env TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1` if you trust the files",
        )


@ignored({"checkpoint": {"writer": {"type": "mock"}}}, {"checkpoint.writer.type": "python"})
def writer_saves_nothing(subject: Subject) -> Iterator[Violation]:
    """The checkpoint writer `mock` only measures time: its files have nothing in them."""
    writer = subject.config.checkpoint.writer
    if writer is not None and writer.type == "mock":
        yield Violation(
            "checkpoint.writer.type", "the writer `mock` saves no checkpoints", 'write "python" or "fast"'
        )
