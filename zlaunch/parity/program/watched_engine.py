"""An engine of a user's program, each of whose steps is computed again in plain torch.

The reference is in the same process: the engine's own weights before the step, the very inputs of the model,
the same random numbers, and the gradients that the program's loss sends into the outputs of the model. So the
program needs to be neither run twice nor deterministic, and each step is judged alone.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import distributed

from zlaunch.estimate.rehearsal.model import CannotTell, NotRehearsed
from zlaunch.estimate.rehearsal.program.batches import copied
from zlaunch.estimate.rehearsal.program.run_program import one_line
from zlaunch.estimate.rehearsal.training import base_optimizer
from zlaunch.job.spec import Precision
from zlaunch.parity.program.measured import Measured, Tensors, of_gradients, of_steps
from zlaunch.parity.program.plain_module import (
    Backward,
    Forward,
    PlainModule,
    RandomState,
    autocast_now,
    replaced,
    tensors_of,
)
from zlaunch.parity.program.plain_optimizer import PlainOptimizer, members, norm_of
from zlaunch.parity.program.rank import EngineReader
from zlaunch.parity.verdict import Distance, Quantity

_MOST_OVERFLOWS: Final = 20
"""Steps that a dynamic loss scale may skip before the first one is compared."""
Options = list[dict[str, Any]]
"""Groups of an optimizer."""
_OF_DTYPES: Final[Mapping[torch.dtype, Precision]] = {torch.bfloat16: "bf16", torch.float16: "fp16"}


class WatchedEngine:
    """Compares an engine, step by step; every rank has one, and the first judges."""

    def __init__(self, engine: Any, plain: PlainModule) -> None:
        """Watch the module of an engine that was just created; `plain` is its copy from before."""
        self.engine, self._plain = engine, plain
        groups = members(engine)
        if groups is None:
            raise CannotTell(f"DeepSpeed's {type(engine.optimizer).__name__} hides which weights it trains")
        trained = {id(weight) for group in groups for weight in group}
        self._weights = {
            name: weight
            for name, weight in engine.module.named_parameters()
            if weight.requires_grad and id(weight) in trained
        }
        names = {id(weight): name for name, weight in self._weights.items()}
        self._groups = [[names[id(weight)] for weight in group if id(weight) in names] for group in groups]
        self._reader = EngineReader(engine)
        self._ranks = distributed.new_group(backend="gloo")
        self._is_first = distributed.get_rank() == 0
        self._shares = distributed.get_world_size()
        if engine._config._param_dict.get("gradient_allreduce_op") == "sum":
            self._shares = 1
        self._optimizer: PlainOptimizer | None = None
        self._forwards: list[Forward] = []
        self._open: Forward | None = None
        self._momenta: Tensors = {}
        """Before the step."""
        self._reduced: Tensors | None = None
        """Gradients after a backward pass, if a program may change them before the step."""
        self._is_replaying = self._has_weights = False
        self.skipped = 0
        """Steps that the engine skipped, since gradients were not finite."""
        self.steps = 0
        self.distances: list[Distance] = []
        self.unreached: set[str] = set()
        self.unchecked: dict[str, None] = {}
        engine.module.register_forward_pre_hook(self._begin, with_kwargs=True, prepend=True)
        engine.module.register_forward_hook(self._end)

    @property
    def parameters(self) -> int:
        """Elements of the model."""
        return sum(weight.numel() for weight in self._plain.parameters.values())

    @property
    def precision(self) -> Precision:
        """The format with the fewest bits among those of weights, gradients and messages."""
        dtypes = [weight.dtype for weight in self._weights.values()]
        dtypes.append(self.engine.communication_data_type)
        found = [_OF_DTYPES[dtype] for dtype in dtypes if dtype in _OF_DTYPES]
        return min(found, default="fp32")  # bf16 before fp16

    def _begin(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_replaying:
            raise CannotTell("a copy of the model computes with the model itself")
        self._open = None
        if not torch.is_grad_enabled():
            return
        if not self._has_weights:
            self._plain.take_weights(module, self.steps)
            self._has_weights = True
        if any(tensor.requires_grad for tensor in tensors_of((args, kwargs)).values()):
            raise CannotTell("the inputs of the model have gradients themselves")
        try:
            own_args, own_kwargs = copied((args, kwargs))
        except Exception as error:  # noqa: BLE001 - a program may pass anything
            raise CannotTell(f"the inputs of the model cannot be copied: {one_line(error)}") from None
        self._open = Forward(
            own_args,
            own_kwargs,
            RandomState.now(),
            tuple(part.training for part in module.modules()),
            autocast_now(),
            {name: buffer.detach().clone() for name, buffer in module.named_buffers(remove_duplicate=False)},
        )

    def _end(self, _: torch.nn.Module, __: object, output: Any) -> Any:
        """Return the output with copies of its tensors, which tell what the program's loss sends back.

        The tensors themselves may also be steps on the way to others of them, as logits are to a loss. Views
        would not do: a program may change them in place.
        """
        forward, self._open = self._open, None
        if forward is None:
            return output
        copies: dict[int, torch.Tensor] = {}

        def copy_of(name: str, tensor: torch.Tensor) -> torch.Tensor:
            if tensor.grad_fn is None:
                return tensor
            if id(tensor) not in copies:
                copy = copies[id(tensor)] = tensor.clone()
                forward.outputs[name] = tensor.detach()
                forward.nodes.append(copy.grad_fn)
                copy.register_hook(_arrival(forward, name))
            return copies[id(tensor)]

        output = replaced(output, copy_of)
        if forward.outputs:
            self._forwards.append(forward)
        return output

    def backward(self, run: Callable[[], Any], loss: Any, *, divides: bool) -> Any:
        """Run a backward pass of the engine; `divides` tells whether it divides by the micro-batches."""
        if not isinstance(loss, torch.Tensor) or not loss.requires_grad:
            return run()
        self._refuse_other_paths(loss)
        scales: list[float] = []
        handle = loss.register_hook(lambda gradient: scales.append(float(gradient)))
        result = run()
        handle.remove()
        owed = 1.0
        if divides:
            owed /= self.engine.gradient_accumulation_steps()
        arrived = [forward for forward in self._forwards if forward.arrived]
        if arrived and not any(scales):
            raise CannotTell("the engine gives its loss no gradient")
        for forward in arrived:
            forward.backwards.append(Backward(forward.arrived, owed / scales[0]))
            forward.arrived = {}
        if not self.engine.zero_optimization() and self.engine.is_gradient_accumulation_boundary():
            self._reduced = self._kept(self._reader.gradient)
        return result

    def _refuse_other_paths(self, loss: torch.Tensor) -> None:
        """Raise CannotTell for a loss that depends on weights by another way than the model's outputs."""
        stops = {node for forward in self._forwards for node in forward.nodes}
        own = {id(weight) for weight in self._weights.values()}
        if any(id(leaf) in own for leaf in _leaves(loss, stops)):
            raise CannotTell("the loss depends on weights beside what the model returns")

    def step(self, run: Callable[[], Any]) -> Any:
        """Run a step of the engine; compare it if it ends an accumulation."""
        if not self.engine.is_gradient_accumulation_boundary():
            return run()
        if any(forward.arrived for forward in self._forwards):
            raise CannotTell("it calls `loss.backward()` instead of `engine.backward(loss)`")
        forwards = [forward for forward in self._forwards if forward.backwards]
        self._forwards = []
        before, gradients = self._kept(self._reader.master), self._kept(self._reader.gradient)
        plain = self._replay(forwards)
        skipped = self.engine.skipped_steps
        options = [dict(group) for group in base_optimizer(self.engine).param_groups]
        result = run()
        self._has_weights = False
        if self.engine.skipped_steps > skipped:
            self.skipped += 1
            if self.skipped > _MOST_OVERFLOWS:
                raise CannotTell(f"the loss scale is too large in {self.skipped} steps")
            return result
        self.steps += 1
        self._compare(plain, self._reduced or gradients)
        self._reduced = None
        self._compare_update(before, gradients, options)
        return result

    def _kept(self, read: Callable[[torch.nn.Parameter], torch.Tensor | None]) -> Tensors:
        """Gather something of each weight, which all ranks have to, and keep it on the first one alone."""
        kept: Tensors = {}
        for name, weight in self._weights.items():
            tensor = read(weight)
            if self._is_first and tensor is not None:
                kept[name] = tensor
        return kept

    def _note(self, distances: Iterable[Distance]) -> None:
        self.distances += [replace(distance, step=self.steps) for distance in distances]

    def _replay(self, forwards: Sequence[Forward]) -> "_Plain":
        """Compute the step in plain torch."""
        plain, states = _Plain(), RandomState.now()
        self._is_replaying = True
        try:
            with torch.enable_grad():
                for forward in forwards:
                    self._replay_one(forward, plain)
        except NotRehearsed:
            raise
        except Exception as error:
            raise CannotTell(f"a copy of the model fails: {one_line(error)}") from error
        states.restore()
        self._is_replaying = False
        distributed.all_reduce(plain.outputs, group=self._ranks)
        if not float(plain.outputs[_ELEMENTS]):
            raise CannotTell("no forward pass of its engine led to this step")
        lengths = torch.tensor([plain.summands.get(name, 0.0) for name in self._weights])
        distributed.all_reduce(lengths, group=self._ranks)
        lengths /= self._shares
        plain.summands = dict(zip(self._weights, lengths.tolist(), strict=True))
        plain.reached = self._average(plain.gradients)
        self._average(plain.others)
        self.unreached = {*self._weights} - plain.reached
        return plain

    def _replay_one(self, forward: Forward, plain: "_Plain") -> None:
        if self.steps == 0 and not self._plain.is_repeatable(forward):
            raise CannotTell("the model computes something else each time from the same inputs")
        plain.add(forward, self._plain)

    def _average(self, sums: Tensors) -> set[str]:
        """Average over the ranks what each has computed; return the names of what any has."""
        has = torch.tensor([name in sums for name in self._weights], dtype=torch.float32)
        distributed.all_reduce(has, group=self._ranks)
        reached = {name for name, count in zip(self._weights, has.tolist(), strict=True) if count}
        for name in sums.keys() - reached:
            del sums[name]  # of a weight that this engine does not train
        for name in self._weights:
            if name in reached:
                total = sums.setdefault(name, torch.zeros(self._plain.parameters[name].shape))
                distributed.all_reduce(total, group=self._ranks)
                total /= self._shares
        return reached

    def _compare(self, plain: "_Plain", gradients: Tensors) -> None:
        self._note([plain.distance])
        if not self._is_first:
            return
        norm = self.engine.get_global_grad_norm()
        if self._reader.has_other_norm or norm is None:
            norm = None
        else:
            norm = float(norm)
        engine = Measured(norms=[norm], gradients=[gradients])
        expected = Measured(gradients=[plain.gradients], reached=plain.reached, summands=[plain.summands])
        other = Measured(gradients=[plain.others])
        for measured in (expected, other):
            measured.norms.append(norm_of(measured.gradients[0].values()))
        self._note(of_gradients(engine, expected, other))

    def _compare_update(self, before: Tensors, gradients: Tensors, options: Options) -> None:
        reader, masters, stale = self._reader, Tensors(), list[float]()
        for name, weight in self._weights.items():
            master = reader.master(weight)
            stale.append(reader.stale(weight, master))
            if self._is_first:
                masters[name] = master
        apart = torch.tensor(stale)
        distributed.all_reduce(apart, op=distributed.ReduceOp.MAX, group=self._ranks)
        reader.link_states()
        momenta = self._kept(reader.momentum)
        if not self._is_first:
            return
        engine = Measured(masters=[before, masters], momenta=[momenta])
        engine.stale.append(dict(zip(self._weights, apart.tolist(), strict=True)))
        expected = Measured(masters=[{}], momenta=[{}])
        if (optimizer := self._reference(before)) is not None:
            expected = optimizer.step(before, gradients, options, self.engine.gradient_clipping())
        self._note(of_steps(engine, expected, self._momenta))
        self._momenta = momenta

    def _reference(self, weights: Tensors) -> PlainOptimizer | None:
        if self._optimizer is None and self.steps == 1:
            try:
                self._optimizer = PlainOptimizer(base_optimizer(self.engine), self._groups, weights)
            except LookupError as error:
                self.unchecked[f"updates: there is no reference for the optimizer `{error.args[0]}`"] = None
        return self._optimizer


_ELEMENTS: Final = 4


class _Plain:
    """A step in plain torch: gradients, those that round otherwise, and how far outputs are apart."""

    def __init__(self) -> None:
        self.gradients: Tensors = {}
        self.others: Tensors = {}
        self.summands: dict[str, float] = {}
        self.reached: set[str] = set()
        self.outputs = torch.zeros(_ELEMENTS + 1, dtype=torch.double)
        """Squared lengths: engine - plain torch, plain torch, its rounding, engine; and elements."""

    def add(self, forward: Forward, plain: PlainModule) -> None:
        """Add a forward pass."""
        right, gradients = plain.gradients(forward)
        another, others = plain.gradients(forward, rounds_otherwise=True)
        for total, shares in ((self.gradients, gradients), (self.others, others)):
            for name, share in shares.items():
                total[name] = total[name] + share if name in total else share
        for name, share in gradients.items():
            self.summands[name] = self.summands.get(name, 0.0) + float(share.norm())
        for name in {name for backward in forward.backwards for name in backward.gradients}:
            outputs = (forward.outputs[name], right[name], another[name])
            mine, its, moved = (output.double() for output in outputs)
            lengths = ((mine - its).norm(), its.norm(), (moved - its).norm(), mine.norm())
            self.outputs[:_ELEMENTS] += torch.stack(lengths) ** 2
            self.outputs[_ELEMENTS] = max(float(self.outputs[_ELEMENTS]), its.numel())

    @property
    def distance(self) -> Distance:
        """How far the outputs are apart that the loss is computed from; often it is the loss itself."""
        *squares, elements = self.outputs.tolist()
        quantity: Quantity = "output"
        if elements <= distributed.get_world_size():
            quantity = "loss"
        apart, length, rounding, own = map(math.sqrt, squares)
        if not length:
            return Distance(quantity, 1, math.inf if apart else 0.0, 0.0)
        return Distance(quantity, 1, apart / length, rounding / length, ratio=own / length)


def _arrival(forward: Forward, name: str) -> Callable[[torch.Tensor], None]:
    def arrived(gradient: torch.Tensor) -> None:
        forward.arrived[name] = gradient.detach().clone()

    return arrived


def _leaves(loss: torch.Tensor, stops: set[Any]) -> Iterator[torch.Tensor]:
    """Yield the leaves that a loss depends on, without passing some operators."""
    seen, left = set(stops), [loss.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        left += [following for following, _ in node.next_functions]
