"""Give malformed inputs to every verb of zlaunch, and look for tracebacks.

    python -m bench.cli_fuzz [--inputs N] [--seed N] [--workers N] [--only N…] [--keep DIR]

Each input is a folder of mutated files and a command line. A warmed interpreter forks for each. An input
fails if zlaunch ends with a traceback, by a signal, with a foreign exit status, or not within 20 s of CPU; a
verb that reads checkpoints also if it changes one, or leaves anything of what it could not write.
Training is only planned (`--dry-run`), `ssh` is a program that fails, and the hub is offline.
"""

import argparse
import base64
import collections
import concurrent.futures
import contextlib
import copy
import io
import json
import math
import os
import pickle
import random
import re
import shlex
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from tests.running import CONFIGS, ROOT, may_fork, server, start
from zlaunch.config.accelerate.fields import KEYS as ACCELERATE_TOP
from zlaunch.config.accelerate.fields import SECTION_KEYS
from zlaunch.dsconfig.json_schema import catalog
from zlaunch.dsconfig.keys.search import older_keys
from zlaunch.errors import ExitStatus

KEYS = tuple(
    tuple(key.split(".")) for key in sorted({*catalog().keys, *catalog().other_names, *older_keys()})
)
ACCELERATE_KEYS = sorted({*ACCELERATE_TOP, *SECTION_KEYS})
MODEL_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "head_dim",
    "quantization_config",
)

HOST = socket.gethostname().encode()

CPU_SECONDS, WALL_SECONDS = 20.0, 120.0
"""Limits of an input. Other work on the machine does not count towards the first; a conversion needs 5 s."""
LATE = -1000
RIGHT = {*map(int, ExitStatus), 128 + 13}
"""Exit statuses of zlaunch itself, and that of a closed pipe."""

OLD_RUNS = ROOT / "tests" / "rundir" / "old_runs"
MODELS = ROOT / "tests" / "estimate" / "memory" / "configs"
ESCAPE = "../../../escaped"
"""A name of a parameter by which DeepSpeed's conversion writes outside of the directory that it is given."""
NO_PROCESS = (1 << 22) + 7
"""A process id that Linux does not give."""

ODD: Sequence[Any] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
    1 << 63,
    10**400,
    "",
    " ",
    "auto",
    "true",
    "1e5",
    "none",
    "cpu",
    "@long",
    "@digits",
    "\ud800",
    "\udcff",
    "a\0b",
    "\x1b[31mred\x1b[0m",
    "é漢字🙂",
    "../..",
    "/dev/null",
    "a\nb",
    "`$(x)`'\"",
    "{",
    "%s{0}{x}",
    [],
    {},
    [[]],
    [None, 1, "x"],
    {"": ""},
    {"a": {"b": {"c": 1}}},
    {"\ud800": 1, "a.b": 2},
)
WORDS = (
    "",
    "-",
    "--",
    "-x",
    "@",
    "=",
    "0",
    "-1",
    "1e9",
    "auto",
    "nosuch",
    "\udcff",
    "é🙂",
    "a" * 5000,
    "1" + "0" * 400,
    "\x1b[2J",
)
"""Odd arguments; the system passes on neither NUL nor half of a pair of surrogates."""
# fmt: off
TOKENS = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b'"', b"{", b"}", b"[" * 3000, b"\r\n", b"\t", b"#",
    b"//", b",", b": ", b"\\u", b"\\ud800", b"NaN", b"1e999", b"-", b"&a", b"*a", b"!!python/object:x",
    b"\x85",
)
ODD_VARIABLES = (
    "COLUMNS", "CUDA_VISIBLE_DEVICES", "ZLAUNCH_CACHE", "WORLD_SIZE", "MASTER_PORT", "TORCH_EXTENSIONS_DIR",
    "XDG_CACHE_HOME", "PWD", "TERM",
)
HOST_LINES = (
    "w0", "slots=2", "w0 slots=", "w0 slots=-1", "w0 slots=" + "9" * 5000, "-oProxyCommand=x slots=1",
    "w\0 slots=1", "é slots=\uff12", "w0 slots=1 slots=2", "u@h:22 slots=1", "w" * 300 + " slots=1",
)
# fmt: on

SCRIPTS = (
    """
from transformers import HfArgumentParser, Trainer, TrainingArguments
args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(args=args).train()
""",
    """
import argparse, deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
deepspeed.add_config_arguments(parser)
args = parser.parse_args()
engine, *_ = deepspeed.initialize(args=args, model=net, config={"train_batch_size": 8})
""",
    """
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, DummyOptim
plugin = DeepSpeedPlugin(zero_stage=3, gradient_accumulation_steps=2)
Accelerator(deepspeed_plugin=plugin)
""",
    """
import os
if __name__ == "__main__":
    print(os.environ.get("ZLAUNCH_DS_CONFIG"))
""",
)
LOADS = """
import os, deepspeed
engine, *_ = deepspeed.initialize(model=net, config=os.environ["ZLAUNCH_DS_CONFIG"])
engine.load_checkpoint(os.environ["ZLAUNCH_RESUME"])
"""
"""A script that resumes from a checkpoint."""
TRAINER_ARGS = (
    ("--bf16",),
    ("--fp16", "--bf16"),
    ("--learning_rate", "1e-4"),
    ("--per_device_train_batch_size", "4"),
    ("--gradient_accumulation_steps", "2"),
    ("--max_steps", "5"),
    ("--model_name_or_path", "model"),
    ("--output_dir", "out"),
    ("--lr_scheduler_type", "cosine"),
    ("--optim", "adamw_torch"),
    ("--deepspeed", "ds.json"),
    ("--parallelism_config", "{}"),
    ("--tensor_parallel_size", "2"),
)
COMMANDS_OF_OTHERS = (
    "deepspeed --num_gpus 2 --include w0:0,1 train.py --deepspeed ds.json --lr 1",
    "torchrun --nproc_per_node 2 --nnodes 1 -m pack.train --x y",
    "python -m torch.distributed.run --standalone train.py",
    "accelerate launch --config_file accelerate.yaml --num_processes 8 train.py --bf16",
    "CUDA_VISIBLE_DEVICES=0,1 nohup env A=1 srun -n 2 deepspeed train.py",
    "accelerate.yaml -- --lr 1",
    "llamafactory-cli train train.yaml",
)


@dataclass(frozen=True)
class Input:
    """One command, and the files it is given."""

    number: int
    verb: str
    seed: int


@dataclass(frozen=True)
class Result:
    """What came of an input."""

    input: Input
    argv: tuple[str, ...]
    status: int
    seconds: float
    wrong: str
    err: str


class Maker:
    """Makes the files and words of one input."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Make everything below a folder."""
        self.folder = folder
        self.chance = random.Random(seed)

    def often(self, share: float = 0.5) -> bool:
        """Decide by chance."""
        return self.chance.random() < share

    def odd(self) -> Any:
        """Choose an odd JSON value."""
        return copy.deepcopy(self.chance.choice(ODD))

    def mutate(self, value: Any, times: int | None = None) -> Any:
        """Change a JSON value at a few random places."""
        for _ in range(self.chance.choice((0, 1, 1, 1, 2, 3, 6)) if times is None else times):
            value = self._changed(value)
        return value

    def _changed(self, value: Any) -> Any:
        children: Sequence[Any] = ()
        if isinstance(value, dict):
            children = list(value)
        elif isinstance(value, list):
            children = range(len(value))
        if not children or self.often(0.15):
            return self.odd()
        key = self.chance.choice(children)
        changed: Any = dict(value) if isinstance(value, dict) else list(value)
        if isinstance(value[key], dict | list) and self.often(0.7):
            changed[key] = self._changed(value[key])
            return changed
        match self.chance.randrange(5):
            case 0:
                changed.pop(key)
            case 1 if isinstance(changed, dict):
                changed[self._name(str(key))] = changed.pop(key)
            case 2 if isinstance(changed, dict):
                changed[self._name(str(key))] = self.odd()
            case 3:
                changed[key] = [changed[key]] if self.often() else {str(key): changed[key]}
            case _:
                changed[key] = self.odd()
        return changed

    def _name(self, name: str) -> str:
        at = self.chance.randrange(len(name) + 1)
        return self.chance.choice(
            (
                name[:at] + name[at + 1 :],
                name[:at] + "_" + name[at:],
                name.upper(),
                "",
                "a.b",
                "\ud800",
                "x\n",
                ESCAPE,
                name + "\0",
            )
        )

    def text(self, value: Any) -> bytes:
        """Write JSON, sometimes broken."""
        text = json.dumps(value, indent=self.chance.choice((None, 2)))
        text = text.replace('"@long"', f'"{"x" * 70_000}"').replace('"@digits"', "7" * 5000)
        return self.broken(text.encode())

    def broken(self, data: bytes, share: float = 0.3) -> bytes:
        """Change bytes at random."""
        if not self.often(share):
            return data
        at, to = (self.chance.randrange(len(data) + 1) for _ in range(2))
        empty = (b"", b"\n", b"\0" * 100, b"null", self.chance.randbytes(300))
        return self.chance.choice(
            (
                data[:at],
                data[:at] + data[max(at, to) :],
                data.decode("utf-8", "replace").encode("utf-16"),
                data[:at] + self.chance.randbytes(5) + data[at:],
                self.chance.choice(empty),
                *(data[:at] + self.chance.choice(TOKENS) + data[at:] for _ in range(3)),
            )
        )

    def write(self, name: str, data: bytes) -> str:
        """Write a file, or sometimes something odd in its place; return its name."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() or path.is_symlink():
            return name
        match self.chance.randrange(100):
            case 0:
                path.mkdir()
            case 1:
                path.symlink_to(path)
            case 2:
                path.symlink_to(self.folder / "nosuch")
            case 3:
                path.symlink_to("/proc/self/mem")  # reading fails, for root too
            case 4:
                path.write_bytes(data)
                path.chmod(0)
            case 5:
                return self.word()
            case _:
                path.write_bytes(data)
        return name

    def word(self) -> str:
        """Choose an odd argument."""
        return self.chance.choice((*WORDS, ".", "a" * 300, "ds.json/x", "/dev/null", "/proc/self/mem", "//"))

    def value(self, *usual: str) -> str:
        """Choose a usual value of an option, or an odd one."""
        return self.word() if self.often(0.08) else self.chance.choice(usual)

    def ds_config(self, name: str = "ds.json") -> str:
        """Write a ds_config."""
        value: Any = json.loads(self.chance.choice(sorted(CONFIGS.glob("*.json"))).read_text())
        for key in self.chance.sample(KEYS, self.chance.choice((0, 0, 1, 2, 5, 12))):
            place, (*sections, last) = value, key
            for section in sections:
                place = place.setdefault(section, {}) if isinstance(place, dict) else place
            if isinstance(place, dict):
                place[last] = self.odd()
        return self.write(name, self.text(self.mutate(value)))

    def accelerate(self) -> str:
        """Write an accelerate config."""
        lines = ["compute_environment: LOCAL_MACHINE", "distributed_type: DEEPSPEED", "deepspeed_config:"]
        for name in self.chance.sample(ACCELERATE_KEYS, self.chance.randrange(8)):
            indent = "  " if self.often(0.7) else ""
            lines.append(f"{indent}{name}: {self._scalar()}")
        lines += ["num_processes: 8", f"mixed_precision: {self._scalar()}"]
        return self.write("accelerate.yaml", self.broken("\n".join(lines).encode("utf-8", "replace")))

    def _scalar(self) -> str:
        odd = self.chance.choice(
            (*ODD, 2, "bf16", "ds.json", [1], "{a: 1", "|", ">\n    x", "*a", "&a 1", "!x y")
        )
        return odd if isinstance(odd, str) else json.dumps(odd)

    def config(self, name: str = "ds.json") -> str:
        """Choose a ds_config in one of its forms."""
        match self.chance.randrange(12):
            case 0:
                return self.accelerate()
            case 1:
                return base64.b64encode(self.text({"train_batch_size": self.odd()})).decode()[:50_000]
            case 2:
                return self.word()
        return self.ds_config(name)

    def hostfile(self) -> str:
        """Write a hostfile."""
        lines = ["localhost slots=2", "w0 slots=4", "w1 slots=4", "# end"]
        for _ in range(self.chance.randrange(3)):
            lines[self.chance.randrange(3)] = self.chance.choice(HOST_LINES)
        return self.write("hosts", self.broken("\n".join(lines).encode()))

    def model(self, *, small: float = 0.05) -> str:
        """Write a model's config.json; few models are small enough for a rehearsal, which takes seconds."""
        if self.often(0.05):
            return self.word()
        value: Any = json.loads(self.chance.choice(sorted(MODELS.glob("*.json"))).read_text())
        value = self.mutate(value)
        if isinstance(value, dict):
            layers = 1 if self.often(small) else 100_000
            value |= {
                name: layers for name in ("num_hidden_layers", "n_layer", "num_layers") if name in value
            }
            if self.often(0.3):
                value |= {name: self.odd() for name in self.chance.sample(MODEL_KEYS, 2)}
        self.write("model/config.json", self.text(value))
        return "model"

    def script(self, *, may_run: bool = False) -> str:
        """Write a script. It is only read, except by a rerun, which may ask it for its arguments."""
        text = SCRIPTS[-1] if may_run else self.chance.choice(SCRIPTS)
        return self.write("train.py", self.broken(text.encode(), 0.2))

    def trainer_args(self) -> list[str]:
        """Choose arguments for the script."""
        words = list(chain.from_iterable(self.chance.sample(TRAINER_ARGS, self.chance.randrange(4))))
        if words and self.often(0.3):
            words[self.chance.randrange(len(words))] = self.word()
        return [one for one in words if one != "--help"]

    def options(self, table: Mapping[str, Sequence[str]], most: int = 4) -> list[str]:
        """Choose options; one without values is a flag."""
        words = []
        for name in self.chance.sample(sorted(table), self.chance.randrange(min(most, len(table)) + 1)):
            words += [name, self.value(*table[name])] if table[name] else [name]
        if self.often(0.04):
            words.append(self.word())
        return words

    def run(self, may_stop: bool = False) -> str:
        """Write run directories with broken records; return the name of one."""
        names = ["failed", "finished", "lost", "stalled"]
        for name in self.chance.sample(names, self.chance.choice((1, 1, 2))):
            root = self.folder / "runs" / name
            shutil.copytree(OLD_RUNS / name, root)
            files = sorted(one for one in root.rglob("*") if one.is_file())
            for file in files:
                file.write_bytes(
                    file.read_bytes().replace(b"/folder/runs/forecast", bytes(root)).replace(b"HOST", HOST)
                )
            for file in {*self.chance.sample(files, self.chance.randrange(4)), root / "job.json"}:
                self._break(file, is_job=file.name == "job.json", may_stop=may_stop)
            names = [name]
        if self.often(0.1):
            self.write("runs/" + self.chance.choice(("x", "é", ".hidden", "a b")), b"no run")
        return self.value(*names, *names, "latest", f"runs/{names[0]}", names[0][:2])

    def checkpoint(self, sound: float = 0.0, more: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Write a checkpoint of two ranks, with more in its model; return its directory.

        `sound` is how often a file is not changed at random.
        """
        states: dict[str, Any]
        if not more and self.often(0.3):
            states = {f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt": MODEL_STATES_3 for rank in range(2)}
            optim = OPTIM_STATES_3
        else:
            module = {**MODEL_STATES["module"], **more}
            states, optim = {"mp_rank_00_model_states.pt": {**MODEL_STATES, "module": module}}, OPTIM_STATES
        states |= {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt": optim for rank in range(2)}
        self._states("out/global_step3", states, sound)
        self.write("out/latest", self.broken(b"global_step3", 0.3 * (1 - sound)))
        usual = ["out", "out", "out/global_step3", "."]
        if self.often(0.15):
            self._states("out/global_step3_universal", UNIVERSAL_STATES, sound)
            self.write("out/latest_universal", self.broken(b"global_step3_universal", 0.1))
            usual.append("out/global_step3_universal")
        if self.often(0.3):
            self.write("out/trainer_state.json", self.text(self.mutate({"global_step": 3, "max_steps": 9})))
        if self.often(0.1):
            self.write("out/global_step3/.metadata", self.broken(pickle.dumps(self.mutate(_SETTINGS)), 0.5))
        folder = self.value(*usual)
        return "." if folder == "//" else folder  # there may be checkpoints, which `prune` would delete

    def _states(self, folder: str, states: Mapping[str, Any], sound: float) -> None:
        """Write files of `torch.save`, of which a few are missing or damaged."""
        for name, value in states.items():
            times, share = (0, 0.0) if self.often(sound) else (None, 0.1)
            if self.often(0.95 + 0.05 * sound):
                self.write(f"{folder}/{name}", self.broken(torch_file(self.mutate(value, times)), share))

    def _break(self, file: Path, is_job: bool, may_stop: bool) -> None:
        if file.suffix == ".json":
            value = self.mutate(json.loads(file.read_text()))
            if is_job and isinstance(value, dict):  # `stop` would end the process
                value |= {"zlaunch_pid": self.chance.choice((NO_PROCESS, 0, -1, "1", None, 0.5, 1 << 70))}
                value |= {"working_directory": str(self.folder)} if self.often(0.9) else {}
            data = json.dumps(value).encode() if is_job and may_stop else self.text(value)
        else:
            data = self.broken(file.read_bytes(), 1)
        file.unlink()
        self.write(str(file.relative_to(self.folder)), data)


def torch_file(value: Any) -> bytes:
    """Write a file as `torch.save` does; `{"@tensor": [2]}` has that shape, `@object` names a class."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + _pickled(value) + b".")
        archive.writestr("archive/data/0", bytes(400))
        archive.writestr("archive/version", b"3\n")
    return packed.getvalue()


def _safetensors(header: Any) -> bytes:
    """Write a file of weights with a header."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(64)


def _pickled(value: Any) -> bytes:
    """Write the opcodes of a value."""
    if isinstance(value, list):
        return b"](" + b"".join(map(_pickled, value)) + b"e"
    if not isinstance(value, dict):
        return pickle.dumps(value, 2)[2:-1]
    if isinstance(named := value.get("@object"), str) and re.fullmatch(r"[\w.]+ \w+", named):
        state = {key: one for key, one in value.items() if key != "@object"}
        return f"c{named.replace(' ', chr(10))}\n)".encode() + b"\x81" + _pickled(state) + b"b"
    if "@tensor" not in value:
        return b"}(" + b"".join(map(_pickled, chain.from_iterable(value.items()))) + b"u"
    shape = tuple(value["@tensor"]) if isinstance(value["@tensor"], list) else value["@tensor"]
    kind = b"(" + _pickled("storage") + b"ctorch\nFloatStorage\n"
    storage = kind + _pickled("0") + _pickled("cpu") + _pickled(100) + b"tQ"
    layout = b"".join(_pickled(one) for one in (0, shape, (1,)))
    nothing = b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + layout + nothing + b"tR"


_SETTINGS, _SETTINGS_3 = ({"train_batch_size": 2, "zero_optimization": {"stage": one}} for one in (2, 3))
_ADAM = {
    "state": {0: {"step": 3, "exp_avg": {"@tensor": [2]}, "exp_avg_sq": {"@tensor": [2]}}},
    "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999)}],
}
_MOMENTS = ("fp32", "exp_avg", "exp_avg_sq")
_FRAGMENT = {"@object": "deepspeed.utils.tensor_fragment fragment_address", "numel": 2, "start": 0}
MODEL_STATES: dict[str, Any] = {
    "module": {"first.weight": {"@tensor": [4]}, "first.bias": {"@tensor": [2]}},
    "param_shapes": [{"first.weight": (4,)}],
    "buffer_names": ["first.bias"],
    "shared_params": {},
    "global_steps": 3,
    "dp_world_size": 2,
    "mp_world_size": 1,
    "ds_version": "0.19.8",
    "ds_config": _SETTINGS,
}
ADAPTER_STATES = {
    "base_model.model.last.base_layer.weight": {"@tensor": [4]},
    "base_model.model.last.lora_A.default.weight": {"@tensor": [2]},
    "base_model.model.last.lora_B.default.weight": {"@tensor": [2]},
}
OPTIM_STATES = {
    "optimizer_state_dict": {
        "zero_stage": 2,
        "partition_count": [2],
        "loss_scaler": None,
        "single_partition_of_fp32_groups": [{"@tensor": [2]}],
        "group_paddings": [0],
        "param_slice_mappings": [{"first.weight": _FRAGMENT}],
        "base_optimizer_state": _ADAM,
    },
    "ds_version": "0.19.8",
    "ds_config": _SETTINGS,
}
"""What DeepSpeed writes at stage 2."""

MODEL_STATES_3 = {
    **MODEL_STATES,
    "module": {"first.weight": {"@tensor": [0]}, "first.bias": {"@tensor": [2]}},
    "ds_config": _SETTINGS_3,
}
OPTIM_STATES_3 = {
    "optimizer_state_dict": {
        "zero_stage": 3,
        "partition_count": 2,
        "loss_scaler": None,
        "fp32_flat_groups": [{"@tensor": [2]}],
        "optimizer_state_dict": _ADAM,
    },
    "ds_version": "0.19.8",
    "ds_config": _SETTINGS_3,
}
_STEP_3 = {"optimizer_state_dict": {"state": {0: {"step": 3}}, "param_groups": [{"lr": 0.1, "params": []}]}}
UNIVERSAL_STATES: dict[str, Any] = {
    **{f"zero/first.weight/{name}.pt": {"param": {"@tensor": [4]}, "cat_dim": 0} for name in _MOMENTS},
    "zero/first.weight/step.pt": {"@tensor": [1]},
    "zero/first.bias/fp32.pt": {"param": {"@tensor": [2]}},
    "zero/optimizer_state.pt": {"param_groups": _ADAM["param_groups"], **_STEP_3},
    "mp_rank_00_model_states.pt": MODEL_STATES,
    "zero_pp_rank_0_mp_rank_00_model_states.pt": MODEL_STATES,
}
"""What a conversion of it has written."""

_ADAPTER = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "alpha_pattern": {"last": 8}, "bias": "none"}
_HEADER = {"last.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}

_ESTIMATE = {
    "--gpus": ("1", "8", "1024"),
    "--nodes": ("1", "2", "999"),
    "--hostfile": ("hosts",),
    "--offload": ("none", "cpu", "nvme", "optimizer:cpu,param:nvme"),
    "--nvme": (".", "nvme"),
    "--micro-batch": ("1", "64"),
    "--seq-len": ("1", "2048", "134217728"),
    "--grad-accum": ("1", "7"),
    "--precision": ("bf16", "fp16", "fp32"),
    "--optimizer": ("adam", "lion", "adafactor", "muon", "adamw_torch"),
    "--activation-checkpointing": (),
    "--lora": ("16", "8:q_proj", "99999999"),
    "--attention": ("sdpa", "eager"),
    "--ds-config": ("ds.json",),
    "--set": (
        "zero_optimization.stage=3",
        "tensor_parallel.autotp_size=2",
        "a=1",
        "bf16.enabled=auto",
        "optimizer=[]",
    ),
    "--json": (),
}
_CONFIG = {
    "--world-size": ("1", "8", "99999999999"),
    "--model": ("model", "model/config.json"),
    "--for": ("trainer", "accelerate", "deepspeed"),
    "--deepspeed": ("0.14", "0.16", "0.19", "9.9"),
    "--strict": (),
    "--fix": (),
    "--diff": (),
    "--format": ("text", "json", "github", "sarif"),
}
_RUNS = {"--json": (), "--runs-dir": ("runs", "runs", "runs", "ds.json")}
_TRAIN = {
    "--stage": ("0", "1", "2", "3"),
    "--offload": ("none", "cpu", "nvme", "optimizer:cpu"),
    "--nvme": (".",),
    "--precision": ("bf16", "fp16", "fp32"),
    "--gpus": ("1", "2", "0,1", "64"),
    "--launcher": ("torchrun", "deepspeed"),
    "--ds-config": ("ds.json", "accelerate.yaml"),
    "--set": _ESTIMATE["--set"],
    "--hostfile": ("hosts",),
    "--include": ("w0", "w0:0@w1", "localhost:0"),
    "--exclude": ("w1", "w9"),
    "--run-dir": ("there", "runs", "ds.json/x"),
    "--force": (),
    "--show-ranks": ("0", "all", "none", "9"),
    "--stall-after": ("1", "60", "inf", "nan"),
    "--max-restarts": ("0", "1"),
    "--on-oom": ("stop", "retry"),
    "--debug": ("0", "1:5679"),
}


def _validate(make: Maker) -> list[str]:
    make.model()
    return [make.config(), *make.options(_CONFIG), *_behind(make)]


def _resolve(make: Maker) -> list[str]:
    make.model()
    table = {name: _CONFIG[name] for name in ("--world-size", "--model", "--for")} | {
        "--format": ("text", "json")
    }
    return [make.config(), *make.options(table), *_behind(make)]


def _behind(make: Maker) -> list[str]:
    return ["--", *make.trainer_args()] if make.often(0.3) else []


def _diff(make: Maker) -> list[str]:
    second = make.config("other.json")
    return [
        make.config(),
        second,
        *make.options({"--all": (), "--json": (), "--deepspeed": _CONFIG["--deepspeed"]}),
    ]


def _explain(make: Maker) -> list[str]:
    key = ".".join(make.chance.choice(KEYS))
    key = make._name(key) if make.often(0.6) else key
    return [
        make.value(key, key.rpartition(".")[2]),
        *make.options({"--json": (), "--deepspeed": _CONFIG["--deepspeed"]}),
    ]


def _write(make: Maker) -> list[str]:
    make.ds_config()
    table = {name: _TRAIN[name] for name in ("--stage", "--offload", "--nvme")}
    return make.options(table | {"--output": ("out.json", "ds.json", "no/such/x.json")})


def _schema(make: Maker) -> list[str]:
    make.ds_config()
    return make.options({"--deepspeed": _CONFIG["--deepspeed"], "--output": ("out.json", "ds.json", "a/b")})


def _translate(make: Maker) -> list[str]:
    make.script(), make.ds_config(), make.accelerate()
    words = shlex.split(make.chance.choice(COMMANDS_OF_OTHERS))
    for _ in range(make.chance.randrange(4)):
        at = make.chance.randint(1, len(words))
        words[at : at + make.chance.randrange(2)] = [
            make.value("--fsdp", "--num_nodes", "--hostfile", "--", "=", "2")
        ]
    return ["--", *words]


def _estimate(make: Maker) -> list[str]:
    make.ds_config(), make.hostfile()
    gpus = (
        []
        if make.often(0.1)
        else ["--on", make.value("8xH100-80GB", "8xH100-80GB", "4x48GiB", "A100-80GB", "0xH100")]
    )
    one = [
        "--stage",
        make.value("0", "1", "2", "3"),
        "--no-levers",
    ]  # several rehearsals take longer than 20 s
    return [make.model(), *gpus, *make.options(_ESTIMATE), *one, *_behind(make)]


def _plan(make: Maker) -> list[str]:
    make.hostfile()
    left_out = (
        "--activation-checkpointing",
        "--offload",
        "--ds-config",
        "--set",
        "--json",
        "--micro-batch",
        "--grad-accum",
    )
    table = {name: usual for name, usual in _ESTIMATE.items() if name not in left_out}
    table |= {"--global-batch": ("1", "64", "1000000"), "--output": ("out.json", "hosts")}
    return [make.model(small=0), "--on", "8xH100-80GB", *make.options(table), *_behind(make)]


def _train(make: Maker) -> list[str]:
    make.ds_config(), make.accelerate(), make.hostfile(), make.model()
    script = ["-m", make.value("train", "train", "a.b")] if make.often(0.1) else [make.script()]
    if script[0] == "-m":
        make.script()
    args = ["--", *make.trainer_args()] if make.often(0.5) else make.trainer_args()
    return ["--dry-run", "--no-ask", *make.options(_TRAIN), *script, *args]


def _of_run(more: Mapping[str, Sequence[str]], may_stop: bool = False) -> Callable[[Maker], list[str]]:
    def argv(make: Maker) -> list[str]:
        words, run = [], make.run(may_stop)
        if run != "latest":
            words.append(run)
        return [*words, *make.options({**_RUNS, **more})]

    return argv


def _list(make: Maker) -> list[str]:
    make.run()
    return make.options({**_RUNS, "--limit": ("1", "20", "9999999999")})


def _rerun(make: Maker) -> list[str]:
    make.script(may_run=True), make.ds_config()
    return [
        make.run(),
        "--dry-run",
        *make.options({"--force": (), "--run-dir": ("there",), "--runs-dir": ("runs",)}),
    ]


def _checkpoint(make: Maker) -> list[str]:
    return [
        make.checkpoint(),
        *make.options({"--json": (), "--full": ()} if make.often() else {"--json": ()}),
    ]


def _export(make: Maker) -> list[str]:
    has_adapter = make.often()
    folder = make.checkpoint(0.5, ADAPTER_STATES if has_adapter else {})
    if has_adapter:
        make.write("out/adapter_config.json", make.text(make.mutate(_ADAPTER)))
    if make.often():
        make.write("base/config.json", make.text(make.mutate({"vocab_size": 2, "architectures": ["Net"]})))
        make.write("base/model.safetensors", make.broken(_safetensors(make.mutate(_HEADER))))
    known = {
        "--dtype": ("bf16", "fp32"),
        "--shard-size": ("0.001",),
        "--model": ("base", "out"),
        "--merge-lora": (),
    }
    return [folder, make.value("exported"), *make.options(known)]


def _can_resume(make: Maker) -> list[str]:
    known = {"--ranks": ("1", "2"), "--stage": ("0", "3"), "--ds-config": (make.ds_config(),), "--json": ()}
    return [make.checkpoint(), *make.options(known)]


def _reshard(make: Maker) -> list[str]:
    known = {
        "--ranks": ("1", "2"),
        "--stage": ("0", "1", "3"),
        "--precision": ("bf16", "fp32"),
        "--offload": ("none", "cpu", "nvme"),
        "--ds-config": (make.ds_config(),),
    }
    return [make.checkpoint(0.5), *_out(make), *make.options(known)]


def _universal(make: Maker) -> list[str]:
    return [make.checkpoint(0.5), *_out(make), *make.options({"--json": ()})]


def _resume(make: Maker) -> list[str]:
    usual = {name: _TRAIN[name] for name in ("--stage", "--offload", "--precision", "--ds-config")}
    usual |= {"--gpus": ("1", "2"), "--set": ("checkpoint.load_universal=true", *_TRAIN["--set"])}
    reshard = ["--allow-reshard"] if make.often(0.7) else []
    folder = make.checkpoint(0.5)
    make.ds_config(), make.accelerate()
    script = make.write("loads.py", LOADS.encode()) if make.often() else make.script()
    run_on = "latest" if make.often(0.1) else folder
    return [run_on, "--dry-run", "--no-ask", *reshard, *make.options(usual), script, *_behind(make)]


def _out(make: Maker) -> list[str]:
    return [make.value("converted", "out", "no/such/x")] if make.often() else []


def _prune(make: Maker) -> list[str]:
    return [make.checkpoint(), *make.options({"--keep": ("1", "2"), "--yes": ()})]


def _any(make: Maker) -> list[str]:
    make.ds_config()
    verbs = " ".join(VERBS).split()
    usual = [*verbs, "ds.json", "--help", "--version", "--json"]
    words = [make.value(*usual) for _ in range(make.chance.randrange(6))]
    return ["help"] if {"train", "stop", "rerun"} & {one.replace("_", "-") for one in words} else words


VERBS: Mapping[str, tuple[int, Callable[[Maker], list[str]]]] = {
    "config validate": (24, _validate),
    "config resolve": (9, _resolve),
    "config diff": (8, _diff),
    "config explain": (4, _explain),
    "config translate": (8, _translate),
    "config write": (2, _write),
    "config schema": (1, _schema),
    "estimate": (5, _estimate),
    "plan": (2, _plan),
    "train": (14, _train),
    "train --resume": (3, _resume),
    "runs list": (4, _list),
    "runs show": (6, _of_run({})),
    "runs why": (6, _of_run({})),
    "runs report": (6, _of_run({"--html": ("-", "page.html", "train.py", ".", "no/where")})),
    "runs logs": (4, _of_run({"--rank": ("0", "7"), "--launcher": (), "--tail": ("0", "3", "99999999999")})),
    "runs stop": (1, _of_run({}, may_stop=True)),
    "runs rerun": (4, _rerun),
    "checkpoint list": (2, _checkpoint),
    "checkpoint show": (2, _checkpoint),
    "checkpoint verify": (4, _checkpoint),
    "checkpoint export": (4, _export),
    "checkpoint can-resume": (2, _can_resume),
    "checkpoint reshard": (2, _reshard),
    "checkpoint universal": (1, _universal),
    "checkpoint prune": (1, _prune),
    "": (2, _any),
}
"""Verb → how often it is drawn, and how its words are made."""


READ_ONLY = {
    "checkpoint list",
    "checkpoint show",
    "checkpoint verify",
    "checkpoint can-resume",
    "train --resume",
}
CONVERT = {"checkpoint export", "checkpoint reshard", "checkpoint universal"}
"""Verbs that write one directory, or nothing."""
NEVER = (".partial", ESCAPE.rpartition("/")[2])
"""Parts of names of files that none of them may leave."""


def inputs(count: int, seed: int, verbs: Sequence[str] = tuple(VERBS)) -> Iterator[Input]:
    """Choose inputs."""
    chance = random.Random(seed)
    for number in range(count):
        (verb,) = chance.choices(verbs, weights=[VERBS[one][0] for one in verbs])
        yield Input(number, verb, chance.randrange(1 << 40))


def environment(folder: Path, chance: random.Random) -> dict[str, str]:
    """Return the variables of an input, some of them odd."""
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\necho no network >&2; exit 255\n")
    ssh.chmod(0o755)
    mine = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), "ZLAUNCH_CACHE": str(folder / "cache")}
    odd = ("", "0", "-1", "x", "1e9", "\udcff", "9" * 30, str(folder / "ds.json"))
    for name in chance.sample(ODD_VARIABLES, chance.choice((0, 0, 0, 1, 2))):
        mine[name] = chance.choice(odd)
    path = f"{ssh.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, **mine, "PATH": path}


def run(one: Input, keep: Path | None = None) -> Result:
    """Make an input, run it, and judge what came of it."""
    with contextlib.ExitStack() as after:
        if keep is None:
            folder = Path(after.enter_context(tempfile.TemporaryDirectory(prefix="zlaunch-fuzz-")))
        else:
            folder = keep / str(one.number)
            folder.mkdir(parents=True)
        make = Maker(folder, one.seed)
        argv = tuple(_passed(word) for word in [*one.verb.split(), *VERBS[one.verb][1](make)])
        env = environment(folder, make.chance)
        given, out, err = (folder / ".in", folder / ".out", folder / ".err")
        given.write_bytes(make.text({"zero_optimization": {"stage": 2}}))
        before = contents(folder)
        if make.often(0.01):
            out = Path("/dev/full")
        with given.open("rb") as stdin, out.open("wb") as stdout, err.open("wb") as stderr:
            assert may_fork(env), "a start without a fork takes too long"
            begin = time.monotonic()
            program = start(*argv, cwd=folder, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
            status = _await(program)
        said = err.read_text("utf-8", "replace")
        done = 0 if out == Path("/dev/full") else status  # a conversion was complete before it said so
        wrong = _judge(status, said) or harm(one.verb, done, before, contents(folder))
        return Result(one, argv, status, time.monotonic() - begin, wrong, said)


def _await(program: "subprocess.Popen[bytes]") -> int:
    """Wait for a program, and return its exit status; kill it, and return `LATE`, if it takes too long."""
    begin = time.monotonic()
    while time.monotonic() - begin < WALL_SECONDS and _cpu_seconds(program.pid) < CPU_SECONDS:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return program.wait(2.0)
    program.kill()
    program.wait()
    return LATE


def _cpu_seconds(pid: int) -> float:
    """Add up the CPU time of a process and its children."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


def _passed(word: str) -> str:
    """Leave out of an argument what the system does not pass on."""
    return (
        word.replace("\0", "")
        .encode("utf-8", "ignore" if "\ud800" in word else "surrogateescape")
        .decode("utf-8", "surrogateescape")
    )


def _judge(status: int, said: str) -> str:
    """Say what is wrong; empty if nothing is."""
    if re.search(r"^Traceback|^Exception ignored|^Fatal Python error|\bWarning: ", said, re.MULTILINE):
        return said.strip().splitlines()[-1][:160]
    if status == LATE:
        return f"no end within {CPU_SECONDS:.0f} s of CPU time"
    return "" if status in RIGHT else f"exit status {status}"


def contents(folder: Path) -> dict[str, bytes | None]:
    """Read the files below a folder, without links, caches and the output; None for a directory."""
    found: dict[str, bytes | None] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        is_other = name.parts[0] in (".in", ".out", ".err", "cache", "hub")
        if not is_other and not path.is_symlink() and (path.is_dir() or path.is_file()):
            found[str(name)] = path.read_bytes() if path.is_file() else None
    return found


def harm(
    verb: str, status: int, before: Mapping[str, bytes | None], after: Mapping[str, bytes | None]
) -> str:
    """Say what a verb has changed that it only reads, or left of what it could not write."""
    if verb not in READ_ONLY | CONVERT:
        return ""
    may_write = verb in CONVERT and status == 0
    for name in sorted({*before, *after}):
        is_new, is_earlier_result = name not in before, "universal" in name
        if may_write and (is_new or is_earlier_result) and not any(one in name for one in NEVER):
            continue
        if is_new or name not in after or before[name] != after[name]:
            return f"it {'left' if is_new else 'changed'} {name}"
    return ""


def table(results: Sequence[Result]) -> str:
    """Count the inputs by verb and exit status."""
    statuses = sorted({one.status for one in results})
    exits = " | ".join(f"exit {one}" for one in statuses)
    lines = [
        f"| verb | inputs | {exits} | median, ms | longest, s | failures |",
        f"|{'---|' * (len(statuses) + 5)}",
    ]
    for verb in VERBS:
        here = [one for one in results if one.input.verb == verb]
        if here:
            counts = collections.Counter(one.status for one in here)
            seconds = [one.seconds for one in here]
            cells = [f"`{verb}`" if verb else "random words", len(here), *(counts[one] for one in statuses)]
            cells += [f"{statistics.median(seconds) * 1000:.0f}", f"{max(seconds):.1f}"]
            lines.append(f"| {' | '.join(map(str, [*cells, sum(bool(one.wrong) for one in here)]))} |")
    total = sum(bool(one.wrong) for one in results)
    return "\n".join([*lines, "", f"{len(results):,} inputs: {total} failures."])


def main() -> None:
    """Run the inputs, and print each that failed and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no input after this time")
    parser.add_argument("--verbs", nargs="*", default=tuple(VERBS))
    parser.add_argument("--only", type=int, nargs="*", help="numbers of inputs to repeat")
    parser.add_argument("--keep", type=Path, help="keep the files of the inputs in this directory")
    arguments = parser.parse_args()
    chosen = [
        one
        for one in inputs(arguments.inputs, arguments.seed, arguments.verbs)
        if not arguments.only or one.number in arguments.only
    ]
    server(sys.executable, "bench.fuzz_server")
    end, results = time.monotonic() + arguments.seconds, []
    with concurrent.futures.ThreadPoolExecutor(arguments.workers) as pool:
        for result in pool.map(
            lambda one: run(one, arguments.keep) if time.monotonic() < end else None, chosen
        ):
            if result is None:
                continue
            results.append(result)
            if result.wrong or arguments.only:
                print(
                    result.input.number,
                    shlex.join(result.argv)[:300],
                    "→",
                    result.status,
                    result.wrong,
                    flush=True,
                )
                print(result.err[-3000:], flush=True)
    print(table(results))
    sys.exit(any(result.wrong for result in results))


if __name__ == "__main__":
    main()
