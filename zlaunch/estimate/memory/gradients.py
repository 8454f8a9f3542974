"""Memory of gradients during the backward pass, which produces them from the last parameter to the first.

Stage 0 keeps all gradients, stage 1 until the end of the backward pass. The other stages copy each into a
bucket that is reduced when it is full (zero/stage_1_and_2.py,
reduce_independent_p_g_buckets_and_remove_grads; zero/stage3.py). Reducing copies a bucket once more unless
it belongs to a single rank. Meanwhile activations are freed. All sizes in bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from zlaunch.estimate.memory.activations import Batch, SavedActivations, working_memory
from zlaunch.estimate.memory.optimizer_states import Breakdown, add, reduced_gradients
from zlaunch.estimate.memory.settings import Settings
from zlaunch.estimate.memory.weights import Weights
from zlaunch.job.transformer import Transformer


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
    _filled: int = 0
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
    def waits(self) -> bool:
        """Whether all gradients are reduced at the end of the backward pass."""
        return self.settings.stage == 0 or (self.settings.stage == 1 and self.settings.num_buckets == 1)

    def arrive(self, numel: int) -> int:
        """Add a gradient; return the temporary bytes for that, in addition to `held` and `buckets`."""
        settings = self.settings
        if settings.stage in (1, 2) and not settings.widens_all:
            item = settings.gradient_item if settings.stage == 1 else settings.item
            self.buckets = item * settings.reduce_bucket * settings.num_buckets
        if self.waits:
            self.held += 0 if self.is_allocated else settings.item * numel
            return 0
        temporary = self.flush() if self._filled + numel > settings.reduce_bucket else 0
        self._filled += numel
        self._note_mine(numel)
        copy = settings.item * numel
        if numel <= settings.reduce_bucket:
            return temporary + copy
        # A gradient larger than the bucket is reduced in place, with offload in a copy.
        cloned = copy if settings.optimizer_on != "gpu" and settings.stage < 3 else 0
        return copy + max(temporary, cloned, self.flush())

    def flush(self) -> int:
        """Reduce the bucket; return the temporary bytes for that."""
        settings, numel = self.settings, self._filled
        start, end = self._position - numel, self._position
        mine, self._largest_mine = self._largest_mine, 0
        self._position, self._filled = start, 0
        if not numel:
            return 0
        if settings.stage == 3:
            return settings.item * numel if numel <= settings.reduce_bucket else 0
        share = self._share
        wide = settings.gradient_item != settings.item
        crosses = start // share != (end - 1) // share or (wide and mine > 0)
        flat = settings.item * numel if crosses else 0
        if mine > 0 and settings.optimizer_on == "gpu":
            # The rank's part is copied out after the reduction. In another dtype, its buffer exists before.
            flat = max(0, flat - (0 if wide else self.owned_bytes - self.held))
            self.held = self.owned_bytes
        # With offload, the norm of each gradient is computed in fp64 before the copy to the host.
        return max(flat, 8 * mine if settings.optimizer_on != "gpu" else 0)

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
        share, peak, moved, own, start, end = self._share, 0, 0, 0, 0, 0
        for numel in (*self.weights.trained, settings.reduce_bucket):
            if end > start and end - start + numel > settings.reduce_bucket:
                mine = self._mine(start, end)
                flat = own + (settings.item * (end - start) if start // share != (end - 1) // share else 0)
                own = self.owned_bytes if own or (mine > 0 and settings.optimizer_on == "gpu") else 0
                norm = 8 * mine if settings.optimizer_on != "gpu" else 0
                peak, start = max(peak, flat - moved, own + norm - moved), end
            moved += settings.item * numel if numel <= settings.reduce_bucket else 0
            end += numel
        return peak

    def _mine(self, start: int, end: int) -> int:
        """Return the elements of a range of the flat parameters in the rank's partition; none if negative."""
        first = self._share * self.settings.rank
        return min(end, first + self._share) - max(start, first)

    def _note_mine(self, numel: int) -> None:
        """Track the largest part of a gradient in the rank's partition."""
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
    output = batch.item * model.hidden * model.vocab if weights.embedding else 0
    yield total, {"activations": saved.activations, "logits": saved.head.gradient, "gradients": output}
    # The output's gradient of a tied matrix is kept until the embedding's is computed.
    waiting = output if model.tied else 0
    _arrive(gradients, weights.head)
    below, working = sum(saved.layers), working_memory(model, batch) + saved.temporary
    sizes = [stack.layer_numel for stack in model.stacks for _ in range(stack.num_layers)]
    ahead = total - sum(weight.numel for weight in model.head)
    for number in reversed(range(len(sizes))):
        here, recomputed = saved.layers[number], saved.recomputed[number]
        layer = {"activations": below if recomputed == here else below + recomputed}
        yield ahead, add(layer, {"activations": working}, _breakdown(gradients, waiting))
        temporary = _arrive(gradients, weights.layers[number])
        yield ahead, add(layer, _breakdown(gradients, waiting + temporary))
        below, ahead = below - here, ahead - sizes[number]
    # Their sum is a third tensor: the first is a view, to which autograd does not add in place.
    yield ahead, _breakdown(gradients, 3 * waiting)
    yield ahead, _breakdown(gradients, _arrive(gradients, weights.embedding))
    last = gradients.reduce_all() if gradients.waits else gradients.flush()
    yield 0, _breakdown(gradients, last)


def _arrive(gradients: Gradients, numels: tuple[int, ...]) -> int:
    return max((gradients.arrive(numel) for numel in reversed(numels)), default=0)


def _breakdown(gradients: Gradients, temporary: int) -> Breakdown:
    return {"gradients": gradients.held + temporary, "buckets": gradients.buckets}
