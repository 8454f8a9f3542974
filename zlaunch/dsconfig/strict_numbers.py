"""Find whole numbers in exponent notation, which the Trainer's reader makes floats.

In most sections DeepSpeed converts `1e6` to an integer. The keys here it passes on as they are: to a
schedule that requires an integer, to the C++ of asynchronous I/O, to a checkpoint writer.
"""

from collections.abc import Iterator

from zlaunch.dsconfig.text.document import Document, dotted, value_at
from zlaunch.errors import Finding, Fix, FixKind, Severity
from zlaunch.units import whole

HANDED_ON = {
    "aio": {"block_size", "queue_depth", "intra_op_parallelism"},
    "checkpoint": {"io_buffer_size", "io_multiplier"},
    "scheduler": {
        "warmup_num_steps",
        "total_num_steps",
        "cycle_first_step_size",
        "cycle_second_step_size",
        "decay_step_size",
        "lr_range_test_step_size",
    },
}


def imprecise_numbers(document: Document) -> Iterator[Finding]:
    """Find `1e6` where only 1000000 is safe."""
    for path, span in document.spans.items():
        if not path or path[-1] not in HANDED_ON.get(str(path[0]), ()):
            continue
        written = document.text[span.start : span.end]
        value = whole(value_at(document.value, path))
        if value is None or written.lstrip("+-").isdigit() or not written[-1].isdigit():
            continue
        yield Finding(
            "float-for-whole",
            f"the Trainer reads `{written}` as a float, and DeepSpeed fails on it later",
            f"write {value}",
            dotted(path),
            Severity.FAILS_LATER,
            fix=Fix(FixKind.WRITE, value),
        )
