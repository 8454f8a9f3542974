"""The longest of the batches that a program's data loaders begin with, in place of all others."""

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader

from zlaunch.estimate.program import Batches
from zlaunch.estimate.rehearsal.program.mode import ProgramMode
from zlaunch.estimate.workload import MOST_ACCUMULATED

_MOST_UNTRAINED = 2
"""Batches of a loader while nothing is trained."""


class _Step(list[Any]):
    """The micro-batches of a step that are rehearsed, beside the others, which are held as long."""

    others: Sequence[Any] = ()


class BatchReader:
    """Reads the first batches of every data loader, and gives out the longest one."""

    def __init__(
        self, mode: ProgramMode, most: int, is_training: Callable[[], bool], asked: Callable[[], int]
    ) -> None:
        """Compare so many batches.

        `is_training` tells whether a loader is read to train on it, and `asked` how many micro-batches the
        program asks for in a step.
        """
        self._mode, self._most, self._is_training, self._asked = mode, most, is_training, asked
        self._beside = 0
        """Batches still to give out beyond those that are rehearsed: a Trainer holds them, too."""
        self.longest: Batches | None = None
        """The longest batch that was given out to train on."""

    def install(self) -> None:
        """Let loaders read in this process, and give out what is said above."""
        init, iterate = DataLoader.__init__, DataLoader.__iter__
        parameters = inspect.signature(init)

        def initialize(loader: Any, *args: Any, **kwargs: Any) -> None:
            given = parameters.bind(loader, *args, **kwargs)
            given.arguments.update(num_workers=0, pin_memory=False, timeout=0)
            for name in ("prefetch_factor", "multiprocessing_context", "persistent_workers"):
                given.arguments.pop(name, None)
            init(*given.args, **given.kwargs)

        def read(loader: Any) -> Iterator[Any]:
            return self._batches(loader, iterate)

        DataLoader.__init__, DataLoader.__iter__ = initialize, read
        self._read_whole_steps()

    def _read_whole_steps(self) -> None:
        """Let the Trainer hold all micro-batches of a step before the first is trained, as it really does."""
        read = transformers.Trainer.get_batch_samples

        def read_step(trainer: Any, batches: Any, count: int, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
            all_of_them = count + self._not_rehearsed(trainer, count)
            found, *items = read(trainer, batches, all_of_them, *args, **kwargs)
            self._beside = 0
            step = _Step(found[:count])
            step.others = found[count:]
            return step, *items

        transformers.Trainer.get_batch_samples = read_step

    def _not_rehearsed(self, trainer: Any, count: int) -> int:
        """Return how many micro-batches of a step are read beside those that are rehearsed."""
        if count == MOST_ACCUMULATED:
            length = _length(trainer.callback_handler.train_dataloader)
            self._beside = max(0, min(self._asked(), length or self._asked()) - count)
        return self._beside

    def _batches(self, loader: Any, iterate: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        first: list[Any] = []
        with self._mode.reading_data():
            source = iterate(loader)  # which lives on, with the order that a sampler has drawn
            first += itertools.islice(source, 1)
            made = {name for name, tensor in _named(first, "") if self._mode.is_logged(tensor)}
        with self._mode.reading_data(peeks=True):
            first += itertools.islice(source, self._most - 1)
            if not first:
                return
            longest = copied(max(first, key=_num_elements))
        count = len(first)
        del first
        if self._is_training():
            self._remember(longest, count)
        if count == self._most:
            count = _length(loader) or (1 << 62)
        number = 0
        while number < count:
            if number >= _MOST_UNTRAINED and not self._is_training():
                return
            if self._beside:
                self._beside -= 1
            else:
                number += 1
            yield self._another(longest, made)  # which only the program holds

    def _another(self, batch: Any, made: Container[str]) -> Any:
        """Copy a batch, of which torch has made these tensors, and numpy the others."""
        with self._mode.reading_data(peeks=True):
            another = copied(batch)
        for name, tensor in _named([another], ""):
            if name in made:
                self._mode.log_real(tensor)
        return another

    def _remember(self, batch: Any, count: int) -> None:
        shapes = dict(_shapes(batch))
        size = sum(map(math.prod, shapes.values()))
        known = self.longest
        if known is None or size > sum(map(math.prod, known.shapes.values())):
            self.longest = Batches(count, shapes)


def copied(batch: Any) -> Any:
    """Copy a batch as a program would read another one of its size."""
    copies = {id(tensor): tensor.clone() for tensor in _tensors(batch)}
    return copy.deepcopy(batch, copies)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:  # of an iterable dataset
        return None


def _num_elements(batch: Any) -> int:
    return sum(math.prod(shape) for _, shape in _shapes(batch))


def _shapes(batch: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, tensor in _named(batch, ""):
        yield name, tuple(tensor.shape)


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    for _, tensor in _named(batch, ""):
        yield tensor


def _named(batch: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(batch, torch.Tensor):
        yield name or "batch", batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from _named(value, str(key))
    elif isinstance(batch, (list, tuple)):
        for number, value in enumerate(batch):
            yield from _named(value, f"{name}[{number}]")
