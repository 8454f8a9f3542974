"""What torch's profiler saw of the CPU's allocator, phase by phase.

The profiler hears of every allocation and every release from the allocator itself, and knows no tensors.
Not all of that is tensors of the training; what is not is told apart by when it was taken and given back:

- kernel: taken inside an operator and given back before the operator returned. It depends on the processor
  (oneDNN's scratchpads, the buffers of attention, copies that an operator's kernel makes for itself).
- communication: taken by gloo, inside a collective or on a thread of its own.
- number: a number that Python gave to an operator, boxed outside of any.
- file: what `torch.load` reads beside the tensors, and files that are mapped: their pages are those of the
  file, which all ranks share and the kernel drops when it needs memory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal

MARK = "phase of training: "
"""What the records of our own phases begin with."""

READING = "reading of a file"
"""What the records of `torch.load` are called, which makes tensors outside of operators."""
READING_TENSOR = "reading of a tensor"
BARRIER = "barrier"
"""What the records of barriers are called, which take a byte."""
MAPPING = "mapping of a file"
"""What the records of safetensors are called, whose tensors are views of the file."""

LONGEST_NUMBER = 16
"""The bytes of a complex number."""

Kind = Literal["tensor", "kernel", "communication", "number", "file"]


@dataclass(frozen=True)
class Span:
    """Anything that the profiler names, and how long it ran; ns."""

    name: str
    start: int
    end: int
    operator: bool
    """Whether it is an operator with a kernel of its own, not one composed of others."""


@dataclass
class Block:
    """Memory that the allocator gave out, from one moment to another; ns."""

    nbytes: int
    start: int
    thread: int
    within: tuple[Span, ...]
    """What was running when it was asked for, the outermost first."""
    end: float = float("inf")

    @property
    def place(self) -> str:
        """Say where it was asked for."""
        return " > ".join(span.name for span in self.within if not span.name.startswith(MARK)) or "python"

    @property
    def operator(self) -> Span | None:
        """Say which operator asked for it, as a tracer of operators sees them."""
        return next((span for span in self.within if span.operator), None)


@dataclass(frozen=True)
class Trace:
    """Everything the profiler saw, in order of time."""

    phases: list[Span]
    blocks: list[Block]
    thread: int
    """The thread that trains."""


def read(results: Any) -> Trace:
    """Read the profiler's tree of events; allocations are leaves in it."""
    overloads = {(event.start_ns(), event.name()): event.overload_name() for event in results.events()}
    phases: list[Span] = []
    moves: list[tuple[Any, tuple[Span, ...]]] = []
    todo: list[tuple[Any, tuple[Span, ...]]] = [(event, ()) for event in results.experimental_event_tree()]
    while todo:
        event, within = todo.pop()
        if event.name == "[memory]":
            moves.append((event, within))
            continue
        start = event.start_time_ns
        kernel = _has_kernel(event.name, overloads.get((start, event.name)))
        span = Span(event.name, start, event.end_time_ns, kernel)
        if span.name.startswith(MARK):
            phases.append(span)
        todo += [(child, (*within, span)) for child in event.children]
    phases.sort(key=lambda phase: phase.start)
    moves.sort(key=lambda move: move[0].start_time_ns)
    return Trace(phases, _pair(moves), thread=moves[0][0].start_tid)


@cache
def _has_kernel(name: str, overload: str | None) -> bool:
    import torch

    qualified = f"{name}.{overload}" if overload else name
    try:
        composed = torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CompositeImplicitAutograd")
    except RuntimeError:  # no operator: a node of autograd, or a record of some Python code
        return False
    return not composed


def _pair(moves: list[tuple[Any, tuple[Span, ...]]]) -> list[Block]:
    """Pair each allocation with the release of the same address."""
    blocks: list[Block] = []
    at: dict[int, Block] = {}
    for event, within in moves:
        address, nbytes = event.typed[1].ptr, event.typed[1].alloc_size
        if nbytes > 0:
            assert address not in at, "the release of a block was not seen"
            at[address] = Block(nbytes, event.start_time_ns, event.start_tid, within)
            blocks.append(at[address])
        elif address in at:
            at.pop(address).end = event.start_time_ns
    return blocks


def kind(block: Block, thread: int) -> Kind:
    """Tell tensors from what else the allocator is asked for; `thread` is the one that trains."""
    operator = block.operator
    if any(span.name == MAPPING for span in block.within):
        return "file"
    if any(span.name == BARRIER for span in block.within):
        return "communication"
    if block.thread != thread or (operator and operator.name.startswith("c10d::")):
        return "communication"
    if operator is not None:
        return "kernel" if block.end <= operator.end else "tensor"
    if any(span.name == READING for span in block.within):
        return "tensor" if any(span.name == READING_TENSOR for span in block.within) else "file"
    return "number" if block.nbytes <= LONGEST_NUMBER else "tensor"


@dataclass(frozen=True)
class Level:
    """The most that was held in a phase, and what was held at its end; bytes."""

    peak: int
    end: int


def levels(trace: Trace, blocks: list[Block]) -> dict[str, Level]:
    """Say how much of these blocks was held in each phase; a phase that comes again goes on."""
    found: dict[str, Level] = {}
    changes = sorted(_changes(blocks))
    place = held = 0
    for phase, following in pairwise([*trace.phases, None]):
        peak = held
        until = following.start if following else float("inf")
        while place < len(changes) and changes[place][0] < until:
            held += changes[place][1]
            peak = max(peak, held)
            place += 1
        assert phase is not None
        name = phase.name.removeprefix(MARK)
        found[name] = Level(max(peak, found[name].peak if name in found else 0), held)
    return found


def _changes(blocks: list[Block]) -> Iterator[tuple[float, int]]:
    for block in blocks:
        yield block.start, block.nbytes
        if block.end != float("inf"):
            yield block.end, -block.nbytes


@dataclass(frozen=True)
class Account:
    """What a training run held: tensors alone, everything, and the largest of what is no tensor."""

    tensors: Mapping[str, Level]
    everything: Mapping[str, Level]
    largest: Mapping[str, Mapping[str, int]]
    """Kind → where it was asked for → bytes."""


def mark_reading() -> None:
    """Let `torch.load` say what it reads."""
    import torch
    from torch.profiler import record_function

    reader = torch._C.PyTorchFileReader
    reader.get_storage_from_record = record_function(READING_TENSOR)(reader.get_storage_from_record)
    torch.load = record_function(READING)(torch.load)


def mark_others() -> None:
    """Let safetensors say when it maps a file, and torch when it waits at a barrier."""
    import torch
    from torch.distributed import distributed_c10d
    from torch.profiler import record_function

    storage: Any = torch.UntypedStorage
    storage.from_file = record_function(MAPPING)(storage.from_file)
    barrier = record_function(BARRIER)(distributed_c10d.barrier)
    torch.distributed.barrier = distributed_c10d.barrier = barrier


def account(results: Any) -> Account:
    """Work out what the profiler's results say."""
    trace = read(results)
    kinds = [kind(block, trace.thread) for block in trace.blocks]
    largest: dict[str, Counter[str]] = {}
    for block, what in zip(trace.blocks, kinds, strict=True):
        if what != "tensor":
            sizes = largest.setdefault(what, Counter())
            sizes[block.place] = max(sizes[block.place], block.nbytes)
    return Account(
        tensors=levels(trace, [b for b, what in zip(trace.blocks, kinds, strict=True) if what == "tensor"]),
        everything=levels(trace, trace.blocks),
        largest={what: dict(sizes.most_common(12)) for what, sizes in largest.items()},
    )
