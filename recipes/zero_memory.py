"""The experiment of the ZeRO tutorials: memory and traffic of every phase.

    zlaunch train zero_memory --stage 2 --set optimizer.type=Adam
    deepspeed zero_memory.py --deepspeed_config ds_config.json
    torchrun --nproc_per_node 2 zero_memory.py --deepspeed_config ds_config.json

`zlaunch tour` runs it for all stages. Each rank writes `rank-N.json`: the bytes in its tensors at the end of
each phase and the most in it, its losses, and the traffic of the last step if `comms_logger` is enabled.

ZeRO: stages 0 to 3; CPU and NVMe offload, of a ds_config with an optimizer.

On GPUs: nothing has to change.
"""

import argparse
import gc
import json
import time
import weakref
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Layers(torch.nn.Module):
    """Linear layers with ReLU; like the models of transformers, it returns its loss."""

    def __init__(self, num_layers, width):
        super().__init__()
        pairs = [(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(num_layers)]
        self.layers = torch.nn.Sequential(*(module for pair in pairs for module in pair))

    def forward(self, inputs, targets):
        """Return the mean squared error, in fp32."""
        return torch.nn.functional.mse_loss(self.layers(inputs).float(), targets.float())


class Memory(TorchDispatchMode):
    """Count the bytes in tensors by device, from the operator that makes a tensor until its memory is freed.

    Not counted: what an operator or a collective allocates for itself, caches of allocators, programs.
    """

    def __init__(self):
        super().__init__()
        self.used, self.most, self.sizes, self.phases = Counter(), Counter(), {}, []

    @classmethod
    def _should_skip_dynamo(cls):
        """Do not import torch's compiler, which is not used and cannot be imported within `zero.Init`."""
        return False

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        results = operator(*args, **(kwargs or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.device.type, tensor.untyped_storage())
        return results

    def count(self, device, storage):
        """Count a storage once, and again if it has another size now."""
        key, size = storage._cdata, storage.nbytes()
        if key in self.sizes:
            self.used[device] += size - self.sizes[key]
        else:
            weakref.finalize(storage, self.free, device, key)
            self.used[device] += size
        self.sizes[key] = size
        self.most[device] = max(self.most[device], self.used[device])

    def free(self, device, key):
        """Count no longer what nothing uses."""
        self.used[device] -= self.sizes.pop(key)

    @contextmanager
    def phase(self, name):
        """Write down what is in use at the end; what Python no longer uses is collected first."""
        self.most = self.used.copy()
        yield
        time.sleep(0.05)  # threads of gloo hold buckets a moment longer than the collective takes
        gc.collect()
        gc.freeze()  # later collections skip what survives
        self.phases.append({"name": name, "end": dict(self.used), "peak": dict(self.most)})


def count_calls():
    """Return what the comms logger has counted so far: (operation, bytes) -> calls."""
    counted = deepspeed.comm.comm.comms_logger.comms_dict
    return Counter({(name, size): one[0] for name, sizes in counted.items() for size, one in sizes.items()})


def train(args, memory):
    """Train, and return the losses and the calls of the last step."""
    device = torch.device(get_accelerator().current_device_name())
    stage = json.loads(Path(args.deepspeed_config).read_text())["zero_optimization"]["stage"]
    with memory.phase("model"):
        torch.manual_seed(args.seed)
        with deepspeed.zero.Init(config_dict_or_path=args.deepspeed_config, enabled=stage == 3):
            model = Layers(args.layers, args.width)
    with memory.phase("engine"):
        engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    torch.manual_seed(args.seed + torch.distributed.get_rank())  # different samples on each rank
    size, dtype = (engine.train_micro_batch_size_per_gpu(), args.width), next(engine.parameters()).dtype
    inputs, targets = (torch.randn(size, dtype=dtype, device=device) for _ in range(2))
    losses, calls = [], Counter()
    for step in range(1, args.steps + 1):
        before, again = count_calls(), "" if step == 1 else f"step {step}: "
        with memory.phase(f"{again}forward"):
            loss = engine(inputs, targets)
        with memory.phase(f"{again}backward"):
            engine.backward(loss)
            losses, loss = [*losses, loss.item()], None
        with memory.phase(f"{again}step"):
            engine.step()
        calls = count_calls() - before
    return losses, calls


def main():
    """Train, and write what was measured."""
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    parser.add_argument("--layers", type=int, default=12, help="number of linear layers")
    parser.add_argument("--width", type=int, default=2048, help="inputs and outputs of a layer")
    parser.add_argument("--steps", type=int, default=2, help="number of training steps")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and samples")
    parser.add_argument("--output_dir", type=Path, default=Path(), help="where to write rank-N.json")
    args = parser.parse_args()
    deepspeed.init_distributed()
    with Memory() as memory:
        losses, calls = train(args, memory)
    found = {
        "device": get_accelerator().device_name(),
        "parameters": args.layers * (args.width + 1) * args.width,
        "phases": memory.phases,
        "traffic": [{"op": op, "bytes": size, "calls": count} for (op, size), count in calls.items()],
        "losses": losses,
    }
    args.output_dir.mkdir(parents=True, exist_ok=True)
    (args.output_dir / f"rank-{torch.distributed.get_rank()}.json").write_text(json.dumps(found, indent=2))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
