#!/bin/sh
# Repeats this run by hand. Written by zlaunch 0.1.0.
cd /folder || exit
PATH=/venv/bin:$PATH
export PATH=/venv/bin:$PATH
export OMP_NUM_THREADS=1
export DS_ACCELERATOR=cpu
export PYTHONWARNINGS=ignore::FutureWarning:torch.distributed.c10d_logger
torchrun --standalone --nproc-per-node=2 --log-dir=/dev/null train.py sleep --bf16 --use_cpu --deepspeed /folder/runs/lost/ds_config.json
