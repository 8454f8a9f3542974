"""Patches where the installed packages would read tensor data, files or other ranks.

Each function says why the patch is needed. None changes what is allocated.
"""

import contextlib
import inspect
import math
import sys
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor

from zlaunch.estimate.rehearsal.device import NAME
from zlaunch.estimate.rehearsal.known_data import is_known_to_fail
from zlaunch.job.trainer_releases import is_before

Transform = Callable[[torch.Tensor], torch.Tensor]


def apply(fast: bool = True) -> None:
    """Apply all patches; those with `fast` only save time, and a test checks that they change nothing."""
    _replace_functions()
    _move_modules_in_place()
    _trust_other_ranks()
    _group_ranks_that_share_layers()
    _know_norms()
    _log_rng_states()
    _allow_experts_of_any_dtype()
    _count_flops_of_grouped_attention()
    _count_flops_of_experts()
    _skip_data_checks()
    if fast:
        _reduce_without_loops()
        _gather_without_loops()
        _iterate_parameters_without_names()
        _replace_slow_functions()


def _replace_functions() -> None:
    """Replace functions that need a fact or a tensor that is not here, by a constant."""
    # The job may run on another CPU than the rehearsal; config rules have checked it for fp16.
    get_accelerator().is_fp16_supported = lambda: True
    torch.Tensor.record_stream = _record_stream
    # Transformers takes fake tensors for a `torch.export`, and would then materialize causal masks.
    with contextlib.suppress(ImportError):  # before transformers 4.53
        from transformers import masking_utils

        masking_utils.find_packed_sequence_indices = lambda position_ids: None


def _record_stream(self: torch.Tensor, stream: Any) -> None:
    """A fake tensor cannot be recorded on a stream; only the allocator knows."""
    if isinstance(self, FakeTensor) and self._fake_device.type == NAME:
        self.fake_mode.record_stream(self, stream.number)


def _replace_slow_functions() -> None:
    """Replace functions whose results nothing here depends on."""
    import cpuinfo
    from deepspeed.utils import nvtx
    from torch._library import simple_registry
    from torch.autograd import function

    # NVTX ranges are only for profilers.
    nvtx.enable_nvtx = False
    # DeepSpeed's CPU optimizers run programs to find the CPU's vendor, for a warning.
    cpuinfo.get_cpu_info = dict
    # Torch looks up a registered dispatch rule for each operator; there are none for this mode.
    simple_registry.find_torch_dispatch_rule = lambda op, mode: None
    # `autograd.Function.apply` reads the signature of `forward` in each call.
    function.inspect = SimpleNamespace(signature=cache(inspect.signature))


def _move_modules_in_place() -> None:
    """`Module.to` swaps fake parameters, which fails if there is a weak reference to one."""
    original = torch.nn.Module._apply

    def move(self: torch.nn.Module, fn: Transform, recurse: bool = True) -> torch.nn.Module:
        if not any(isinstance(parameter, FakeTensor) for parameter in self.parameters()):
            return original(self, fn, recurse)
        for child in self.children():
            child._apply(fn)
        with torch.no_grad():
            for parameter in self._parameters.values():
                _move_parameter(parameter, fn)
            for name, buffer in self._buffers.items():
                if buffer is not None:
                    self._buffers[name] = fn(buffer)
        return self

    torch.nn.Module._apply = move


def _move_parameter(parameter: torch.nn.Parameter | None, fn: Transform) -> None:
    if parameter is None:
        return
    moved = fn(parameter)
    if moved is not parameter:
        parameter.data = moved
    if parameter.grad is not None:
        parameter.grad.data = fn(parameter.grad)


def _trust_other_ranks() -> None:
    """Ranks compare integers with each other, which needs data."""
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
    # The attribute `deepspeed.comm.torch` is torch itself; only sys.modules has the module of that name.
    import deepspeed.comm.torch  # noqa: F401

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]


def _group_ranks_that_share_layers() -> None:
    """A mesh of torch needs a real device; AutoTP compares the batches of ranks, which needs data."""
    from deepspeed import comm
    from deepspeed.runtime.engine import DeepSpeedEngine

    for module in (comm, comm.comm):
        module.initialize_mesh_device = _Mesh
    configure = getattr(DeepSpeedEngine, "_configure_tensor_parallel_states", None)
    if configure is None:  # before DeepSpeed 0.16.4
        return

    def configure_unchecked(self: Any, model: torch.nn.Module) -> None:
        configure(self, model)
        self.first_dataloader_check.remove()

    DeepSpeedEngine._configure_tensor_parallel_states = configure_unchecked


class _Mesh:
    """The process groups of a mesh with two dimensions."""

    def __init__(self, shape: tuple[int, int], names: tuple[str, str]) -> None:
        """Number the ranks row by row."""
        rows, columns = shape
        rank = torch.distributed.get_rank()
        self._groups: dict[str, torch.distributed.ProcessGroup] = {}
        for name, sizes in zip(names, ((columns, rows), (rows, columns)), strict=True):
            for number in range(sizes[0]):
                ranks = range(number, rows * columns, columns)
                if name == names[1]:
                    ranks = range(number * columns, (number + 1) * columns)
                group = torch.distributed.new_group(list(ranks))
                if rank in ranks:
                    self._groups[name] = group

    def get_group(self, mesh_dim: str) -> torch.distributed.ProcessGroup:
        """Return this rank's group along a dimension."""
        return self._groups[mesh_dim]


def _know_norms() -> None:
    """Before 0.19, DeepSpeed asserts at stage 0 that the norm of bf16 gradients is positive."""
    if not is_before(deepspeed.__version__, "0.19"):
        return
    from deepspeed.runtime import bf16_optimizer

    original = bf16_optimizer.get_global_norm_of_tensors

    def norm(*args: Any, **kwargs: Any) -> float:
        original(*args, **kwargs)
        return 1.0

    bf16_optimizer.get_global_norm_of_tensors = norm


def _log_rng_states() -> None:
    """Activation checkpointing saves the RNG state for each layer, in memory that no operator allocates."""
    num_bytes = torch.get_rng_state().numel()
    for module in (torch, torch.random):
        module.get_rng_state = lambda: torch.empty(num_bytes, dtype=torch.uint8)
        module.set_rng_state = lambda state: None


def _allow_experts_of_any_dtype() -> None:
    """The kernel of `grouped_mm` takes fp32 and fp16 too, but torch's meta function only bf16."""
    from torch import _meta_registrations as meta

    original = meta._meta_grouped_mm_common

    def grouped_mm(mat_a: torch.Tensor, mat_b: torch.Tensor, **options: Any) -> torch.Tensor:
        if options["scale_a"] is not None or mat_a.dtype is torch.bfloat16:
            return original(mat_a, mat_b, **options)
        return meta._create_grouped_mm_output_tensor(mat_a, mat_b, options["offs"], options["out_dtype"])

    meta._meta_grouped_mm_common = grouped_mm


def _count_flops_of_grouped_attention() -> None:
    """Torch 2.11 rejects attention with fewer key heads than query heads when it counts operations."""
    from torch.utils import flop_counter

    def with_heads_of(query: int, count: Callable[..., int]) -> Callable[..., int]:
        def repeat_heads(*shapes: tuple[int, ...]) -> int:
            heads = shapes[query][1]
            return int(count(*((batch, heads, *rest) for batch, _, *rest in shapes)))

        return repeat_heads

    flop_counter.sdpa_flop_count = with_heads_of(0, flop_counter.sdpa_flop_count)
    flop_counter.sdpa_backward_flop_count = with_heads_of(1, flop_counter.sdpa_backward_flop_count)


def _count_flops_of_experts() -> None:
    """Torch does not count the operations of `grouped_mm`."""
    from torch.utils.flop_counter import flop_registry

    def count(first: torch.Tensor, second: torch.Tensor, *_: object, **__: object) -> int:
        groups = 1  # they divide one of the dimensions
        if first.dim() == second.dim() == 3:  # each group is a product
            groups = first.shape[0]
        return int(2 * groups * first.shape[-2] * first.shape[-1] * second.shape[-1])

    flop_registry.setdefault(torch.ops.aten._grouped_mm, count)


def _skip_data_checks() -> None:
    """Models check the number of image tokens, which needs data; what is known is checked."""

    def check(error: type[Exception], condition: torch.Tensor, message: object = None) -> None:
        condition._is_all_true()  # computes without reading the result
        if is_known_to_fail(condition):
            raise error(message() if callable(message) else message)

    torch._check_tensor_all_with = check


def _reduce_without_loops() -> None:
    """`reduce_scatter_coalesced` loops over ranks and gradients; this allocates the same without a loop."""
    from deepspeed.runtime.zero import stage3

    def reduce(
        tensors: list[torch.Tensor], group: torch.distributed.ProcessGroup | None = None
    ) -> list[torch.Tensor]:
        import deepspeed.comm as dist

        world_size, rank = dist.get_world_size(group), dist.get_rank(group)
        sizes = [math.ceil(tensor.numel() / world_size) for tensor in tensors]
        total = sum(sizes)
        nbytes = total * world_size * tensors[0].element_size()
        mode: Any = active_fake_mode()  # a gradient itself may be a real tensor, which the program has made
        mode.traffic.add("reduce-scatter", nbytes, group)
        if len(tensors) == 1 and tensors[0].numel() % world_size == 0:
            flat = tensors[0].view(-1)
        else:
            padding = []
            for number in range(world_size):
                for tensor, size in zip(tensors, sizes, strict=True):
                    numel = max(0, min(size, tensor.numel() - number * size))
                    if numel < size:
                        padding.append(tensor.new_empty(size - numel))
            flat = torch.empty(total * world_size, dtype=tensors[0].dtype, device=tensors[0].device)
            del padding
        partition = flat.narrow(0, rank * total, total)
        outputs, offset = [], 0
        for tensor, size in zip(tensors, sizes, strict=True):
            outputs.append(partition.narrow(0, offset, max(0, min(size, tensor.numel() - rank * size))))
            offset += size
        return outputs

    stage3.reduce_scatter_coalesced = reduce


def _gather_without_loops() -> None:
    """DeepSpeed copies gathered parameters from one slice per rank, in a loop."""
    from deepspeed.runtime.zero import partition_parameters

    handle = partition_parameters.AllGatherCoalescedHandle
    original = handle.wait

    def wait(self: partition_parameters.AllGatherCoalescedHandle, *args: bool, **kwargs: bool) -> None:
        if self.complete or self.quantization or self.use_secondary_tensor:
            original(self, *args, **kwargs)
            return
        for parameter in self.params:
            whole = self.partitions[0].new_empty(parameter.ds_numel)
            parameter.data = whole.view(parameter.ds_shape).to(parameter.ds_tensor.dtype)
            parameter.ds_status = partition_parameters.ZeroParamStatus.AVAILABLE
        self.complete = True
        if False in (*args, *kwargs.values()):  # `handle_dependency`, which older releases do not have
            handle.data_buffer.append(self.partitions)

    handle.wait = wait


def _iterate_parameters_without_names() -> None:
    """Stage 3 often iterates over the parameters of a module; most of that time goes into their names."""
    from deepspeed.runtime.zero import parameter_offload, partitioned_param_coordinator

    original = partitioned_param_coordinator.iter_params

    def parameters(module: torch.nn.Module, recurse: bool = False) -> list[torch.nn.Parameter]:
        if recurse:
            return list(original(module, recurse))
        registered = module._parameters
        external = module.__dict__.get("_external_params")
        if not registered and not external:
            return []
        unique = {id(parameter): parameter for parameter in registered.values() if parameter is not None}
        return [*unique.values(), *(external or {}).values()]

    torch.nn.Module._z3_leaf = False  # a missing attribute is slow to look up on a module
    for user in (parameter_offload, partitioned_param_coordinator):
        if getattr(user, "iter_params", None) is original:
            user.iter_params = parameters
