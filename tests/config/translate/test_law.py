"""The law of translation: what is written passes its own dry run, with the same ranks and precision.

Each line is read by a real shell, with a fake `zlaunch` that shows what it got, and planned in this process.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from zlaunch.cli import program
from zlaunch.config.translate import translate_command

TRAINER = """\
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(model=None, args=args).train()
"""
LOOP = """\
import sys
from accelerate import Accelerator
print(sys.argv)
accelerator = Accelerator()
"""
FILES: Mapping[str, str] = {
    "trainer.py": TRAINER,
    "loop.py": LOOP,
    "bf16_loop.py": LOOP.replace("()", '(mixed_precision="bf16")'),
    "switch.py": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--deepspeed', action='store_true')\n"
        "p.add_argument('data')\np.parse_args()\n"
    ),
    "auto.json": '{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}',
    "bf16.json": '{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}}',
    "none.json": '{"zero_optimization": {"stage": 2}}',
    "cfg.yaml": "bf16: true\n",
    "hosts": "127.0.0.1 slots=2\nlocalhost slots=2\n",
    "std.yaml": (
        "distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 4\nmachine_rank: 1\nmixed_precision: bf16\n"
        "main_process_ip: 127.0.0.1\nmain_process_port: 29501\ndeepspeed_config:\n  zero_stage: 3\n"
        "  deepspeed_multinode_launcher: standard\n"
    ),
}

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "127.0.0.1,localhost",
}
STEP = {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "127.0.0.1,localhost",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
}
STARTED = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([sys.argv[1:], dict(os.environ)]))
"""
RUNS_ANOTHER = """#!/bin/sh
while [ "$1" != zlaunch ] && [ "$1" != bash ] && [ "$1" != env ]; do shift; done
exec "$@"
"""
STARTS_TASKS = f"""#!/bin/sh
case " $* " in *" -n1 "*|*" --nodes=1 "*|*"-w n1 "*)
export SLURM_STEP_NUM_TASKS=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=n1 SLURM_PROCID=0 SLURM_NODEID=0
esac
{RUNS_ANOTHER}"""
HIDES_VARIABLES = f"""#!/bin/sh
unset NNODES NODE_RANK MASTER_ADDR MASTER_PORT
{RUNS_ANOTHER}"""
PROGRAMS = {
    "zlaunch": STARTED,
    **dict.fromkeys(("uv", "poetry", "conda"), RUNS_ANOTHER),
    "srun": STARTS_TASKS,
    "ssh": '#!/bin/sh\nwhile [ "$1" != n1 ]; do shift; done\nshift\nexec sh -c "$*"\n',
    **dict.fromkeys(("docker", "kubectl", "sudo", "pdsh", "mpirun"), HIDES_VARIABLES),
}


@dataclass(frozen=True)
class Line:
    """A launch line, and what it starts."""

    text: str
    ranks: int
    precision: str = "bf16"
    environ: tuple[tuple[str, str], ...] = ()
    batch: int = 8
    """Samples of a rank in a step of the optimizer."""


MASTER = "--master_addr 127.0.0.1 --master_port 29501"
MANY = tuple(SLURM.items())
HOSTS = {
    "deepspeed --num_gpus 2": 2,
    "deepspeed --num_gpus=1 --hostfile=": 1,
    "deepspeed --hostfile hosts": 4,
    "deepspeed --hostfile hosts --num_gpus 1": 2,
    "deepspeed --hostfile hosts --num_nodes 1": 2,
    "deepspeed --hostfile hosts --num_nodes 1 --num_gpus 1": 1,
    "deepspeed --hostfile hosts --exclude localhost:1": 3,
    f"deepspeed --hostfile hosts --no_ssh --node_rank 1 {MASTER}": 4,
    f"deepspeed --hostfile hosts --no_ssh --node_rank=0 --num_gpus 1 {MASTER}": 2,
    "torchrun --standalone --nproc_per_node 2": 2,
    "torchrun --nproc-per-node=$TWO": 2,
    f"torchrun --nnodes 2 --nproc_per_node 2 --node_rank 1 {MASTER}": 4,
    "torchrun --nnodes=$TWO --node_rank=$ONE --nproc_per_node=1 --master_addr=${HOST:-127.0.0.1}": 2,
    "torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:29501 --rdzv_id 1": 4,
    "NNODES=2 NODE_RANK=1 MASTER_ADDR=127.0.0.1 torchrun --nproc_per_node 2": 2,
    f"NNODES=2 NODE_RANK=1 torchrun --nnodes 2 --node_rank 1 --nproc_per_node 2 {MASTER}": 4,
    f"PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=2 torchrun {MASTER}": 4,
    f"python -m torch.distributed.launch --nnodes=2 --node_rank=1 --nproc_per_node=1 {MASTER} --use_env": 2,
}
WITH_SLURM = {
    "srun bash -c 'torchrun --nnodes 2 --nproc_per_node 2 --rdzv_endpoint $HEAD:29500 trainer.py --bf16' #": 4,
    "srun torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint $HEAD:29500": 4,
    "srun -N2 --ntasks-per-node=1 torchrun --nnodes=$SLURM_NNODES --node_rank $SLURM_PROCID --nproc_per_node 2": 4,
    "srun python": 2,
    "deepspeed --hostfile hosts": 4,
    "deepspeed --launcher slurm --hostfile hosts --num_gpus 1": 2,
}
ONE_OF_TWO = (
    "srun -N1 -n1 -w n1 {}",
    "srun --nodes=1 -w n1 {}",
    "srun -N1 -n1 bash -c '{}'",
    "for ONE in 1; do srun -w n$ONE {}; done",
    "docker run --rm img {}",
    "kubectl exec pod -- {}",
    "sudo {}",
    "env -i PATH=$PATH HF_HOME=$HF_HOME DS_ACCELERATOR=cpu ONE=1 {}",
    "mpirun -np 1 -H n1 {}",
    "pdsh -w n1 {}",
)
"""Ways to start the launcher of one of two hosts."""
FRONT = (
    "",
    "A=1 ",
    "nohup ",
    "uv run ",
    "uv run --with x ",
    "poetry run ",
    "conda run -n env ",
    "env A=1 B=2 ",
)
SHELLS = (
    *("bash -c '{}'", "srun -N2 bash -c '{}'", "cd . && {} 2>&1 | cat", "export A=1; nohup {} > log &"),
    *("docker run --rm img bash -c '{}'", "ssh -p 22 n1 'cd . && {}'", "ssh n1 \"bash -c '{}'\""),
    *("$ {}", "(env) me@n1:~/x$ {}"),
)
SCRIPTS = {
    "trainer.py --deepspeed auto.json": "fp32",
    "trainer.py --deepspeed auto.json --bf16": "bf16",
    "trainer.py --deepspeed bf16.json --bf16 True": "bf16",
    "trainer.py --deepspeed none.json": "fp32",
}


def lines() -> Iterator[Line]:
    """Pair each way to name hosts with a script, each script with what stands in front, and the rest."""
    scripts = list(SCRIPTS.items())
    for number, (start, ranks) in enumerate(HOSTS.items()):
        script, precision = scripts[number % len(scripts)]
        yield Line(f"{start} {script}", ranks, precision)
    for number, (start, ranks) in enumerate(WITH_SLURM.items()):
        script, precision = scripts[number % len(scripts)]
        yield Line(f"{start} {script}", ranks, "bf16" if start.endswith("#") else precision, MANY)
    for front, start in product(
        FRONT, ("torchrun --nproc_per_node 2", "accelerate launch --num_processes 2 --use_deepspeed")
    ):
        yield Line(f"{front}{start} trainer.py --bf16", 2)
    one_of_two = f"torchrun --nnodes 2 --node_rank $ONE --nproc_per_node 2 {MASTER} trainer.py --bf16"
    for start in ONE_OF_TWO:
        yield Line(start.format(one_of_two), 4, environ=MANY * ("srun" in start))
    for shell in SHELLS:
        several = "srun" in shell
        start = (
            "torchrun --nproc_per_node 1 --nnodes 2 --node_rank=$SLURM_PROCID"
            if several
            else "torchrun --nproc_per_node 2"
        )
        yield Line(
            shell.format(f"{start} trainer.py --deepspeed bf16.json --bf16 True"), 2, environ=MANY * several
        )
    accelerate = "accelerate launch --use_deepspeed"
    yield Line(
        f"{accelerate} --num_machines 2 --num_processes 4 --deepspeed_hostfile hosts trainer.py", 4, "fp32"
    )
    yield Line(
        f"{accelerate} --num_machines 2 --num_processes 2 --deepspeed_hostfile hosts trainer.py --bf16", 2
    )
    yield Line(f"{accelerate} --num_machines 2 --num_processes 4 --deepspeed_multinode_launcher nossh "
               "--machine_rank 1 --deepspeed_hostfile hosts --mixed_precision bf16 trainer.py", 4)  # fmt: skip
    batch = "--per_device_train_batch_size 2 --gradient_accumulation_steps 3"
    yield Line(f"torchrun --nproc_per_node 2 trainer.py --bf16 --deepspeed bf16.json {batch}", 2, batch=6)
    yield Line(
        f"{accelerate} --num_processes 2 --gradient_accumulation_steps 3 trainer.py --bf16 {batch}",
        2,
        batch=6,
    )
    kubeflow = {"NNODES": "2", "NODE_RANK": "1", "NPROC_PER_NODE": "2", "MASTER_ADDR": "127.0.0.1"}
    of_kubeflow = tuple((f"PET_{name}", value) for name, value in kubeflow.items())
    yield Line("torchrun trainer.py --bf16", 4, environ=of_kubeflow)
    in_step = (*MANY, *STEP.items())
    yield Line(
        "torchrun --nnodes 2 --nproc_per_node 2 --rdzv_endpoint $HEAD:1 trainer.py --bf16", 4, environ=in_step
    )
    one_node = (("SLURM_JOB_ID", "7"), ("SLURM_JOB_NUM_NODES", "1"))
    yield Line("deepspeed --hostfile hosts trainer.py --bf16", 4, environ=one_node)
    yield Line("accelerate launch --config_file std.yaml trainer.py", 4)
    yield Line("srun accelerate launch --config_file std.yaml trainer.py", 4, environ=MANY)
    yield Line("accelerate launch --multi_gpu --num_machines 2 --num_processes 4 --machine_rank 1 "
               "--main_process_ip 127.0.0.1 --mixed_precision bf16 trainer.py", 4)  # fmt: skip
    for stage, part, device in product("0123", ("optimizer", "param"), ("none", "cpu")):
        yield Line(
            f"{accelerate} --num_processes 2 --zero_stage {stage} --offload_{part}_device {device} trainer.py --bf16",
            2,
        )
    yield Line(
        f"{accelerate} --num_processes 2 --zero_stage 2 --offload_optimizer_device nvme trainer.py --bf16", 2
    )
    yield Line(f"{accelerate} --num_processes 2 --deepspeed_config_file auto.json trainer.py", 2, "fp32")
    yield Line(f"{accelerate} --num_processes 2 loop.py --mixed_precision=bf16", 2, "script")
    yield Line(f"{accelerate} --num_processes 2 bf16_loop.py", 2, "script")
    yield Line(f"{accelerate} --num_processes 2 --mixed_precision bf16 loop.py", 2)
    yield Line(f"{accelerate} --num_processes 2 loop.py --config cfg.yaml", 2, "script")
    yield Line("torchrun --nproc_per_node 2 switch.py --deepspeed data.json", 2, "script")


LINES = {f"{number} {line.text}": line for number, line in enumerate(lines())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project, with programs that only start others, from which the tests start."""
    folder = tmp_path_factory.mktemp("law")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    programs = folder / "bin"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def planned(argv: list[str], environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Plan a job in this process; raise what zlaunch raises."""
    cut = [*argv, "--"].index("--")
    output = StringIO()
    with monkeypatch.context() as patch, redirect_stdout(output), redirect_stderr(StringIO()):
        for name in {*os.environ} - {*environ}:
            patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        words = [*argv[:cut], "--dry-run", "--json", "--no-ask", *argv[cut:]]
        assert not program.main(words, standalone_mode=False)
    plan: dict[str, Any] = json.loads(output.getvalue())
    return plan


@each("name", LINES)
def test_a_translation_passes_its_dry_run_with_the_same_ranks_and_precision(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = LINES[name]
    environ = {"HF_HOME": str(folder), "TWO": "2", "ONE": "1", "DS_ACCELERATOR": "cpu", **dict(line.environ)}
    translation = translate_command([line.text], environ)
    script = translation.line.removesuffix("> log &")
    environ = {**os.environ, **environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    if "srun" in script:
        environ |= STEP
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=True)
    argv, inner = json.loads(done.stdout)
    plan = planned(argv, inner, monkeypatch)
    told = " ".join(note.text for note in translation.notes)
    assert len(plan["ranks"]) == line.ranks, shlex.join(argv)
    if "trainer.py" in line.text:
        assert plan["micro_batch"] * plan["grad_accum"] == line.batch, shlex.join(argv)
    precision = plan["precision"] or "script"
    assert precision == line.precision or "trains in fp32 unless" in told, shlex.join(argv)
