"""Memory of gradients during the backward pass, which produces them from the last parameter to the first.

Stage 0 keeps all gradients, stage 1 until the end of the backward pass. The other stages, and stage 1 with
`overlap_comm`, copy each into a bucket that is reduced when it is full (zero/stage_1_and_2.py,
reduce_independent_p_g_buckets_and_remove_grads; zero/stage3.py). Reducing copies a bucket once more unless
it belongs to a single rank. Stage 1 keeps gradients that are larger than a bucket, and all of an accumulated
step until its last pass. Meanwhile activations are freed. All sizes in bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from zlaunch.estimate.memory.activations import Batch, SavedActivations, working_memory
from zlaunch.estimate.memory.optimizer_states import Breakdown, add, reduced_gradients
from zlaunch.estimate.memory.settings import Settings
from zlaunch.estimate.memory.weights import Weights
from zlaunch.job.transformer import Transformer

_NORM_ELEMENTS: Final = 250_000_000
"""Elements whose norm is computed at once (zero/stage3.py, _constant_buffered_norm2)."""


@dataclass
class Gradients:
    """The gradients of one backward pass, which `arrive` one by one."""

    settings: Settings
    weights: Weights
    is_allocated: bool = False
    """Whether the gradients of an earlier pass are still allocated and are overwritten."""
    held: int = 0
    """Bytes of gradients that stay allocated."""
    buckets: int = 0
    """Bytes of the reduction buckets; stage 3 has permanent ones, counted elsewhere."""
    larger: int = 0
    """Bytes of gradients larger than a bucket, which stage 1 keeps."""
    _filled: int = 0
    _largest: int = 0
    _largest_mine: int = 0
    _position: int = field(init=False)
    _share: int = field(init=False)
    owned_bytes: int = field(init=False)
    """Reduced gradients that the rank keeps."""

    def __post_init__(self) -> None:
        self._position = self.weights.total
        self._share = self.settings.share(self.weights.total)
        self.owned_bytes = reduced_gradients(self.settings, self.weights)

    @property
    def kept(self) -> int:
        """Bytes of all gradients that are there now, without buckets."""
        return self.held + self.larger

    @property
    def waits(self) -> bool:
        """Whether all gradients are there until the end of the backward pass."""
        settings = self.settings
        is_at_once = settings.num_buckets == 1 or settings.accumulation > 1
        return settings.stage == 0 or (settings.stage == 1 and is_at_once)

    def arrive(self, numel: int) -> int:
        """Add a gradient; return the temporary bytes for that, in addition to `held` and `buckets`."""
        settings, gradient = self.settings, self.settings.item * numel
        self.buckets = settings.bucket_bytes
        if self.waits:
            if not self.is_allocated:
                self.held += gradient
            return 0
        temporary = 0
        if self._filled + numel > settings.reduce_bucket:
            temporary = self.flush()
        self._filled += numel
        self._note_mine(numel)
        if numel <= settings.reduce_bucket:
            return temporary + gradient
        # A gradient larger than the bucket is reduced in place, with offload in a copy.
        if settings.optimizer_on != "gpu" and settings.stage < 3:
            temporary = max(temporary, gradient)
        if settings.stage == 1:
            self.larger += gradient
            return max(temporary, self.flush())
        return gradient + max(temporary, self.flush())

    def flush(self) -> int:
        """Reduce the bucket; return the temporary bytes for that."""
        settings, numel = self.settings, self._filled
        start, end = self._position - numel, self._position
        mine, self._largest_mine = self._largest_mine, 0
        largest, self._largest = self._largest, 0
        self._position, self._filled = start, 0
        if not numel:
            return 0
        if settings.stage == 3:
            flat = 0
            if numel <= settings.reduce_bucket:
                flat = settings.item * numel
            if settings.optimizer_on == "gpu":
                return flat
            # The norm of each part is computed in fp64 while the parts of the bucket are there.
            norm = 8 * min(settings.share(largest), _NORM_ELEMENTS)
            return max(flat, settings.item * settings.share(numel) + norm)
        is_wide = settings.gradient_item != settings.item
        flat = self._flattened(start, end)
        if is_wide and mine > 0:
            flat = settings.item * numel
        if settings.optimizer_on != "gpu":
            # The norm of each gradient is computed in fp64 before the copy to the host.
            return max(flat, 8 * mine)
        if mine > 0:
            # The rank's part is copied out after the reduction. In another dtype, its buffer exists before.
            if not is_wide:
                flat = max(0, flat - (self.owned_bytes - self.held))
            self.held = self.owned_bytes
        return flat

    def _flattened(self, start: int, end: int) -> int:
        """Return the bytes of a bucket's copy; none is made if the bucket belongs to a single rank."""
        if start // self._share == (end - 1) // self._share:
            return 0
        return self.settings.item * (end - start)

    def reduce_all(self) -> int:
        """Reduce all gradients at the end of the pass; return the bytes in addition to `held` and `buckets`.

        Gradients move into the bucket in the model's order. The rank's part gets a buffer when the first
        bucket that contains some of it is reduced.
        """
        settings = self.settings
        if settings.stage == 0:
            return settings.item * min(self.weights.total, settings.reduce_bucket)
        if settings.widens_all:
            return settings.item * self.weights.total  # a copy of all in bf16 (bf16_optimizer.py)
        peak = moved = owned = start = end = 0
        for numel in (*self.weights.trained, settings.reduce_bucket):
            if end > start and end - start + numel > settings.reduce_bucket:
                mine, norm = self._mine(start, end), 0
                flat = owned + self._flattened(start, end)
                if settings.optimizer_on != "gpu":
                    norm = 8 * mine
                elif mine > 0:
                    owned = self.owned_bytes
                peak, start = max(peak, flat - moved, owned + norm - moved), end
            if numel <= settings.reduce_bucket:
                moved += settings.item * numel
            end += numel
        return peak

    def _mine(self, start: int, end: int) -> int:
        """Return the elements of a range of the flat parameters in the rank's partition; none if negative."""
        first = self._share * self.settings.rank
        return min(end, first + self._share) - max(start, first)

    def _note_mine(self, numel: int) -> None:
        self._largest = max(self._largest, numel)
        end = self._position - self._filled + numel
        self._largest_mine = max(self._largest_mine, self._mine(end - numel, end))


def backward(
    model: Transformer, batch: Batch, saved: SavedActivations, gradients: Gradients
) -> Iterator[tuple[int, Breakdown]]:
    """Yield the memory at the peaks of the backward pass, with the elements that are still to be used.

    Those are the parameters up to and including the current layer.
    """
    total, weights = model.parameters, gradients.weights
    yield total, {"activations": saved.activations, "logits": saved.head.saved + saved.head.backward}
    output = waiting = 0
    if weights.embedding:
        output = batch.item * model.hidden * model.vocab
    if model.tied:  # the output's gradient is kept until the embedding's is computed
        waiting = output
    yield total, {"activations": saved.activations, "logits": saved.head.gradient, "gradients": output}
    _arrive(gradients, weights.head)
    below, working = sum(saved.layers), working_memory(model, batch) + saved.temporary
    sizes: list[int] = []
    for stack in model.stacks:
        sizes += [stack.layer_numel] * stack.num_layers
    ahead = total - sum(weight.numel for weight in model.head)
    for number in reversed(range(len(sizes))):
        here, recomputed = saved.layers[number], saved.recomputed[number]
        layer = {"activations": below}
        if recomputed != here:
            layer = {"activations": below + recomputed}
        yield ahead, add(layer, {"activations": working}, _breakdown(gradients, waiting))
        temporary = _arrive(gradients, weights.layers[number])
        yield ahead, add(layer, _breakdown(gradients, waiting + temporary))
        below, ahead = below - here, ahead - sizes[number]
    # Their sum is a third tensor: the first is a view, to which autograd does not add in place.
    yield ahead, _breakdown(gradients, 3 * waiting)
    yield ahead, _breakdown(gradients, _arrive(gradients, weights.embedding))
    reduce = gradients.flush
    if gradients.waits:
        reduce = gradients.reduce_all
    yield 0, _breakdown(gradients, reduce())


def _arrive(gradients: Gradients, numels: tuple[int, ...]) -> int:
    return max((gradients.arrive(numel) for numel in reversed(numels)), default=0)


def _breakdown(gradients: Gradients, temporary: int) -> Breakdown:
    return {"gradients": gradients.kept + temporary, "buckets": gradients.buckets}
