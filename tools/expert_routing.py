"""Train small mixtures of experts at stage 3 on two ranks that need different experts.

    python -m tools.expert_routing           write docs/experts.md
    python -m tools.expert_routing TYPE…     only print how these types train

Each type with separate experts that the installed transformers can build trains on the CPU for two steps,
without leaf modules and with those that `train` sets. Ranks have one token each, for which they need other
experts. What the model returns is compared with plain torch. DeepSpeed's own list of leaf modules is emptied.
"""

import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "experts.md"
SECONDS = 120
"""Time for the two steps of one model; a hang takes all of it."""
START = 600
RANKS = 2
_FIRST = 17

HEAD = """# Mixtures of experts at stage 3

Stage 3 gathers the parameters of a module when it runs, and all ranks must gather the same ones in the
same order. Where each expert is a module of its own, ranks whose tokens go to different experts do not:
the job hangs, or computes with the wrong weights. DeepSpeed gathers a *leaf module* as a whole. It knows
three classes of them by default, those of Mixtral, Qwen2-MoE and Qwen3-MoE in transformers 4. For all
others, `train` writes `zero_optimization.leaf_module` with DeepSpeed 0.18 or newer, and says so in the
plan; `zlaunch config validate --model DIR` warns.

Transformers 5 keeps all experts of a block in one parameter, with two exceptions, and its models need no
leaf module. In transformers 4, the experts of more types are modules of their own.

One of the exceptions shows nothing: NLLB-MoE of transformers 5.24 sends every token to experts 0 and 1,
whatever its router says (`NllbMoeExperts.forward` takes a mask for numbers of experts). So all ranks need the
same ones.

`python -m tools.expert_routing` writes this page. It trains the types of the installed transformers whose
experts are separate for two steps at stage 3, on two ranks of the CPU with a token each that needs other
experts.
"""


class Trained(NamedTuple):
    """How a type of model trained."""

    kind: str
    how: str
    """`trains`, `hangs`, `wrong loss`, or why it cannot run on a CPU."""


def rank(kinds: Sequence[str], leaves: Sequence[str]) -> None:
    """Train models on this rank; rank 0 prints a line of JSON before and after each."""
    import deepspeed
    import deepspeed.comm.torch
    import torch

    backend: Any = sys.modules["deepspeed.comm.torch"]  # the attribute of that name is torch itself
    backend.build_shm_op = lambda: None  # which would be compiled
    deepspeed.init_distributed("gloo", distributed_port=int(os.environ["MASTER_PORT"]))
    number = int(os.environ["RANK"])
    for kind in kinds:
        if number == 0:
            print(f"\n{json.dumps(['start', kind])}", flush=True)
        try:
            how = _trained(kind, number, leaves)
        except Exception as error:  # noqa: BLE001 - it is reported
            how = f"cannot run: {type(error).__name__}: {str(error).splitlines()[0][:80]}"
        told: list[str | None] = [None] * RANKS
        torch.distributed.all_gather_object(told, how)
        if number == 0:
            print(f"\n{json.dumps(['end', kind, next((one for one in told if one != 'trains'), 'trains')])}")
            sys.stdout.flush()
    os._exit(0)


def _trained(kind: str, number: int, leaves: Sequence[str]) -> str:
    import deepspeed
    import torch

    from tools.record_model_types import blocks_of, small_model

    model: Any = small_model(kind)
    own, other = _tokens(model)
    if own == other and any(is_separate for _, is_separate in blocks_of(model)):
        return "not shown: all tokens need the same experts"
    inputs = _inputs(model, (own, other)[number])
    with torch.no_grad():
        logits = model(**inputs).logits.float()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,
            "leaf_module": {"classes": list(leaves), "names": [], "name_suffixes": []},
        },
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, config=config, optimizer=optimizer)
    is_right = True
    for step in range(2):
        output = engine(**inputs)
        if step == 0:
            is_right = torch.allclose(output.logits.float(), logits, rtol=1e-3, atol=1e-4)
        engine.backward(output.logits.float().pow(2).mean())
        engine.step()
    return "trains" if is_right else "wrong loss"


def _inputs(model: Any, token: int) -> dict[str, Any]:
    import torch

    tokens = torch.tensor([[token]])
    if model.config.is_encoder_decoder:
        return {"input_ids": tokens, "decoder_input_ids": tokens}
    return {"input_ids": tokens}


def _tokens(model: Any) -> tuple[int, int]:
    """Find two tokens for which the model runs different modules; the same one twice if there are none."""
    import torch

    called: list[int] = []
    hooks = [
        module.register_forward_hook(lambda module, *_: called.append(id(module)))
        for module in model.modules()
    ]
    first: list[int] = []
    other = _FIRST
    for token in range(_FIRST, _FIRST + 200):
        called.clear()
        with torch.no_grad():
            model(**_inputs(model, token))
        first = first or [*called]
        if called != first:
            other = token
            break
    for hook in hooks:
        hook.remove()
    return _FIRST, other


def train(kinds: Sequence[str], leaves: Sequence[str] = ()) -> list[Trained]:
    """Train each type on two ranks; start anew after one that hangs."""
    import select

    left, done = list(kinds), []
    while left:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = []
        for number in range(RANKS):
            environ = {
                **os.environ,
                "RANK": str(number),
                "LOCAL_RANK": str(number),
                "WORLD_SIZE": str(RANKS),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "DS_ACCELERATOR": "cpu",
                "OMP_NUM_THREADS": "1",
                "HF_HUB_OFFLINE": "1",
                "GLOO_SOCKET_IFNAME": "lo",
            }
            argv = [sys.executable, "-m", "tools.expert_routing", "--rank", json.dumps([left, list(leaves)])]
            out = subprocess.PIPE if number == 0 else subprocess.DEVNULL
            processes.append(
                subprocess.Popen(
                    argv, env=environ, cwd=ROOT, stdout=out, stderr=subprocess.DEVNULL, text=True
                )
            )
        first = processes[0].stdout
        assert first is not None
        now, seconds = left[0], START + SECONDS
        while left:
            ready, _, _ = select.select([first], [], [], seconds)
            line = first.readline() if ready else ""
            if not line:
                how = "hangs" if not ready else "cannot run: its process ends"
                done.append(Trained(now, how))
                left = left[left.index(now) + 1 :]
                break
            if not line.startswith('["'):
                continue
            what, now, *rest = json.loads(line)
            seconds = SECONDS
            if what == "end":
                done.append(Trained(now, rest[0]))
                left = left[left.index(now) + 1 :]
        for process in processes:
            process.kill()
            process.wait()
    return done


Row = tuple[str, ...]


def page(rows: Sequence[Row], older: Sequence[Row], fused: Sequence[str], release: str) -> str:
    """Write the page: how types of the installed release train, and the types of transformers 4."""
    lines = [HEAD, f"## transformers {release}\n", "| type | block | without leaf module | with it |"]
    lines.append("|---|---|---|---|")
    lines += [f"| {' | '.join(row)} |" for row in rows]
    names = ", ".join(f"`{kind}`" for kind in fused)
    lines += ["\nThe experts of these types are one parameter, or all ranks run all of them:\n"]
    lines += textwrap.wrap(f"{names}.", 110, break_long_words=False, break_on_hyphens=False)
    lines += ["\n## transformers 4\n", "| type | block | leaf module |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in older]
    return "\n".join(lines) + "\n"


def main(kinds: Sequence[str]) -> None:
    """Train all types with experts, and write the page."""
    import transformers

    from zlaunch.config.rules.model_types import DEFAULT_LEAVES
    from zlaunch.job.model_types import FILE

    recorded = json.loads(FILE.read_text())
    major = transformers.__version__.partition(".")[0]
    types = {kind: facts for kind, facts in recorded[major].items() if facts.get("experts")}
    separate = [kind for kind, facts in types.items() if facts.get("separate")]
    rows: list[Row] = []
    for kind in kinds or separate:
        leaves = types[kind].get("separate", ())
        without = dict(train([kind]))[kind]
        with_leaf = dict(train([kind], leaves))[kind] if leaves else "not needed"
        rows.append((kind, f"`{_class_of(types[kind]['experts'][0])}`", without, with_leaf))
        print(*rows[-1], sep=" | ", flush=True)
    if kinds:
        return
    older: list[Row] = []
    for kind, facts in recorded["4"].items():
        for block in facts.get("separate", ()):
            by = "DeepSpeed's default" if block in DEFAULT_LEAVES else "set by `train`"
            older.append((kind, f"`{_class_of(block)}`", by))
    fused = [kind for kind in types if kind not in separate]
    PAGE.write_text(page(rows, older, fused, transformers.__version__), "utf-8")


def _class_of(path: str) -> str:
    return path.rpartition(".")[2]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(*json.loads(sys.argv[2]))
    else:
        main(sys.argv[1:])
