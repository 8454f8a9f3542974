import contextlib
import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from zlaunch.cli import program
from zlaunch.config.accelerate import AccelerateConfig, interpret
from zlaunch.config.accelerate.yaml_reader import parse
from zlaunch.config.translate import Translation, reads_default_config, translate, translate_command
from zlaunch.config.translate.command import LAUNCHERS, read_command
from zlaunch.config.translate.flags import Flag, LauncherSyntax, Role, Untranslatable
from zlaunch.config.translate.launchers import syntax_of
from zlaunch.errors import Refused, WrongUsage, ZlaunchError

SAME = {
    "deepspeed": (
        "deepspeed --num_gpus 4 train.py --deepspeed ds.json --lr 1e-4",
        "zlaunch train train.py --ds-config ds.json --gpus 4 --launcher deepspeed -- --lr 1e-4",
    ),
    "deepspeed with all GPUs": (
        "deepspeed train.py --deepspeed ds.json",
        "zlaunch train train.py --ds-config ds.json --launcher deepspeed",
    ),
    "deepspeed with its own way to name a config": (
        "deepspeed train.py --deepspeed --deepspeed_config ds.json",
        "zlaunch train train.py --ds-config ds.json --launcher deepspeed",
    ),
    "deepspeed without a config": ("deepspeed t.py", "zlaunch train t.py --launcher deepspeed"),
    "deepspeed on hosts": (
        "deepspeed -H hf -e w1:0 --master_port 29501 t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --exclude w1:0 --hostfile hf",
    ),
    "deepspeed on hosts that are not named": (
        "deepspeed --num_nodes 2 --num_gpus 8 t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --hostfile hosts",
    ),
    "deepspeed with devices": (
        "deepspeed --include localhost:0,2 t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --include localhost:0,2 --launcher deepspeed",
    ),
    "deepspeed with devices twice": (
        "CUDA_VISIBLE_DEVICES=4,5 deepspeed --include localhost:0 t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --include localhost:0 --launcher deepspeed",
    ),
    "deepspeed with visible devices": (
        "CUDA_VISIBLE_DEVICES=2,3 deepspeed t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --gpus 2,3 --launcher deepspeed",
    ),
    "DeepSpeed's runner": (
        "python3.11 -m deepspeed.launcher.runner --num_gpus=2 t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --gpus 2 --launcher deepspeed",
    ),
    "a shortened flag": (
        "deepspeed --num_g 2 t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --gpus 2 --launcher deepspeed",
    ),
    "torchrun": (
        "torchrun --standalone --nproc_per_node 2 t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --gpus 2",
    ),
    "torchrun's one rank": ("torchrun t.py --deepspeed d.json", "zlaunch train t.py --ds-config d.json --gpus 1"),
    "torchrun with a module": (
        "torchrun --nproc_per_node 2 -m pack.train --deepspeed d.json --x",
        "zlaunch train -m pack.train --ds-config d.json --gpus 2 -- --x",
    ),
    "deepspeed with a module": (
        "deepspeed --num_gpus 2 --module pack.train --x",
        "zlaunch train -m pack.train --gpus 2 --launcher deepspeed -- --x",
    ),
    "accelerate with a module": (
        "accelerate launch --use_deepspeed --num_processes 2 -m pack.train --fp16",
        "zlaunch train -m pack.train --gpus 2 -- --fp16",
    ),
    "torchrun on all GPUs": (
        "torchrun --nproc-per-node=gpu t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json",
    ),
    "torchrun without a config": (
        "torchrun --nproc_per_node 2 t.py",
        "zlaunch train t.py --stage 0 --precision fp32 --gpus 2",
    ),
    "torchrun for a script with its own format": (
        "torchrun --nproc_per_node 2 t.py --bf16",
        "zlaunch train t.py --stage 0 --gpus 2 -- --bf16",
    ),
    "torchrun on two hosts": (
        "torchrun --nnodes 2 --nproc_per_node 4 --node_rank 1 --master_addr n0 --master_port 7 t.py --deepspeed d.json",
        "NNODES=2 NODE_RANK=1 MASTER_ADDR=n0 MASTER_PORT=7 zlaunch train t.py --ds-config d.json --gpus 4",
    ),
    "torchrun with an endpoint": (
        "torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint n0:7 t.py --deepspeed d.json",
        "NNODES=2 NODE_RANK=0 MASTER_ADDR=n0 MASTER_PORT=7 zlaunch train t.py --ds-config d.json --gpus 1",
    ),
    "torchrun with variables for other programs": (
        "NNODES=2 NODE_RANK=1 MASTER_ADDR=n0 torchrun --nproc_per_node 4 t.py --deepspeed d.json",
        "MASTER_ADDR=n0 zlaunch train t.py --ds-config d.json --gpus 4",
    ),
    "torchrun on each node of Slurm": (
        "srun -N2 torchrun --nnodes 2 --nproc_per_node 4 --rdzv_endpoint n0:7 t.py --deepspeed d.json",
        "srun -N2 zlaunch train t.py --ds-config d.json --gpus 4",
    ),
    "deepspeed on each host": (
        "deepspeed -H hf --no_ssh --node_rank 1 --master_port 7 t.py --deepspeed d.json",
        "MASTER_PORT=7 zlaunch train t.py --ds-config d.json --hostfile hf --no-ssh --node-rank 1",
    ),
    "deepspeed with Slurm": (
        "deepspeed -H $SLURM_TMPDIR/hf --launcher slurm t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json",
    ),
    "deepspeed with a hostfile that is none": (
        "deepspeed --hostfile= --num_gpus 2 t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --gpus 2 --launcher deepspeed",
    ),
    "accelerate on each of two hosts": (
        ("accelerate launch --use_deepspeed --num_machines 2 --num_processes 8 --machine_rank 1 --main_process_ip n0 "
         "--deepspeed_multinode_launcher standard t.py --fp16"),
        "NNODES=2 NODE_RANK=1 MASTER_ADDR=n0 zlaunch train t.py --gpus 4 -- --fp16",
    ),
    "accelerate with offload that DeepSpeed ignores": (
        ("accelerate launch --use_deepspeed --zero_stage 2 --offload_param_device cpu --offload_optimizer_device nvme "
         "t.py --fp16"),
        "zlaunch train t.py --stage 2 --offload cpu -- --fp16",
    ),
    "a precision among the arguments": (
        "accelerate launch --use_deepspeed t.py --mixed_precision=bf16",
        "zlaunch train t.py -- --mixed_precision=bf16",
    ),
    "a precision of the launcher and one of the script": (
        "accelerate launch --use_deepspeed --mixed_precision fp16 t.py --mixed_precision bf16",
        "zlaunch train t.py -- --mixed_precision bf16",
    ),
    "a file of arguments": (
        "accelerate launch --use_deepspeed t.py --config cfg.yaml",
        "zlaunch train t.py -- --config cfg.yaml",
    ),
    "a switch of the script": (
        "torchrun -m swift.cli.sft --deepspeed zero3 --fp16",
        "zlaunch train -m swift.cli.sft --stage 0 --gpus 1 -- --deepspeed zero3 --fp16",
    ),
    "torchrun by variables": (
        "PET_NPROC_PER_NODE=2 PET_STANDALONE=1 PET_NO_PYTHON=0 torchrun t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --gpus 2",
    ),
    "torchrun by variables and a flag": (
        "PET_NPROC_PER_NODE=2 torchrun --nproc_per_node 4 t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --gpus 4",
    ),
    "torchrun with visible devices": (
        "CUDA_VISIBLE_DEVICES=0,2,3 torchrun --nproc_per_node 2 t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --gpus 0,2",
    ),
    "torchrun with one visible device": (
        "CUDA_VISIBLE_DEVICES=3 torchrun t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --gpus 3,",
    ),
    "torchrun with devices by name": (
        "CUDA_VISIBLE_DEVICES=GPU-1 torchrun t.py --deepspeed d.json",
        "CUDA_VISIBLE_DEVICES=GPU-1 zlaunch train t.py --ds-config d.json --gpus 1",
    ),
    "torchrun with variables": (
        "NCCL_DEBUG=INFO 'X=a b' torchrun t.py --deepspeed d.json",
        "NCCL_DEBUG=INFO X='a b' zlaunch train t.py --ds-config d.json --gpus 1",
    ),
    "torch.distributed.run": (
        "/opt/bin/python -X dev -u -m torch.distributed.run --nproc_per_node 2 t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --gpus 2",
    ),
    "torch.distributed.launch": (
        "python -um torch.distributed.launch --use_env t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --gpus 1",
    ),
    "glued short flags": ("torchrun -t3 -r=1 t.py --deepspeed d.json", "zlaunch train t.py --ds-config d.json --gpus 1"),
    "short flags in one word": (
        "deepspeed -qH hf t.py --deepspeed d.json",
        "zlaunch train t.py --ds-config d.json --hostfile hf",
    ),
    "accelerate with fields": (
        ("accelerate launch --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu --mixed_precision bf16 "
         "--num_processes 4 t.py"),
        "zlaunch train t.py --stage 3 --offload optimizer:cpu,param:none --precision bf16 --gpus 4",
    ),
    "accelerate with everything on the CPU": (
        "accelerate launch --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu --offload_param_device CPU t.py",
        "zlaunch train t.py --stage 3 --offload cpu --precision fp32",
    ),
    "accelerate with the optimizer on the CPU": (
        "accelerate launch --use-deepspeed --offload-optimizer-device cpu t.py --fp16",
        "zlaunch train t.py --offload cpu -- --fp16",
    ),
    "accelerate with NVMe": (
        ("accelerate launch --use_deepspeed --zero_stage 3 --offload_optimizer_device nvme --offload_param_device nvme "
         "--offload_optimizer_nvme_path /a --offload_param_nvme_path /b t.py --fp16"),
        "zlaunch train t.py --stage 3 --offload nvme --nvme /a --set zero_optimization.offload_param.nvme_path=/b -- --fp16",
    ),
    "torchrun behind other programs": (
        "A=1 nohup env B=2 nice -n 5 torchrun --nproc_per_node 2 --max_restarts 3 t.py --deepspeed d.json --fp16",
        "A=1 B=2 nohup nice -n 5 zlaunch train t.py --ds-config d.json --gpus 2 --max-restarts 3 -- --fp16",
    ),
    "torchrun in a job step of Slurm": (
        "srun -N1 python -m torch.distributed.run --nproc_per_node 2 t.py --deepspeed d.json --fp16",
        "srun -N1 zlaunch train t.py --ds-config d.json --gpus 2 -- --fp16",
    ),
    "accelerate with numbers": (
        "accelerate launch --use_deepspeed --gradient_accumulation_steps 4 --gradient_clipping 0.5 t.py --fp16",
        "zlaunch train t.py --set gradient_accumulation_steps=4 --set gradient_clipping=0.5 -- --fp16",
    ),
    "accelerate with numbers that the script has": (
        "accelerate launch --use_deepspeed --gradient_accumulation_steps 4 t.py --fp16 --gradient_accumulation_steps 2",
        "zlaunch train t.py -- --fp16 --gradient_accumulation_steps 2",
    ),
    "accelerate at stage 3": (
        "accelerate launch --use_deepspeed --zero_stage 3 --zero3_init_flag false --zero3_save_16bit_model false t.py --fp16",
        ("ACCELERATE_DEEPSPEED_ZERO3_INIT=false zlaunch train t.py --stage 3 "
         "--set zero_optimization.stage3_gather_16bit_weights_on_model_save=false -- --fp16"),
    ),
    "accelerate with a file": (
        "accelerate launch --use_deepspeed --deepspeed_config_file d.json --zero_stage 3 --mixed_precision fp16 t.py",
        "zlaunch train t.py --ds-config d.json --precision fp16",
    ),
    "accelerate with two files": (
        "accelerate launch --use_deepspeed --deepspeed_config_file d.json t.py --deepspeed e.json",
        "zlaunch train t.py --ds-config e.json",
    ),
    "accelerate with fp8": (
        "accelerate launch --use_deepspeed --mixed_precision fp8 t.py",
        "zlaunch train t.py --precision bf16",
    ),
    "accelerate with devices": (
        "CUDA_VISIBLE_DEVICES=7 accelerate launch --use_deepspeed --gpu_ids 0,2 --num_processes 2 t.py --fp16",
        "zlaunch train t.py --gpus 0,2 -- --fp16",
    ),
    "accelerate on two hosts": (
        ("accelerate-launch --use_deepspeed --num_machines 2 --num_processes 8 --deepspeed_hostfile hf "
         "--deepspeed_inclusion_filter w0 t.py --fp16"),
        "zlaunch train t.py --include w0 --hostfile hf -- --fp16",
    ),
    "accelerate with a hostfile for nothing": (
        "accelerate launch --use_deepspeed --deepspeed_hostfile hf t.py --fp16",
        "zlaunch train t.py -- --fp16",
    ),
    "accelerate without DeepSpeed": (
        "accelerate launch --multi_gpu --zero_stage 3 --mixed_precision bf16 t.py",
        "zlaunch train t.py --stage 0 --precision bf16",
    ),
    "accelerate on the CPU": (
        "accelerate launch --cpu --num_cpu_threads_per_process 4 t.py --bf16",
        "DS_ACCELERATOR=cpu OMP_NUM_THREADS=4 zlaunch train t.py --stage 0 -- --bf16",
    ),
    "accelerate for experts": (
        "python -m accelerate.commands.launch --use_deepspeed --deepspeed_moe_layer_cls_names A,B t.py --fp16",
        "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES=A,B zlaunch train t.py -- --fp16",
    ),
    "accelerate's other module": (
        "python -m accelerate.commands.accelerate_cli launch --use_deepspeed t.py --fp16",
        "zlaunch train t.py -- --fp16",
    ),
    "words that need quotes": (
        "torchrun --nproc_per_node 2 'my train.py' --deepspeed 'my ds.json' --name 'a b' -- --x",
        "zlaunch train 'my train.py' --ds-config 'my ds.json' --gpus 2 -- --name 'a b' -- --x",
    ),
}  # fmt: skip

HEAD = "distributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\ndeepspeed_config:\n"
WRITTEN_BY_ACCELERATE = """\
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  deepspeed_multinode_launcher: standard
  gradient_accumulation_steps: 1
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
  zero_stage: 2
distributed_type: DEEPSPEED
downcast_bf16: 'no'
dynamo_config:
  dynamo_backend: 'no'
enable_cpu_affinity: false
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""


WITH_CONFIG = "accelerate launch --config_file a.yaml"


def translated(text: str, config: str | None = None, hostfile: str | None = None) -> Translation:
    read: AccelerateConfig | None = None if config is None else interpret(parse(config, "a.yaml"))
    return translate(read_command(shlex.split(text)), read, hostfile)


def notes(text: str, config: str | None = None) -> dict[str, str]:
    return {note.about: note.text for note in translated(text, config).notes}


@each("name", SAME)
def test_the_command_line_does_the_same(name: str) -> None:
    text, line = SAME[name]
    assert translated(text).line == line


@each("name", SAME)
def test_zlaunch_takes_all_before_the_dashes_for_its_own(name: str) -> None:
    words = shlex.split(SAME[name][1])
    words = words[words.index("train") + 1 :]
    context = program.commands["train"].load().make_context("train", [*words])
    assert context.args == (words[words.index("--") + 1 :] if "--" in words else [])


@each("name", SAME)
def test_every_flag_is_answered_for(name: str) -> None:
    command = read_command(shlex.split(SAME[name][0]))
    about = " ".join(note.about for note in translate(command).notes)
    assert [one.written for one in command.given if one.written not in about] == []


TEXTS = {
    "cd x && torchrun --nproc_per_node $N t.py --bf16 > log 2>&1 &": (
        "cd x && zlaunch train t.py --stage 0 --gpus $N -- --bf16 > log 2>&1 &"
    ),
    "srun bash -c 'torchrun --nnodes 2 --node_rank $SLURM_PROCID t.py --bf16'": (
        "srun bash -c 'zlaunch train t.py --stage 0 --gpus 1 -- --bf16'"
    ),
    'bash -c "torchrun --nproc_per_node $N t.py --bf16"': (
        'bash -c "zlaunch train t.py --stage 0 --gpus $N -- --bf16"'
    ),
    "NNODES=2 NODE_RANK=1 MASTER_ADDR=n0 uv run llamafactory-cli train x.yaml": (
        "NNODES=2 NODE_RANK=1 MASTER_ADDR=n0 uv run zlaunch train -m llamafactory.launcher -- x.yaml"
    ),
    "NPROC_PER_NODE=4 swift sft --model m": "zlaunch train --gpus 4 -m swift.cli.sft -- --model m",
    "python prepare.py && torchrun t.py --bf16; accelerate env": (
        "python prepare.py && zlaunch train t.py --stage 0 --gpus 1 -- --bf16; accelerate env"
    ),
    # what ssh runs is read by two shells
    "ssh h bash -c '\"torchrun t.py --bf16 --x 1\"'": (
        """ssh h 'bash -c '"'"'zlaunch train t.py --stage 0 --gpus 1 -- --bf16 --x 1'"'"''"""
    ),
    "ssh -p 22 h cd /d '&&' torchrun t.py --bf16": (
        "ssh -p 22 h 'cd /d && zlaunch train t.py --stage 0 --gpus 1 -- --bf16'"
    ),
    "pdsh -w h torchrun t.py --bf16 --x '\"a b\"'": (
        """pdsh -w h 'zlaunch train t.py --stage 0 --gpus 1 -- --bf16 --x '"'"'a b'"'"''"""
    ),
    "(docker run img torchrun --nproc_per_node 2 t.py --bf16)": (
        "(docker run img zlaunch train t.py --stage 0 --gpus 2 -- --bf16)"
    ),
    "srun -n8 python -u t.py --deepspeed d.json": "srun -n8 zlaunch train t.py --ds-config d.json --gpus 1",
    "eval 'torchrun t.py --bf16'": "eval 'zlaunch train t.py --stage 0 --gpus 1 -- --bf16'",
    "torchrun -m pack model.lr=1": "zlaunch train -m pack --stage 0 --gpus 1 -- model.lr=1",
    "arctic_training train rec.yml --num_gpus 2": (
        "zlaunch train arctic_training_run --gpus 2 --launcher deepspeed -- --mode train --config rec.yml"
    ),
}


@each("text", TEXTS)
def test_a_text_for_a_shell_keeps_what_it_has_around_the_command(text: str) -> None:
    assert translate_command([text], {}).line == TEXTS[text]


def test_an_error_names_words_as_they_were_typed() -> None:
    with pytest.raises(WrongUsage) as caught:
        translate_command(["torchrun --nproc $N --x=$Y t.py"], {})
    assert "`--x`" in caught.value.message
    with pytest.raises(Refused) as refused:
        translate_command(["torchrun --no_python $X"], {})
    assert refused.value.findings[0].where == "--no_python"


def test_flags_that_only_the_shell_knows_are_asked_for() -> None:
    with pytest.raises(WrongUsage) as caught:
        translate_command(["torchrun $FLAGS t.py $ARGS"], {})
    assert "`$FLAGS`" in caught.value.message


def test_a_config_that_accelerate_wrote_needs_few_words() -> None:
    found = translated(f"{WITH_CONFIG} -- t.py --lr 1", WRITTEN_BY_ACCELERATE)
    assert found.line == "zlaunch train t.py --stage 2 --precision bf16 --gpus 8 -- --lr 1"


def test_what_a_config_says_by_default_is_not_told() -> None:
    assert [*notes(f"{WITH_CONFIG} t.py", WRITTEN_BY_ACCELERATE)] == [
        "zero_stage: 2",
        "mixed_precision: bf16",
        "num_processes: 8",
    ]


def test_a_config_without_a_script_trains_the_recipe() -> None:
    assert translated(WITH_CONFIG, HEAD).line == "zlaunch train --precision bf16 --gpus 8"


def test_the_command_line_wins_over_the_config() -> None:
    found = translated(
        "accelerate launch --config_file a.yaml --num_processes 2 --zero_stage 1 t.py",
        HEAD + "  zero_stage: 3",
    )
    assert found.line == "zlaunch train t.py --stage 1 --precision bf16 --gpus 2"


def test_a_config_that_names_a_file_leads_to_it() -> None:
    config = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: ds.json\n"
    assert translated(f"{WITH_CONFIG} t.py", config).line == "zlaunch train t.py --ds-config ds.json"


def test_a_config_for_several_gpus_without_deepspeed_is_stage_0() -> None:
    config = "distributed_type: MULTI_GPU\nnum_processes: 2\n"
    assert (
        translated(f"{WITH_CONFIG} t.py --bf16", config).line
        == "zlaunch train t.py --stage 0 --gpus 2 -- --bf16"
    )


@pytest.mark.parametrize("kind", ["FSDP", "MEGATRON_LM", "XLA", "MULTI_NPU"])
def test_a_config_for_something_else_is_refused_where_it_says_so(kind: str) -> None:
    with pytest.raises(Refused) as caught:
        translated(f"{WITH_CONFIG} t.py", f"num_processes: 2\ndistributed_type: {kind}\n")
    assert [finding.place and finding.place.line for finding in caught.value.findings] == [2]


def test_a_config_with_mistakes_is_refused_with_all_of_them() -> None:
    with pytest.raises(Refused) as caught:
        translated(f"{WITH_CONFIG} t.py", f"num_process: 2\nzero_stage: 3\n{HEAD}  zero_stage: 2\n")
    assert [finding.code for finding in caught.value.findings] == ["unknown-key"] * 2


def test_a_field_that_is_merely_ignored_is_left_out_with_its_hint() -> None:
    found = translated(f"{WITH_CONFIG} t.py", HEAD + "  zero_stge: 3\n  zero_stage: 2\n")
    assert "--stage 2" in found.line
    assert ("zero_stge: 3", "left out: accelerate ignores it; did you mean `zero_stage`?") in [
        (note.about, note.text) for note in found.notes
    ]


@pytest.mark.parametrize("fsdp", ["--fsdp full_shard", "--fsdp"])
@pytest.mark.parametrize(
    "text",
    [
        "deepspeed t.py --deepspeed d.json {}",
        "torchrun t.py --deepspeed d.json {}",
        "accelerate launch --use_deepspeed t.py {}",
        "accelerate launch --use_deepspeed --deepspeed_config_file d.json t.py {}",
    ],
)
def test_fsdp_beside_a_ds_config_is_told(text: str, fsdp: str) -> None:
    found = translated(text.format(fsdp))
    assert found.line.endswith(f" -- {fsdp}")
    (told,) = [note.text for note in found.notes if note.about == fsdp]
    assert told.startswith("the Trainer refuses it together with a ds_config")


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed", "accelerate launch --multi_gpu"])
def test_fsdp_alone_gets_no_stage(launcher: str) -> None:
    line = translated(f"{launcher} t.py --fsdp full_shard").line
    assert ("--stage" in line, "--precision" in line) == (False, False)
    assert line.endswith(" -- --fsdp full_shard")


def test_fsdp_that_is_off_changes_nothing() -> None:
    assert translated("torchrun t.py --fsdp false").line.startswith("zlaunch train t.py --stage 0 ")


def test_a_hostfile_that_deepspeed_finds_by_itself_is_named() -> None:
    found = translated("deepspeed t.py --deepspeed d.json", hostfile="/job/hostfile")
    assert found.line == "zlaunch train t.py --ds-config d.json --hostfile /job/hostfile"


def test_a_hostfile_that_is_named_wins_over_the_one_that_is_found() -> None:
    found = translated("deepspeed -H hf t.py --deepspeed d.json", hostfile="/job/hostfile")
    assert found.line == "zlaunch train t.py --ds-config d.json --hostfile hf"


@pytest.mark.parametrize(
    ("text", "reads"),
    [("accelerate launch t.py", True), ("accelerate launch --cpu t.py", False), ("torchrun t.py", False)],
)
def test_only_accelerate_reads_a_default_config(text: str, reads: bool) -> None:
    assert reads_default_config(read_command(text.split())) == reads


NOTES = [
    ("deepspeed --num_nodes 2 --num_gpus 4 t.py", "--num_nodes 2", "write a line `HOST slots=4` for each host into `hosts`"),
    ("deepspeed --num_nodes 2 t.py", "--num_nodes 2", "`HOST slots=N`"),
    ("torchrun --nnodes 2 t.py", "NODE_RANK", "write 1 on the next one"),
    ("NNODES=2 torchrun t.py", "NNODES=2", "left out: torchrun does not read it, and zlaunch would"),
    ("torchrun --nnodes 2:4 -t 3 t.py", "--nnodes 2:4", "lost: the number of hosts cannot change"),
    ("torchrun --standalone t.py", "--standalone", "left out: zlaunch picks a free port"),
    ("torchrun --max_restarts 3 t.py", "--max_restarts 3", "`--max-restarts 3`"),
    ("torchrun --max_restarts 0 t.py", "--max_restarts 0", "left out: it is the default"),
    ("torchrun --nproc_per_node cpu t.py", "--nproc_per_node cpu", "lost: "),
    ("deepspeed t.py", "--local_rank", "needs it"),
    ("deepspeed t.py", "deepspeed", "--ds-config FILE"),
    ("deepspeed t.py --deepspeed", "--deepspeed", "stays: "),
    ("deepspeed --num_gpus -1 t.py", "--num_gpus -1", "left out: it is the default"),
    ("deepspeed -H hf --num_nodes 2 t.py", "--num_nodes 2", "lost: "),
    ("mpirun -np 2 python t.py", "mpirun", "add `-x MASTER_ADDR=HOST`"),
    ("deepspeed -H hf t.py", "hf", "is not here: DeepSpeed would train on this machine alone"),
    ("CUDA_VISIBLE_DEVICES=1,2 deepspeed --num_gpus 1 t.py", "--num_gpus 1", "itself would take the first GPUs of all"),
    ("CUDA_VISIBLE_DEVICES=1,2 deepspeed -H hf t.py", "CUDA_VISIBLE_DEVICES=1,2", "lost: with a hostfile"),
    ("accelerate launch --use_deepspeed t.py", "--use_deepspeed", "left out: zlaunch always does"),
    ("accelerate launch --use_deepspeed t.py", "accelerate launch", "`--precision fp32`"),
    ("accelerate launch --use_deepspeed --num_machines 1 t.py", "--num_machines 1", "left out: without a hostfile"),
    ("accelerate launch --use_deepspeed --num_processes 4 --gpu_ids 0,1 t.py", "--num_processes 4", "lost: only 2"),
    ("accelerate launch --zero_stage 3 t.py", "--zero_stage 3", "ignores it without `--use_deepspeed`"),
    ("accelerate launch --use_deepspeed --mixed_precision fp8 t.py", "--mixed_precision fp8", "lost: "),
    ("accelerate launch --use_deepspeed --zero_stage 3 --offload_param_device nvme t.py", "nvme", "add `--nvme DIR`"),
    ("accelerate launch --use_deepspeed --offload_param_device cpu t.py", "--offload_param_device cpu", "left out: at stage 2"),
    ("accelerate launch --use_deepspeed t.py --config c.yaml", "accelerate launch", "for fp32, add `--precision fp32`"),
    ("accelerate launch --use_deepspeed --offload_param_nvme_path /n t.py", "--offload_param_nvme_path /n", "left out: "),
    ("accelerate launch --use_deepspeed --gradient_accumulation_steps 1 t.py", "--gradient_accumulation_steps 1", "left out: "),
    ("accelerate launch --use_deepspeed --zero3_init_flag true t.py", "--zero3_init_flag true", "no effect below stage 3"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "about", "part"), NOTES, ids=[f"{text} / {about}" for text, about, _ in NOTES]
)
def test_a_note_says_what_became_of_it(text: str, about: str, part: str) -> None:
    found = [note.text for note in translated(text).notes if note.about == about]
    assert any(part in text for text in found), found


@pytest.mark.parametrize("flag", ["--no_python", "--use_fsdp", "--tpu", "--use_megatron_lm", "--help"])
def test_a_flag_that_nothing_stands_for_is_refused(flag: str) -> None:
    with pytest.raises(Refused) as caught:
        translated(f"accelerate launch {flag} t.py")
    assert [finding.where for finding in caught.value.findings] == [flag]


def test_all_flags_that_nothing_stands_for_are_refused_at_once() -> None:
    with pytest.raises(Refused) as caught:
        translated("accelerate launch --tpu --use_fsdp t.py")
    assert [finding.where for finding in caught.value.findings] == ["--tpu", "--use_fsdp"]


WRONG = [
    ("deepspeed --num-gpus 2 t.py", "did you mean `--num_gpus`?"),
    ("deepspeed --nproc_per_node 2 t.py", "did you mean `--num_gpus`?"),
    ("torchrun --num_gpus 2 t.py", "did you mean `--nproc_per_node`?"),
    ("torchrun --num_processes 2 t.py", None),
    ("accelerate launch --zero-stag 3 t.py", "did you mean `--zero-stage`?"),
    ("accelerate launch --num_proc 3 t.py", "did you mean `--num_processes`?"),
    ("torchrun --master t.py", "did you mean `--master_port`?"),
    ("torchrun --xyz t.py", None),
    ("torchrun -x t.py", None),
    ("torchrun --nnodes", None),
    ("torchrun --nnodes --standalone t.py", None),
    ("torchrun --nnodes -- t.py", None),
    ("torchrun --standalone=1 t.py", None),
    ("torchrun --standalone", "copy the whole command with its script"),
    ("torchrun", "copy the whole command with its script"),
    ("python t.py", "start with `deepspeed`, `torchrun` or `accelerate launch`"),
    ("python -m mine t.py", "start with `deepspeed`, `torchrun` or `accelerate launch`"),
    ("python -m", "start with `deepspeed`, `torchrun` or `accelerate launch`"),
    ("accelerate config", "start with `deepspeed`, `torchrun` or `accelerate launch`"),
    ("X=1", "start with `deepspeed`, `torchrun` or `accelerate launch`"),
    ("'torchrun \"t.py'", None),
]


@each(("text", "hint"), WRONG)
def test_what_no_launcher_would_understand_is_wrong_usage(text: str, hint: str | None) -> None:
    with pytest.raises(WrongUsage) as caught:
        translate_command(shlex.split(text), {})
    assert caught.value.hint == hint


@each(
    "text",
    [
        "pdsh -w n0,n1 torchrun --nnodes 2 --node_rank 0 --master_addr n0 t.py",
        "clush -w n[0-1] torchrun --nnodes 2 --rdzv_backend c10d --rdzv_endpoint n0 t.py",
    ],
)
def test_one_number_for_several_hosts_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        translate_command([text], {})
    assert "`zlaunch train --hosts HOST,HOST …`" in str(caught.value.hint)


@each(
    ("text", "start"),
    [
        ("C=2 sudo A=1 torchrun t.py", "C=2 sudo env A=1 zlaunch train t.py "),
        ("mpirun -np 1 env A=1 torchrun t.py", "mpirun -np 1 env A=1 zlaunch train t.py "),
        ("env -u A A=1 torchrun t.py", "env -u A A=1 zlaunch train t.py "),
        ("sudo A=1 bash -c 'torchrun t.py'", "sudo env A=1 bash -c 'zlaunch train t.py "),
        ("sudo env A=1 llamafactory-cli train x.yaml", "sudo env A=1 zlaunch train -m "),
        ("uv run env A=1 torchrun t.py", "A=1 uv run zlaunch train t.py "),
    ],
)
def test_a_variable_stays_where_it_arrives(text: str, start: str) -> None:
    line = translate_command([text], {}).line
    assert line.startswith(start), line


def test_a_starter_of_tasks_is_found_behind_an_unknown_program() -> None:
    line = translate_command(["docker run img mpirun -np 2 torchrun --nnodes 2 t.py"], {}).line
    assert line.startswith("docker run img mpirun -np 2 zlaunch train t.py ")


def values(one: Flag) -> Sequence[str]:
    return (*one.idle, "1", "2", "x", "auto", "true", "false", "cpu", "nvme", "bf16", "0,1", "1:2")


def spoken(launcher: LauncherSyntax) -> st.SearchStrategy[list[str]]:
    """Make command lines of flags that are not refused, in every spelling."""
    known = {
        name: one
        for name, one in launcher.spellings().items()
        if not isinstance(one.becomes, Untranslatable) and one.becomes is not Role.CONFIG_FILE
    }

    def words(name: str) -> st.SearchStrategy[list[str]]:
        if not known[name].takes_value:
            return st.just([name])
        value = st.sampled_from(values(known[name]))
        glued = value.map(lambda text: [f"{name}={text}"])
        return glued | value.map(lambda text: [name, text])

    return st.lists(st.sampled_from(sorted(known)).flatmap(words), max_size=6).map(
        lambda found: [*chain.from_iterable(found)]
    )


PROGRAMS = {
    "deepspeed": ["deepspeed"],
    "torchrun": ["torchrun"],
    "accelerate launch": ["accelerate", "launch"],
}


@given(
    st.sampled_from([*map(syntax_of, LAUNCHERS)]).flatmap(
        lambda one: spoken(one).map(lambda flags: [*PROGRAMS[one.name], *flags])
    )
)
def test_no_flag_goes_away_without_a_note(words: list[str]) -> None:
    command = read_command([*words, "t.py"])
    about = " ".join(note.about for note in translate(command).notes)
    last = {one.flag.key: one for one in command.given}
    assert [one.written for one in last.values() if one.written not in about] == []


@given(
    st.sampled_from([*map(syntax_of, LAUNCHERS)]).flatmap(
        lambda one: spoken(one).map(lambda flags: [*PROGRAMS[one.name], *flags])
    ),
    st.lists(st.text()),
)
def test_the_scripts_own_words_arrive_as_they_are(words: list[str], args: list[str]) -> None:
    line = translate(read_command([*words, "t.py", "start", *args])).line
    if not any(word.startswith("--deepspeed") for word in args):
        assert shlex.split(line)[-len(args) - 1 :] == ["start", *args]


PARTS = st.sampled_from(
    [
        *(
            "torchrun",
            "accelerate launch",
            "deepspeed",
            "python -m",
            "uv run",
            "srun -n2",
            "env",
            "bash -c",
            "swift sft",
        ),
        *(
            "t.py",
            "--nnodes",
            "--node_rank",
            "--hostfile",
            "--deepspeed",
            "$A",
            '"$B"',
            "'",
            '"',
            "(",
            ")",
            "$(",
            "`",
        ),
        *(
            "&&",
            "|",
            ">",
            "2>&1",
            "#",
            "\\",
            "\n",
            "A=1",
            "--",
            "-m",
            "x=$Y",
            "{a,b}",
            "~",
            "*",
            "=",
            "1",
            "é",
            "if",
        ),
    ]
)


@given(st.lists(PARTS, min_size=2, max_size=9))
def test_any_text_is_translated_or_explained(words: list[str]) -> None:
    with contextlib.suppress(ZlaunchError):
        translate_command([" ".join(words)], {})
    with contextlib.suppress(ZlaunchError):
        translate_command(words, {})


_LOOP = "from accelerate import Accelerator\naccelerator = Accelerator()\naccelerator.prepare(model)\n"


@pytest.mark.parametrize(
    ("source", "option", "is_told"),
    [
        (_LOOP, " --set gradient_clipping=0", True),
        (f"{_LOOP}accelerator.clip_grad_norm_(model.parameters(), 0.5)\n", "", True),
        ("from transformers import Trainer, TrainingArguments\nTrainer(m, TrainingArguments())\n", "", False),
    ],
    ids=["clips nothing", "clips", "the Trainer clips at 1.0"],
)
def test_a_loop_that_clips_no_gradients_clips_none_with_zlaunch(
    source: str, option: str, is_told: bool, tmp_path: Path
) -> None:
    (tmp_path / "loop.py").write_text(source)
    found = translate_command(["accelerate", "launch", "--multi_gpu", str(tmp_path / "loop.py")], {})
    assert ("--set" in found.line, option in found.line) == (bool(option), True)
    assert any("gradient_clipping=0" in note.text for note in found.notes) == is_told


OWN_CONFIGS = {
    "an engine": "import deepspeed\ndeepspeed.initialize(config={'zero_optimization': {'stage': 3}}, model=m)\n",
    "the Trainer": "TrainingArguments('o', deepspeed='own.json')\n",
    "accelerate": "from accelerate import *\nAccelerator(deepspeed_plugin=DeepSpeedPlugin('own.json'))\n",
}


@each("name", OWN_CONFIGS)
@each("launcher", ("deepspeed", "torchrun", "accelerate launch"))
def test_a_script_with_its_own_ds_config_gets_no_stage(
    name: str, launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.py").write_text(OWN_CONFIGS[name])
    found = translated(f"{launcher} t.py")
    assert "--stage" not in found.line
    assert not any("stage" in note.text for note in found.notes)


def test_accelerate_is_still_told_the_precision_of_a_script_with_its_own_ds_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.py").write_text(OWN_CONFIGS["accelerate"])
    found = translated("accelerate launch --num_processes 2 --mixed_precision bf16 t.py")
    assert found.line == "ACCELERATE_MIXED_PRECISION=bf16 zlaunch train t.py --gpus 2"


def test_every_flag_of_hosts_is_answered_for_once() -> None:
    text = "deepspeed --hostfile=hf --launcher SLURM --master_addr n0 t.py --deepspeed d.json"
    about = [note.about for note in translate_command([text], {"SLURM_JOB_ID": "7"}).notes]
    assert sorted(about) == sorted(set(about))


def test_a_text_that_ssh_takes_apart_is_refused_with_how_to_quote_it() -> None:
    with pytest.raises(WrongUsage) as caught:
        translate_command(["ssh -p 22 h bash -c 'torchrun t.py --bf16'"], {})
    assert caught.value.hint == "quote twice: `ssh -p 22 h \"bash -c '…'\"`"
