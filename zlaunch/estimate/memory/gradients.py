"""What DeepSpeed does with gradients as they arrive, the last parameter's first.

Stage 0 keeps them, stage 1 until all are there; the other stages copy each into a bucket that is
reduced when it is full (zero/stage_1_and_2.py, reduce_independent_p_g_buckets_and_remove_grads;
zero/stage3.py). Reducing flattens a bucket once more unless it belongs to one rank. Sizes in bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from zlaunch.estimate.memory.settings import Settings


@dataclass(frozen=True, slots=True)
class Trained:
    """Elements of the trained parameters, in the model's order."""

    embedding: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    head: tuple[int, ...]

    @property
    def total(self) -> int:
        """Count them all."""
        return sum(self.in_order())

    @property
    def largest(self) -> int:
        """Count those of the largest parameter."""
        return max(self.in_order(), default=0)

    def in_order(self) -> Iterable[int]:
        """List the parameters as the model does."""
        return (*self.embedding, *(numel for layer in self.layers for numel in layer), *self.head)

    def owned(self, share: int, rank: int) -> int:
        """Count the elements of all parameters that a rank's share of the flat ones touches."""
        start, stop, position, owned = share * rank, share * (rank + 1), 0, 0
        for numel in self.in_order():
            if position < stop and position + numel > start:
                owned += numel
            position += numel
        return owned


@dataclass
class Gradients:
    """A backward pass, gradient by gradient."""

    settings: Settings
    total: int
    """Elements of all trained parameters."""
    owned_bytes: int
    """What the rank keeps of the reduced ones."""
    kept: bool = False
    """Whether those of the step before are still there, to be written over."""
    held: int = 0
    """Bytes of gradients that stay."""
    buckets: int = 0
    """Bytes of the buffers that they are collected in; stage 3 has its own for good."""
    _filled: int = 0
    _largest_mine: int = 0
    _position: int = field(init=False)

    def __post_init__(self) -> None:
        """Begin at the end of the flat parameters."""
        self._position = self.total

    @property
    def waits(self) -> bool:
        """Say whether nothing is reduced before all gradients are there."""
        return self.settings.stage == 0 or (self.settings.stage == 1 and self.settings.num_buckets == 1)

    def arrive(self, numel: int) -> int:
        """Take a gradient; return what that takes for a moment, beside `held` and `buckets`."""
        settings = self.settings
        if settings.stage in (1, 2) and not settings.widens_all:
            item = settings.gradient_item if settings.stage == 1 else settings.item
            self.buckets = item * settings.reduce_bucket * settings.num_buckets
        if self.waits:
            self.held += 0 if self.kept else settings.item * numel
            return 0
        moment = self.flush() if self._filled + numel > settings.reduce_bucket else 0
        self._filled += numel
        self._note_mine(numel)
        copy = settings.item * numel
        if numel <= settings.reduce_bucket:
            return moment + copy
        # Too large for the bucket: reduced where it is; under offload, in a copy that takes its place.
        cloned = copy if settings.optimizer_on != "gpu" and settings.stage < 3 else 0
        return copy + max(moment, cloned, self.flush())

    def flush(self) -> int:
        """Reduce what was collected; return what that takes for a moment."""
        settings, numel = self.settings, self._filled
        start, end = self._position - numel, self._position
        mine, self._largest_mine = self._largest_mine, 0
        self._position, self._filled = start, 0
        if not numel:
            return 0
        if settings.stage == 3:
            return settings.item * numel if numel <= settings.reduce_bucket else 0
        share = settings.share(self.total)
        wide = settings.gradient_item != settings.item
        crosses = start // share != (end - 1) // share or (wide and mine > 0)
        flat = settings.item * numel if crosses else 0
        if mine > 0 and settings.optimizer_on == "gpu":
            # What the rank keeps is copied when the bucket is reduced and no longer there twice;
            # where it is kept in another format, its buffer is there before.
            flat = max(0, flat - (0 if wide else self.owned_bytes - self.held))
            self.held = self.owned_bytes
        # Under offload each gradient's norm is computed, in fp64, before it goes to the host.
        return max(flat, 8 * mine if settings.optimizer_on != "gpu" else 0)

    def reduce_all(self, numels: Iterable[int]) -> int:
        """Reduce what waited until the end; return what that takes beside `held` and `buckets`.

        In the model's order, each gradient moves from where it was into the bucket; what the rank
        keeps gets a buffer when the first bucket with a part of it is reduced.
        """
        settings = self.settings
        if settings.stage == 0:
            return settings.item * min(self.total, settings.reduce_bucket)
        if settings.widens_all:
            return settings.item * self.total  # all of them once more, narrowed (bf16_optimizer.py)
        share, most, moved, kept, start, end = settings.share(self.total), 0, 0, 0, 0, 0
        for numel in (*numels, settings.reduce_bucket):
            if end > start and end - start + numel > settings.reduce_bucket:
                mine = self._mine(start, end)
                flat = kept + (settings.item * (end - start) if start // share != (end - 1) // share else 0)
                kept = self.owned_bytes if kept or (mine > 0 and settings.optimizer_on == "gpu") else 0
                norm = 8 * mine if settings.optimizer_on != "gpu" else 0
                most, start = max(most, flat - moved, kept + norm - moved), end
            moved += settings.item * numel if numel <= settings.reduce_bucket else 0
            end += numel
        return most

    def _mine(self, start: int, end: int) -> int:
        """Say how much of a stretch of the flat parameters the rank updates; below 0, nothing of it."""
        share = self.settings.share(self.total)
        first = share * self.settings.rank
        return min(end, first + share) - max(start, first)

    def _note_mine(self, numel: int) -> None:
        """Remember the largest piece of what the rank itself updates."""
        end = self._position - self._filled + numel
        self._largest_mine = max(self._largest_mine, self._mine(end - numel, end))
