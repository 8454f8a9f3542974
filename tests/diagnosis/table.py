"""Code → runs that died of it."""

import signal
from collections.abc import Mapping
from dataclasses import replace

from tests.diagnosis.deaths import (
    BUS_IN_A_LOADER,
    CUDA_OOM,
    FORECAST,
    GIB,
    GLOO_CLOSED,
    GLOO_TIMEOUT,
    IN_USE,
    NAN,
    SEGFAULT,
    SITE,
    WATCHDOG,
    built,
    frame,
    kills,
    machine,
    printed,
    raised,
    run,
    stopped,
)
from zlaunch.diagnosis.evidence import Evidence, HostEvidence, RankEvidence, SaveEvidence
from zlaunch.diagnosis.stall import StallEvidence

KILLED = printed("Loading weights:  40%\n", -signal.SIGKILL, rank=0, phase="loading the model", step=0)
OOM_HOST = machine(memory_bytes=16 * GIB, memory_available_bytes=GIB // 4, cgroup_limit_bytes=None)
OOM_CGROUP = machine(memory_bytes=64 * GIB, cgroup_bytes=4 * GIB, cgroup_limit_bytes=4 * GIB)
CPU_OFFLOAD = {"stage": 3, "offload": {"optimizer": "cpu", "param": "cpu"}}
PIN = frame(f"{SITE}/deepspeed/runtime/zero/stage3.py", 900, "f", "get_accelerator().pin_memory(buffer)")
INIT = frame(f"{SITE}/deepspeed/runtime/engine.py", 1400, "__init__", "self._configure()")
READER = frame(
    f"{SITE}/deepspeed/runtime/config.py", 511, "_initialize_params", "assert not (self.float16_config"
)
SWAP = frame(
    f"{SITE}/deepspeed/runtime/swap_tensor/partitioned_optimizer_swapper.py",
    84,
    "s",
    "assert pinned_buffers is not None",
)
ACCELERATOR = frame(f"{SITE}/accelerate/accelerator.py", 2374, "_prepare_deepspeed", "x.get('device')")
NVME = {"device": "nvme"}
EXTENSIONS = "Using /tmp/ext/py311_cpu as PyTorch extensions root...\n"
WEIGHTS_ONLY = (
    "Weights only load failed. This file can still be loaded, to do so you have two options, do those steps only if "
    "you trust the source of the checkpoint. \n\t(2) Alternatively, to load with `weights_only=True` please check the "
    "recommended steps in the following error message.\n\tWeightsUnpickler error: Unsupported global: GLOBAL "
    "numpy._core.multiarray._reconstruct was not an allowed global by default.\n\nCheck the documentation of "
    "torch.load to learn more about types accepted by default with weights_only"
)
AIO = (
    " [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.\n"
    " [WARNING]  async_io: please install the libaio-dev package with apt\n"
)


def oom(free: str = "813.12 MiB", between: str = "1.21 GiB", others: str = "", rank: int = 0) -> RankEvidence:
    return raised(
        "OutOfMemoryError",
        CUDA_OOM.format(free=free, between=between, others=others),
        rank=rank,
        phase="forward",
    )


def exiting(rank: int = 0, returncode: int = 0) -> RankEvidence:
    return printed("done\n", returncode, rank, phase="exiting", step=100)


def waiting(stall: StallEvidence, *ranks: RankEvidence) -> Evidence:
    return run(*ranks, stall=stall)


EMBEDDING = frame(
    f"{SITE}/torch/nn/functional.py", 2567, "embedding", "return torch.embedding(weight, input)"
)
PADDING = frame(
    f"{SITE}/transformers/modeling_utils.py", 4321, "from_pretrained", "model = cls(config)"
) + frame(
    f"{SITE}/transformers/modeling_utils.py",
    2345,
    "_init_weights",
    "init.zeros_(module.weight[module.padding_idx])",
)
OF_NO_SIZE = "The size of tensor a (8) must match the size of tensor b (0) at non-singleton dimension 1"
BITS = frame(
    f"{SITE}/bitsandbytes/optim/optimizer.py", 291, "step", "self.update_step(group, p, gindex, pindex)"
)
DUPLICATE = (
    "NCCL error in: NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
    "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000"
)
FINISHED = printed("done 0\n", 0, phase="exiting", step=4)
DISCARDING = replace(exiting(), heartbeat={"discarded_backwards": 30, "backwards_of_step": 4})
CREATING = frame(
    f"{SITE}/deepspeed/runtime/engine.py",
    2751,
    "_configure_zero_optimizer",
    "optimizer = Stage3ZeroOptimizer(",
)
ZERO_1 = f"{SITE}/deepspeed/runtime/zero/stage_1_and_2.py"
GROUP = "param_dtype = self.bit16_groups[i][0].dtype"
ZERO_UTILS = f"{SITE}/deepspeed/runtime/zero/utils.py"
ONE_TYPE = "assert len(set(t.dtype for t in tensors)) == 1"
SKIPPING = replace(exiting(), heartbeat={"taken_steps": 40, "skipped_steps": 40, "loss": 0.007})

DEATHS: Mapping[str, tuple[Evidence, ...]] = {
    "host-out-of-memory": (
        run(
            KILLED,
            stopped(),
            machines=OOM_HOST,
            oom_kills=kills(1, 1),
            job={**CPU_OFFLOAD, "forecast": FORECAST},
        ),
        run(KILLED, machines=OOM_CGROUP, oom_kills=kills(1, None)),
        run(
            replace(KILLED, returncode=None),
            machines=OOM_CGROUP,
            oom_kills=kills(1),
            launcher_returncode=-signal.SIGKILL,
        ),
    ),
    "pinned-memory": (
        run(raised("AcceleratorError", "CUDA error: out of memory", PIN)),
        run(
            raised(
                "RuntimeError",
                "pin failed",
                "mlock failed to allocate 1048576 bytes with error no 12 msg Cannot allocate memory\n",
            )
        ),
    ),
    "gpu-out-of-memory": (
        run(oom(), stopped(), job={"micro_batch": 4, "stage": 2}),
        run(
            raised(
                "RuntimeError",
                "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity; 21.10 GiB already allocated; 11.00 MiB free; 22.00 GiB reserved in total by PyTorch)",
            )
        ),
        run(raised("AcceleratorError", "CUDA error: out of memory")),
    ),
    "host-allocation-failed": (
        run(
            raised(
                "RuntimeError",
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)",
            )
        ),
        run(
            raised(
                "_ArrayMemoryError",
                "Unable to allocate 8.00 GiB for an array with shape (1073741824,) and data type float64",
            )
        ),
        run(raised("MemoryError", "")),
        run(raised("OSError", "[Errno 12] Cannot allocate memory")),
        run(
            printed(
                "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
                -6,
            )
        ),
    ),
    "too-many-processes": (run(raised("RuntimeError", "can't start new thread")),),
    "shared-memory-full": (
        run(raised("RuntimeError", BUS_IN_A_LOADER), machines=machine(shm_bytes=64 << 20, shm_free_bytes=0)),
        run(
            printed("", -signal.SIGBUS),
            machines=machine(shm_bytes=64 << 20, shm_free_bytes=4096, disk_free_bytes=GIB),
        ),
    ),
    "disk-full": (
        run(raised("OSError", "[Errno 28] No space left on device"), machines=machine(disk_free_bytes=0)),
        run(
            raised(
                "SafetensorError",
                "Error while serializing: I/O error: No space left on device (os error 28)",
                phase="saving",
            )
        ),
        run(
            raised(
                "RuntimeError",
                "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534",
                phase="saving",
            )
        ),
        run(
            raised(
                "RuntimeError",
                "[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/3: file write failed",
            )
        ),
        run(raised("OSError", "[Errno 122] Disk quota exceeded")),
        run(printed("", -signal.SIGBUS), machines=machine(shm_free_bytes=GIB, disk_free_bytes=0)),
        run(printed("x" * 500 + "\n" + "x" * 80), machines=machine(disk_free_bytes=327_680)),
        run(
            printed(
                "Traceback (most recent call last):\n"
                + frame("/home/ann/train.py", 3, "<module>", "f.write(x)")
                + "OSError: [Errno 28] No space left on device\n"
            )
        ),
    ),
    "too-many-files": (run(raised("OSError", "[Errno 24] Too many open files: '/data/shard-01'")),),
    "port-taken": (
        run(
            raised("DistNetworkError", IN_USE, phase="joining the process group"),
            raised(
                "DistNetworkError",
                "The client socket has timed out after 4000ms while trying to connect to (127.0.0.1, 29715).",
                rank=1,
                time=90.0,
            ),
        ),
        run(
            launcher_log=f"Traceback (most recent call last):\ntorch.distributed.DistNetworkError: {IN_USE}\n"
        ),
    ),
    "collective-mismatch": (
        run(
            raised(
                "RuntimeError",
                "Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE, TensorShape=[10], TensorDtypes=Float), but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=BROADCAST, TensorShape=[10], TensorDtypes=Float).",
            )
        ),
    ),
    "collective-timeout": (
        run(raised("RuntimeError", GLOO_TIMEOUT), stopped(phase="saving", step=6)),
        run(
            raised("RuntimeError", "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 4000 ms"), stopped()
        ),
        run(
            raised("RuntimeError", "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 4000 ms"),
            raised(
                "RuntimeError",
                "Rank 1 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.",
                rank=1,
            ),
            stopped(2),
        ),
        run(
            printed(WATCHDOG.format(rank=0, number=1523, kind="ALLREDUCE"), -6),
            printed(WATCHDOG.format(rank=1, number=1520, kind="_ALLGATHER_BASE"), -6, rank=1),
            printed(WATCHDOG.format(rank=2, number=1523, kind="ALLREDUCE"), -6, rank=2),
        ),
        waiting(
            StallEvidence(70.0, 7, {0: "train.py:9 main", 1: "data.py:4 load"}, (1,)),
            raised("RuntimeError", GLOO_TIMEOUT),
            stopped(),
        ),
    ),
    "rendezvous-failed": (
        run(
            raised(
                "DistNetworkError",
                "The client socket has timed out after 4000ms while trying to connect to (127.0.0.1, 29713).",
            )
        ),
        run(raised("DistStoreError", "Timed out after 5 seconds waiting for clients. 1/2 clients joined.")),
    ),
    "uneven-ranks": (
        run(FINISHED, raised("RuntimeError", GLOO_CLOSED, rank=1)),
        run(FINISHED, raised("RuntimeError", GLOO_TIMEOUT, rank=1)),
        run(FINISHED, raised("RuntimeError", GLOO_CLOSED, rank=1, phase="saving", step=4)),
    ),
    "connection-lost": (run(raised("RuntimeError", GLOO_CLOSED), stopped()),),
    "network-error": (
        run(
            raised(
                "DistBackendError",
                "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\nError while creating shared memory segment nccl-x (size 9637888)",
            )
        ),
    ),
    "host-unreachable": (
        run(
            launcher_log="RuntimeError: Using hostfile at /job/hostfile but host=w2 was not reachable via ssh. If you are running with a single node please remove /job/hostfile or setup passwordless ssh.\n",
            job={"launcher": "deepspeed"},
        ),
    ),
    "host-lost": (
        replace(
            run(
                printed("", 0, rank=0, stopped_by=15),
                printed("", rank=1, host="10.0.0.2", node=1, returncode=None),
            ),
            hosts=(
                HostEvidence("w1", 105.0, 0, 15),
                HostEvidence("w2", 100.0, lost="`ssh` ended with status 255", said="Broken pipe", node=1),
            ),
        ),
        replace(
            run(job={"reach": "joined"}),
            hosts=(HostEvidence("w1", 100.0, lost="it closed the connection"),),
        ),
        replace(run(), hosts=(HostEvidence("w1", 100.0, -9),)),
        replace(run(), hosts=(HostEvidence("w1", 100.0, 1, error="Permission denied: /runs/a"),)),
    ),
    "launcher-missing": (run(launcher_log="RuntimeError: launcher 'pdsh' not installed.\n"),),
    "no-such-slot": (
        run(launcher_log="ValueError: No slot '4' specified on host 'localhost'\n"),
        run(launcher_log="ValueError: invalid literal for int() with base 10: 'GPU-5a6f'\n"),
    ),
    "stale-build-lock": (
        waiting(StallEvidence(65.0, 0, {0: "utils/file_baton.py:49 wait"}), stopped(0, phase="starting")),
        waiting(
            StallEvidence(65.0, 0, {0: "file_baton.py:42 wait", 1: "file_baton.py:42 wait"}),
            stopped(0, phase="building ops", log=EXTENSIONS),
            stopped(1, phase="building ops"),
        ),
        waiting(StallEvidence(65.0), stopped(0, phase="initializing DeepSpeed", log=EXTENSIONS)),
        waiting(
            StallEvidence(
                65.0, 0, {0: "_core/_acquire.py:177 _poll_until_acquired, called from train.py:3 main"}
            ),
            stopped(0, phase="building ops", log=EXTENSIONS),
        ),
    ),
    "cuda-home-missing": (
        run(raised("MissingCUDAException", "CUDA_HOME does not exist, unable to compile CUDA op(s)")),
        run(
            raised(
                "OSError",
                "CUDA_HOME environment variable is not set. Please set it to your CUDA install root.",
            )
        ),
    ),
    "cuda-mismatch": (
        run(
            raised(
                "CUDAMismatchException",
                ">- DeepSpeed Op Builder: Installed CUDA version 12.2 does not match the version torch was compiled with 13.0, unable to compile cuda/cpp extensions without a matching cuda version.",
            )
        ),
    ),
    "libaio-missing": (
        run(
            raised(
                "RuntimeError",
                "Unable to JIT load the async_io op due to it not being compatible due to hardware/software issue. None",
                log=AIO,
            )
        ),
    ),
    "ninja-missing": (
        run(raised("RuntimeError", "Unable to JIT load the cpu_adam op due to ninja not being installed.")),
        run(raised("RuntimeError", "Ninja is required to load C++ extensions (pip install ninja to get it)")),
    ),
    "op-build-failed": (
        run(built("RuntimeError", "DeepSpeedCPUAdam requires the cpu_adam op, which failed to build/load.")),
        run(built("AttributeError", "'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'")),
    ),
    "op-not-loadable": (
        run(
            raised(
                "ImportError",
                "/tmp/ext/torch_extensions/py311_cpu/async_io/async_io.so: undefined symbol: _ZN22deepspeed_pin_tensor_t",
            )
        ),
    ),
    "loss-scale-collapsed": (
        run(
            raised(
                "Exception",
                "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
                heartbeat={"skipped_steps": 5, "loss": 9.5},
            ),
            job={"precision": "fp16"},
        ),
    ),
    "loss-not-a-number": (
        run(
            printed("", 0, heartbeat={"loss": 5.9, "grad_norm": float("inf"), "skipped_steps": 4}),
            launcher_returncode=0,
        ),
        run(printed("", 0, heartbeat={"loss": NAN, "learning_rate": 0.5}), launcher_returncode=0),
        run(raised("ValueError", "loss is nan at step 7", heartbeat={"loss": NAN})),
        run(
            raised(
                "RuntimeError",
                "probability tensor contains either `inf`, `nan` or element < 0",
                heartbeat={"grad_norm": float("inf")},
            )
        ),
        replace(run(replace(exiting(0, -15), heartbeat={"loss": NAN}, stopped_by=15)), is_diverged=True),
    ),
    "steps-skipped": (
        run(SKIPPING, exiting(1), job={"stage": 1, "precision": "bf16"}, launcher_returncode=0),
    ),
    "gradients-discarded": (run(DISCARDING, exiting(1), job={"stage": 2}, launcher_returncode=0),),
    "config-disagrees": (
        run(
            raised(
                "ValueError",
                "Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n- ds train_micro_batch_size_per_gpu=4 vs hf per_device_train_batch_size=8\nThe easiest method is to set these DeepSpeed config values to 'auto'.",
            )
        ),
    ),
    "batch-mismatch": (
        run(
            raised(
                "AssertionError",
                "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 16 != 4 * 1 * 1",
                READER,
            )
        ),
    ),
    "removed-setting": (
        run(
            raised(
                "DeepSpeedConfigError",
                "Elastic training has been removed; the 'elasticity' configuration block is no longer supported. Set train_batch_size / train_micro_batch_size_per_gpu / gradient_accumulation_steps directly. ",
            ),
            job={"config": {"elasticity": {"enabled": False}}},
        ),
    ),
    "no-hidden-size": (
        run(
            raised(
                "ValueError",
                "The model's config file has neither `hidden_size` nor `hidden_sizes` entry, therefore it's not possible to automatically fill out the following `auto` entries in the DeepSpeed config file: ['zero_optimization.reduce_bucket_size']. You can fix that by replacing `auto` values for these keys with an integer value of your choice.",
            )
        ),
    ),
    "bad-warmup": (run(raised("ValueError", "warmup_num_steps must be a positive integer, got 0")),),
    "client-optimizer": (
        run(
            raised(
                "ZeRORuntimeException",
                "You are using ZeRO-Offload with a client provided optimizer (<class 'torch.optim.adamw.AdamW'>) which in most cases will yield poor performance.",
            )
        ),
    ),
    "untested-optimizer": (
        run(
            raised(
                "AssertionError",
                'You are using an untested ZeRO Optimizer. Please add <"zero_allow_untested_optimizer": true> in the configuration file to use it.',
            )
        ),
    ),
    "no-optimizer": (
        run(raised("AssertionError", "zero stage 2 requires an optimizer")),
        run(raised("AssertionError", "must provide optimizer during init in order to use backward")),
        run(
            raised(
                "AttributeError",
                "'DeepSpeedZeRoOffload' object has no attribute 'set_gradient_accumulation_boundary'",
            )
        ),
        run(
            raised(
                "AssertionError",
                "",
                frame(
                    f"{SITE}/deepspeed/runtime/bf16_optimizer.py",
                    562,
                    "get_grads_for_norm",
                    "assert len(self.bf16_groups) == len(self.optimizer.param_groups)",
                ),
            )
        ),
    ),
    "optimizer-on-gpu": (
        run(
            raised(
                "AssertionError",
                "CPUAdam param is on cuda:0 and must be 'cpu', make sure you enabled 'offload_optimizer': 'cpu' in your ZeRO config.",
            ),
            job={"stage": 0},
        ),
    ),
    "no-nvme-path": (
        run(
            raised("TypeError", "expected str, bytes or os.PathLike object, not NoneType", INIT),
            job={"config": {"zero_optimization": {"offload_optimizer": NVME}}},
        ),
        run(
            raised(
                "AssertionError", '"nvme_path" in DeepSpeed Config cannot be None if remote device is nvme'
            ),
            job={"config": {"zero_optimization": {"offload_param": NVME}}},
        ),
    ),
    "too-few-buffers": (
        run(
            raised("AssertionError", "", SWAP),
            job={"config": {"zero_optimization": {"offload_optimizer": {"buffer_count": 3}}}},
        ),
        run(
            raised(
                "AssertionError",
                "PipelinedOptimizerSwapper ran out of swap buffers, try increasing 'buffer_count'",
            )
        ),
    ),
    "null-offload": (
        run(
            raised("AttributeError", "'NoneType' object has no attribute 'get'", ACCELERATOR),
            job={"config": {"zero_optimization": {"offload_optimizer": None}}},
        ),
    ),
    "precision-unsupported": (run(raised("ValueError", "Type fp16 is not supported on your device.")),),
    "no-sync": (
        run(
            raised(
                "AssertionError",
                "no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2",
            ),
            job={"stage": 2},
        ),
    ),
    "reduced-twice": (
        run(
            raised(
                "AssertionError",
                "The parameter 12 has already been reduced.             Gradient computed twice for this partition.             Multiple gradient reductions are currently not supported",
            ),
            job={"gradient_checkpointing": True},
        ),
    ),
    "nothing-trainable": (
        run(
            raised("IndexError", "list index out of range", CREATING + frame(ZERO_1, 442, "__init__", GROUP)),
            job={"stage": 2},
        ),
        run(raised("AssertionError", "", CREATING + frame(ZERO_UTILS, 218, "defragment", ONE_TYPE))),
        run(raised("ValueError", "optimizer got an empty parameter list")),
    ),
    "scalar-parameter": (
        run(
            raised(
                "RuntimeError",
                "self.dim() cannot be 0 to view Float as Byte (different element sizes)",
                frame(f"{SITE}/deepspeed/runtime/engine.py", 2059, "_broadcast_model", "dist.broadcast("),
            )
        ),
        run(
            raised(
                "RuntimeError",
                "self.dim() cannot be 0 to view BFloat16 as Byte (different element sizes)",
                frame(
                    f"{SITE}/deepspeed/runtime/zero/partition_parameters.py",
                    1204,
                    "_zero_init_param",
                    "dist.broadcast(param.data.view(torch.uint8), 0, partition_group)",
                ),
            )
        ),
    ),
    "backward-without-engine": (
        run(
            raised(
                "RuntimeError",
                "Direct calls to tensor.backward() are not supported in this configuration. This occurs when either: (1) your PyTorch version lacks required internal APIs, or (2) using ZeRO stage 0. Please use engine.backward(loss) instead.",
            )
        ),
        run(
            raised(
                "RuntimeError",
                "Loss scaling is required for this configuration, but backward() was called directly without scaling the loss. Please use one of the following: 1. engine.backward(loss) 2. engine.scale(loss).backward()",
            )
        ),
    ),
    "inference-needs-stage-3": (
        run(
            raised(
                "ValueError",
                "ZeRO inference only makes sense with ZeRO Stage 3 - please adjust your config",
            ),
            job={"stage": 2},
        ),
    ),
    "trainer-argument-missing": (
        run(
            raised(
                "TypeError",
                "TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'",
            )
        ),
        run(raised("TypeError", "Trainer.__init__() got an unexpected keyword argument 'tokenizer'")),
    ),
    "config-refused": (
        run(
            raised(
                "ValidationError",
                "1 validation error for DeepSpeedZeroConfig\noffload_optimiser\n  Extra inputs are not permitted [type=extra_forbidden, input_value={'device': 'cpu'}, input_type=dict]\n    For further information visit https://errors.pydantic.dev/2.14/v/extra_forbidden",
            )
        ),
        run(raised("AssertionError", "bfloat16 and fp16 modes cannot be simultaneously enabled", READER)),
        run(raised("DeepSpeedConfigError", "checkpoint::parallel_write::pipeline_stage must be a boolean")),
    ),
    "autotuning-left-on": (
        run(
            printed("", 0, step=6, heartbeat={"steps": 100}),
            launcher_returncode=0,
            job={"config": {"autotuning": {"enabled": True}}},
        ),
    ),
    "other-world-size": (
        run(
            raised(
                "ZeRORuntimeException",
                "The checkpoint being loaded used a DP world size of 4 but the current world size is 2. Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported.",
            )
        ),
    ),
    "sharded-weights": (
        run(
            raised(
                "RuntimeError",
                "Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for model.embed_tokens.weight: copying a param with shape torch.Size([0]) from checkpoint, the shape in current model is torch.Size([512, 64]).",
            )
        ),
    ),
    "checkpoint-missing": (
        run(
            raised("FileNotFoundError", "[Errno 2] No such file or directory: '/tmp/nope/trainer_state.json'")
        ),
        run(raised("ValueError", "Can't find a valid checkpoint at out/checkpoint-100")),
        run(raised("ValueError", "No valid checkpoint found in output directory (out)")),
        run(raised("ValueError", "[deepspeed] failed to resume from checkpoint out/checkpoint-5")),
    ),
    "checkpoint-corrupt": (
        run(
            raised(
                "RuntimeError",
                "PytorchStreamReader failed reading zip archive: failed finding central directory. This is an internal miniz error.",
            )
        ),
        run(raised("SafetensorError", "Error while deserializing header: header too large")),
        run(
            raised(
                "EOFError",
                "",
                frame(f"{SITE}/torch/_weights_only_unpickler.py", 327, "load", "raise EOFError"),
                phase="resuming",
            )
        ),
    ),
    "not-downloaded": (
        run(raised("UnpicklingError", "invalid load key, 'v'.", phase="resuming")),
        run(
            raised("SafetensorError", "Error while deserializing header: header too large"),
            job={
                "pointers": {"base/model.safetensors": "it is a Git LFS pointer; `git lfs pull` downloads it"}
            },
        ),
    ),
    "torch-too-old-to-load": (
        run(
            raised(
                "ValueError",
                "Due to a serious vulnerability issue in `torch.load`, even with `weights_only=True`, we now require users to upgrade torch to at least v2.6 in order to use the function.",
                phase="resuming",
            )
        ),
    ),
    "weights-only-refused": (
        run(raised("UnpicklingError", WEIGHTS_ONLY, frame("train.py", 9, "main", "torch.load(FILE)"))),
        run(
            raised(
                "UnpicklingError",
                WEIGHTS_ONLY,
                frame(
                    f"{SITE}/deepspeed/runtime/checkpoint_engine/fast_checkpoint_engine.py",
                    43,
                    "load",
                    "sd = torch.load(path, map_location=map_location)",
                ),
                phase="resuming",
            )
        ),
        run(
            raised(
                "UnpicklingError",
                WEIGHTS_ONLY,
                frame(
                    f"{SITE}/transformers/trainer.py",
                    3867,
                    "_load_rng_state",
                    "checkpoint_rng_state = torch.load(rng_file, weights_only=True)",
                ),
                phase="resuming",
            )
        ),
    ),
    "optimizer-of-another-kind": (
        run(
            raised(
                "KeyError",
                "'momentum'",
                frame(f"{SITE}/torch/optim/sgd.py", 131, "step", 'momentum=group["momentum"],'),
            )
        ),
        run(
            raised(
                "KeyError",
                "'bias_correction'",
                frame(
                    f"{SITE}/deepspeed/ops/adam/cpu_adam.py", 185, "step", "group['bias_correction'], p.data,"
                ),
            )
        ),
    ),
    "checkpoint-of-another-model": (
        run(
            raised(
                "RuntimeError",
                'Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "b.weight".',
            )
        ),
    ),
    "local-rank-differs": (
        run(
            raised(
                "AssertionError",
                "Mismatch in local rank setting, args.local_rank=0 but env['LOCAL_RANK']=1.",
                rank=1,
            ),
            stopped(),
        ),
    ),
    "local-rank-refused": (
        run(
            printed(
                "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --local_rank=0\n",
                2,
                phase="starting",
            ),
            job={"launcher": "deepspeed"},
        ),
    ),
    "wrong-arguments": (
        run(
            printed(
                "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --lrr 1\n",
                2,
                phase="starting",
            )
        ),
        run(
            raised(
                "ValueError", "Some specified arguments are not used by the HfArgumentParser: ['--lrr', '3']"
            )
        ),
    ),
    "script-missing": (
        run(
            printed(
                "/usr/bin/python: can't open file '/home/ann/trian.py': [Errno 2] No such file or directory\n",
                2,
            )
        ),
    ),
    "not-launched": (run(raised("ModuleNotFoundError", "No module named 'mpi4py'", INIT)),),
    "import-moved": (
        run(raised("ModuleNotFoundError", "No module named 'transformers.deepspeed'")),
        run(
            raised(
                "ImportError",
                "cannot import name 'AdamW' from 'transformers' (/opt/site-packages/transformers/__init__.py)",
            )
        ),
    ),
    "module-missing": (
        run(raised("ModuleNotFoundError", "No module named 'flash_attn'")),
        run(
            printed(
                "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"/home/ann/train.py\", line 3, in <module>\n[rank0]:     import mine\n[rank0]: ModuleNotFoundError: No module named 'mine.own'\n"
            )
        ),
    ),
    "no-such-device": (
        run(
            raised(
                "AcceleratorError",
                "CUDA error: invalid device ordinal\nCUDA kernel errors might be asynchronously reported at some other API call",
            )
        ),
    ),
    "no-gpu": (
        run(raised("AssertionError", "Torch not compiled with CUDA enabled")),
        run(raised("RuntimeError", "No CUDA GPUs are available")),
        run(raised("RuntimeError", "Cannot access accelerator device when none is available.")),
        run(raised("AttributeError", "module 'torch._C' has no attribute '_cuda_setDevice'")),
    ),
    "device-side-assert": (
        run(
            raised(
                "AcceleratorError",
                "CUDA error: device-side assert triggered",
                log="/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: [12,0,0], thread: [64,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n",
            )
        ),
    ),
    "gpu-fault": (run(raised("AcceleratorError", "CUDA error: an illegal memory access was encountered")),),
    "hub-refused": (
        run(
            raised(
                "OSError",
                "You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/meta-llama/Llama-2-7b-hf.\n401 Client Error.",
            )
        ),
    ),
    "hub-unreachable": (
        run(
            raised(
                "OSError",
                "We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files.\nCheck your internet connection or see how to run the library in offline mode at 'https://huggingface.co/docs/transformers/installation#offline-mode'.",
            )
        ),
        run(
            raised("ConnectionError", "Couldn't reach 'wikitext-not-there' on the Hub (OfflineModeIsEnabled)")
        ),
    ),
    "model-not-found": (
        run(
            raised(
                "OSError",
                "Repo id must be in the form 'repo_name' or 'namespace/repo_name': './nope/nope/nope'. Use `repo_type` argument if needed.",
            )
        ),
        run(
            raised(
                "OSError",
                "llama is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
            )
        ),
    ),
    "partitioned-parameter": (
        run(raised("RuntimeError", "'weight' must be 2-D", EMBEDDING, phase="starting"), job={"stage": 3}),
        run(
            raised("IndexError", "index 0 is out of bounds for dimension 0 with size 0", PADDING),
            job={"stage": 3},
        ),
        run(
            raised("RuntimeError", OF_NO_SIZE, frame("/home/ann/train.py", 7, "f", "x + layer.bias")),
            job={"stage": 3},
        ),
    ),
    "eight-bit-optimizer": (
        run(raised("RuntimeError", "All input tensors need to be on the same GPU", BITS)),
    ),
    "duplicate-gpu": (run(raised("DistBackendError", DUPLICATE)),),
    "script-exception": (
        run(raised("KeyError", "'x'"), raised("KeyError", "'x'", rank=1, time=100.5)),
        run(
            raised(
                "KeyError",
                "'x'",
                returncode=-signal.SIGABRT,
                log="terminate called without an active exception\n",
            ),
            raised("RuntimeError", GLOO_CLOSED, rank=1, time=99.0),
        ),
        run(
            printed(
                '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/home/ann/train.py", line 13, in <module>\n[rank0]:     raise KeyError("x")\n[rank0]: KeyError: \'x\'\n'
            )
        ),
        run(raised("KeyError", "'x'", heartbeat={"loss": NAN})),
    ),
    "stalled": (
        waiting(
            StallEvidence(65.0, 0, {0: "python3.11/subprocess.py:1209 communicate"}),
            stopped(0, phase="building ops"),
        ),
        waiting(
            StallEvidence(70.0, 7, {0: "train.py:9 main", 1: "data.py:4 load"}, (1,)), stopped(0), stopped(1)
        ),
    ),
    "preempted": (
        run(printed("", 0), save=SaveEvidence("SIGUSR1", 7, checkpoint="out/checkpoint-7")),
        run(stopped(0), stopped_by=15, save=SaveEvidence("SIGTERM", 7, checkpoint="out/checkpoint-7")),
        run(printed("", 0), save=SaveEvidence("SIGUSR1", 7, checkpoint="out/checkpoint-7", resumed_step=9)),
    ),
    "stopped": (
        run(
            stopped(0), stopped_by=15, save=SaveEvidence("SIGTERM", why_not="it had not taken its first step")
        ),
        run(stopped(0), stopped_by=15, save=SaveEvidence("SIGTERM", 7, within=25.0)),
        run(stopped(0), stopped_by=2, save=SaveEvidence("SIGUSR1", 7, checkpoint="out/checkpoint-7")),
        run(stopped(0, stopped_by=2, returncode=-2), stopped_by=2),
        run(stopped(0, stopped_by=15, returncode=-15), stopped_by=15, command="zlaunch runs stop"),
        run(
            stopped(0, stopped_by=2, returncode=-2),
            stopped_by=2,
            stall=StallEvidence(70.0, 7, {0: "train.py:9 main"}, ended_job=False),
        ),
        run(raised("KeyboardInterrupt", ""), stopped_by=2),
        run(printed("", -9), stopped_by=15),
    ),
    "stumbled": (run(exiting(0), exiting(1, -11)),),
    "crashed": (
        run(printed("", -11, stacks=SEGFAULT), stopped()),
        run(printed(SEGFAULT, -11)),
        run(
            printed(
                "terminate called after throwing an instance of 'std::runtime_error'\n  what():  bad\n", -6
            )
        ),
        run(printed("", -signal.SIGBUS), machines=machine(shm_free_bytes=GIB, disk_free_bytes=GIB)),
    ),
    "killed": (
        run(KILLED, stopped(), oom_kills=kills(0, 3)),
        run(KILLED, stopped(), machines=OOM_HOST, oom_kills=kills(None, 1)),
        run(KILLED, stopped(), oom_kills=kills(None, None)),
        run(replace(KILLED, log="CUDA out of memory. Tried to allocate 2.00 GiB; trying again\n")),
        run(KILLED, raised("RuntimeError", GLOO_CLOSED, rank=1, time=1.0)),
    ),
    "ended-by-signal": (
        run(printed("step 3\n", -signal.SIGUSR1)),
        run(printed("", -signal.SIGTERM)),
        run(raised("KeyboardInterrupt", "", returncode=-signal.SIGINT), stopped(1)),
    ),
    "rank-lost": (
        run(
            replace(printed("step 3\n"), returncode=None, host="w2"),
            raised("RuntimeError", GLOO_CLOSED, rank=1),
        ),
    ),
    "ended-by-status": (
        run(printed("no data, leaving\n", 3)),
        run(printed("no data, leaving\n", 3), machines=machine(disk_free_bytes=2 << 20)),
    ),
    "launcher-killed": (run(stopped(0), stopped(1), launcher_returncode=-9),),
    "launcher-failed": (
        run(
            launcher_log='Traceback (most recent call last):\n  File "x.py", line 3, in main\nValueError: Cannot specify num_nodes/gpus with include/exclude\n'
        ),
    ),
    "finished": (
        run(
            printed("", 0, heartbeat={"loss": 5.9, "grad_norm": float("inf")}),
            launcher_returncode=0,
            job={"precision": "fp16"},
        ),
        run(printed("done\n", 0), printed("", 0, rank=1), launcher_returncode=0),
    ),
    "unknown": (run(launcher_returncode=0),),
}
