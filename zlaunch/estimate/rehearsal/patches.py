"""The few places where the installed packages would look at contents, files or other ranks.

Each patch says why it is there; none changes what is allocated.
"""

import inspect
import math
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from torch._subclasses.fake_tensor import FakeTensor


def apply(fast: bool = True) -> None:
    """Apply all patches; `fast` ones only save time, and a test holds that they change nothing."""
    _let_modules_move()
    _believe_other_ranks()
    _keep_streams_apart()
    _let_masks_be_causal()
    _count_random_states()
    _let_experts_be_of_any_type()
    _train_in_fp16()
    _count_grouped_heads()
    _count_experts()
    _believe_contents()
    if fast:
        _reduce_without_loops()
        _gather_without_loops()
        _leave_ranges_unmarked()
        _dispatch_without_rules()
        _name_no_parameters()
        _read_signatures_once()
        _leave_the_processor_unnamed()


def _train_in_fp16() -> None:
    """The CPU of the job is not the one of the rehearsal; the rules have judged whether it has fp16."""
    get_accelerator().is_fp16_supported = lambda: True


def _let_modules_move() -> None:
    """`Module.to` swaps FakeTensors, which fails as soon as anything refers to a parameter weakly."""
    plain = torch.nn.Module._apply

    def move(self: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        if not any(isinstance(parameter, FakeTensor) for parameter in self.parameters()):
            return plain(self, fn, recurse)
        for child in self.children():
            child._apply(fn)
        with torch.no_grad():
            for parameter in self._parameters.values():
                _move_parameter(parameter, fn)
            for name, buffer in self._buffers.items():
                self._buffers[name] = None if buffer is None else fn(buffer)
        return self

    torch.nn.Module._apply = move


def _move_parameter(parameter: torch.nn.Parameter | None, fn: Any) -> None:
    if parameter is None:
        return
    moved = fn(parameter)
    if moved is not parameter:
        parameter.data = moved
    if parameter.grad is not None:
        parameter.grad.data = fn(parameter.grad)


def _believe_other_ranks() -> None:
    """Ranks compare lengths with each other, and would read numbers that were never computed."""
    from deepspeed.runtime.zero import (
        parameter_offload,
        partition_parameters,
        partitioned_param_coordinator,
        stage3,
        utils,
    )

    for module in (parameter_offload, partition_parameters, partitioned_param_coordinator, stage3, utils):
        if hasattr(module, "assert_ints_same_as_other_ranks"):
            module.assert_ints_same_as_other_ranks = lambda *args, **kwargs: None
    # The package's attribute `torch` is torch itself; its module of that name is found here only.
    import deepspeed.comm.torch  # noqa: F401

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]


def _keep_streams_apart() -> None:
    """A tensor without contents cannot be recorded on a stream."""
    torch.Tensor.record_stream = lambda self, stream: None


def _let_masks_be_causal() -> None:
    """Transformers takes FakeTensors for `torch.export`, and then materialises masks it would not make."""
    from transformers import masking_utils

    masking_utils.find_packed_sequence_indices = lambda position_ids: None


def _count_random_states() -> None:
    """Activation checkpointing keeps the generator's state for each layer, made outside all operators."""
    num_bytes = torch.get_rng_state().numel()
    for module in (torch, torch.random):
        module.get_rng_state = lambda: torch.empty(num_bytes, dtype=torch.uint8)
        module.set_rng_state = lambda state: None


def _let_experts_be_of_any_type() -> None:
    """The kernel that multiplies experts takes fp32 and fp16 too; torch's account of it does not."""
    from torch import _meta_registrations as accounts

    plain = accounts._meta_grouped_mm_common

    def account(mat_a: torch.Tensor, mat_b: torch.Tensor, *, scale_a: Any, offs: Any, **rest: Any) -> Any:
        if scale_a is not None or mat_a.dtype is torch.bfloat16:
            return plain(mat_a, mat_b, scale_a=scale_a, offs=offs, **rest)
        return accounts._create_grouped_mm_output_tensor(mat_a, mat_b, offs, rest["out_dtype"])

    accounts._meta_grouped_mm_common = account


def _count_grouped_heads() -> None:
    """Attention whose keys have fewer heads than its queries is refused when torch 2.11 counts it."""
    from torch.utils import flop_counter

    def with_heads_of(query: int, count: Any) -> Any:
        def counted(*shapes: Any) -> int:
            heads = shapes[query][1]
            return int(count(*((batch, heads, *rest) for batch, _, *rest in shapes)))

        return counted

    flop_counter.sdpa_flop_count = with_heads_of(0, flop_counter.sdpa_flop_count)
    flop_counter.sdpa_backward_flop_count = with_heads_of(1, flop_counter.sdpa_backward_flop_count)


def _count_experts() -> None:
    """No operations are counted by torch for the matrix products of all experts at once."""
    from torch.utils.flop_counter import flop_registry

    def count(first: torch.Tensor, second: torch.Tensor, *_: Any, **__: Any) -> int:
        # Rows, columns or what is summed over is divided among the groups, unless each has its own pair.
        groups = first.shape[0] if first.dim() == second.dim() == 3 else 1
        return int(2 * groups * first.shape[-2] * first.shape[-1] * second.shape[-1])

    flop_registry.setdefault(torch.ops.aten._grouped_mm, count)


def _believe_contents() -> None:
    """Models check that there are as many tokens of an image as its encoder makes, by what tokens say."""

    def check(error: Any, condition: torch.Tensor, message: Any = None) -> None:
        condition._is_all_true()  # it is computed, and not read

    torch._check_tensor_all_with = check


def _reduce_without_loops() -> None:
    """`reduce_scatter_coalesced` slices each gradient for each rank; the memory is the same without."""
    from deepspeed.runtime.zero import stage3

    def reduce(tensors: list[torch.Tensor], group: Any = None) -> list[torch.Tensor]:
        import deepspeed.comm as dist

        world_size, rank = dist.get_world_size(group), dist.get_rank(group)
        sizes = [math.ceil(tensor.numel() / world_size) for tensor in tensors]
        total = sum(sizes)
        if len(tensors) == 1 and tensors[0].numel() % world_size == 0:
            flat = tensors[0].view(-1)
        else:
            padding = [
                tensor.new_empty(size - left)
                for rank_ in range(world_size)
                for tensor, size in zip(tensors, sizes, strict=True)
                if (left := max(0, min(size, tensor.numel() - rank_ * size))) < size
            ]
            flat = torch.empty(total * world_size, dtype=tensors[0].dtype, device=tensors[0].device)
            del padding
        part = flat.narrow(0, rank * total, total)
        outputs, offset = [], 0
        for tensor, size in zip(tensors, sizes, strict=True):
            outputs.append(part.narrow(0, offset, max(0, min(size, tensor.numel() - rank * size))))
            offset += size
        return outputs

    stage3.reduce_scatter_coalesced = reduce


def _gather_without_loops() -> None:
    """Parameters that are gathered together are put together from one slice per rank, in a loop."""
    from deepspeed.runtime.zero import partition_parameters as gathering

    handle = gathering.AllGatherCoalescedHandle
    plain = handle.wait

    def wait(self: Any, handle_dependency: bool = True) -> None:
        if self.complete or self.quantization or self.use_secondary_tensor:
            plain(self, handle_dependency)
            return
        for parameter in self.params:
            whole = self.partitions[0].new_empty(parameter.ds_numel)
            parameter.data = whole.view(parameter.ds_shape).to(parameter.ds_tensor.dtype)
            parameter.ds_status = gathering.ZeroParamStatus.AVAILABLE
        self.complete = True
        if not handle_dependency:
            handle.data_buffer.append(self.partitions)

    handle.wait = wait


def _leave_ranges_unmarked() -> None:
    """No profiler is there to read the ranges that are marked around each function."""
    from deepspeed.utils import nvtx

    nvtx.enable_nvtx = False


def _dispatch_without_rules() -> None:
    """Before each operator torch looks for a rule that somebody registered for this mode; nobody did."""
    from torch._library import simple_registry

    simple_registry.find_torch_dispatch_rule = lambda op, mode: None


def _name_no_parameters() -> None:
    """Stage 3 asks each module for its own parameters, often; their names take most of that time."""
    from deepspeed.runtime.zero import parameter_offload, partitioned_param_coordinator

    plain = partitioned_param_coordinator.iter_params

    def parameters(module: torch.nn.Module, recurse: bool = False) -> list[torch.nn.Parameter]:
        if recurse:
            return list(plain(module, recurse))
        own = module._parameters
        external = module.__dict__.get("_external_params")
        if not own and not external:
            return []
        named = {id(parameter): parameter for parameter in own.values() if parameter is not None}
        return [*named.values(), *(external or {}).values()]

    torch.nn.Module._z3_leaf = False  # what is missing takes a module longest to look for
    for using in (parameter_offload, partitioned_param_coordinator):
        if getattr(using, "iter_params", None) is plain:
            using.iter_params = parameters


def _read_signatures_once() -> None:
    """Each call of a function of autograd reads the signature of its `forward`."""
    from torch.autograd import function

    function.inspect = SimpleNamespace(signature=cache(inspect.signature))


def _leave_the_processor_unnamed() -> None:
    """DeepSpeed's CPU optimizers start programs to learn the vendor, for a warning."""
    import cpuinfo

    cpuinfo.get_cpu_info = dict
