"""Storage: `aio` and `checkpoint`."""

from typing import Literal

from zlaunch.dsconfig.schema.section import AnyCase, Positive, Section

LOAD_UNIVERSAL = ("checkpoint", "load_universal")
"""The key with which an engine loads universal checkpoints, and no others."""

WRITER = ("checkpoint", "writer")
"""The key with which an engine writes checkpoints faster, and cannot load them with torch 2.6 and newer."""

SET_LOAD_UNIVERSAL = f"--set {'.'.join(LOAD_UNIVERSAL)}=true"
"""The option of `zlaunch train` for it."""


class Aio(Section):
    """Asynchronous reads and writes for NVMe offload."""

    block_size: Positive = 1_048_576
    """Bytes per request."""

    queue_depth: Positive = 8
    """Requests in flight per thread."""

    intra_op_parallelism: Positive = 1
    """Threads that share one tensor."""

    single_submit: bool = False
    """Submit requests one by one."""

    overlap_events: bool = True
    """Submit new requests while earlier ones complete."""

    use_gds: bool = False
    """Read straight into GPU memory through GPUDirect Storage (CUDA)."""


class ParallelWrite(Section):
    """Writing of pipeline stages."""

    pipeline_stage: bool = False
    """Write pipeline stages in parallel."""


class Writer(Section):
    """The fast checkpoint writer."""

    type: AnyCase[Literal["mock", "python", "fast"]] = "fast"
    """Kind of writer."""

    decoupled: bool = False
    """Write in the background during training."""

    io_buffer_size: Positive = 67_108_864
    """Bytes of the write buffer."""

    io_buffer_double: bool = True
    """Use two buffers: fill one while the other is written."""

    show_statistics: bool = False
    """Print write speeds."""

    data_parallel: AnyCase[Literal["replica", "socket", "machine"]] | None = None
    """Which ranks share the writing."""

    io_multiplier: Positive = 1
    """Writers per rank."""


class Checkpoint(Section):
    """How checkpoints are written and read."""

    tag_validation: AnyCase[Literal["warn", "ignore", "fail"]] = "warn"
    """What to do if ranks have different checkpoint tags."""

    load_universal: bool = False
    """Load a universal checkpoint, which works with any number of ranks."""

    use_node_local_storage: bool = False
    """Each host saves to its own disk."""

    parallel_write: ParallelWrite = ParallelWrite.model_construct()

    checkpoint_serialization: bool = True
    """Use PyTorch's newer file format."""

    writer: Writer | None = None
