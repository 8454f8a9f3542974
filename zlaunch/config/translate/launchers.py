"""The flags of `deepspeed` (deepspeed/launcher/runner.py) and `torchrun` (torch/distributed/run.py)."""

from dataclasses import replace

from zlaunch.config.translate.flags import (
    BecomesOption,
    LauncherSyntax,
    NoEquivalent,
    NotNeeded,
    Role,
    Untranslatable,
    flag,
    switch,
)

_FREE_PORT = NotNeeded("zlaunch picks a free port")
_OVER_SSH = NoEquivalent("zlaunch reaches all hosts by ssh, from one of them")
_QUIET = NotNeeded("zlaunch shows rank 0, and keeps the launcher's log in the run directory")
_NO_BINDING = NoEquivalent("zlaunch does not bind cores; it divides them among the ranks by OMP_NUM_THREADS")
_NO_LOCAL_RANK = NotNeeded("zlaunch never gives `--local_rank` to a script")
_ONLY_PYTHON = Untranslatable("zlaunch only starts Python scripts")
LOGS = NotNeeded("the run directory has a log for each rank")
RENDEZVOUS = NotNeeded("zlaunch does the rendezvous itself")
_NO_HOOK = NoEquivalent("zlaunch has no such hook")

_WITHOUT_LOCAL_RANK = switch("--no_local_rank", _NO_LOCAL_RANK)

DEEPSPEED = LauncherSyntax(
    name="deepspeed",
    either_dash=False,
    passes_local_rank=_WITHOUT_LOCAL_RANK,
    hostfile="/job/hostfile",
    counts_hosts=True,
    flags=(
        flag("-H --hostfile", Role.HOSTFILE),
        flag("-i --include", Role.INCLUDE),
        flag("-e --exclude", Role.EXCLUDE),
        flag("--num_nodes", Role.HOSTS, idle="-1"),
        flag("--num_accelerators --num_gpus", Role.RANKS, idle="-1"),
        flag("--master_port", _FREE_PORT),
        flag("--master_addr", NotNeeded("DeepSpeed asks the first host for its address")),
        flag("--node_rank", _OVER_SSH, idle="-1"),
        flag("--launcher", NoEquivalent("zlaunch starts other hosts with pdsh"), idle="pdsh"),
        flag(
            "--launcher_args",
            NoEquivalent("zlaunch starts other hosts with pdsh, without extra arguments"),
        ),
        switch("--module", Role.MODULE),
        switch("--no_python", _ONLY_PYTHON),
        _WITHOUT_LOCAL_RANK,
        switch("--no_ssh", _OVER_SSH),
        switch("--no_ssh_check", NotNeeded("zlaunch checks every host itself")),
        switch("--force_multi", NotNeeded("with `--hostfile`, zlaunch uses ssh even for one host")),
        switch(
            "--save_pid",
            NoEquivalent("zlaunch does not write process ids; a signal to zlaunch reaches every rank"),
        ),
        flag("--enable_each_rank_log", LOGS),
        flag("--autotuning", NoEquivalent("zlaunch does not start DeepSpeed's autotuner")),
        switch("--bind_cores_to_rank", _NO_BINDING),
        flag("--bind_core_list", _NO_BINDING),
        flag("--ssh_port", NoEquivalent("set `Port` in ~/.ssh/config")),
        flag("--venv_script", NoEquivalent("zlaunch uses its own Python, which must exist on all hosts")),
        flag("--log_level", _QUIET),
        switch("-q --quiet", _QUIET),
    ),
)

TORCHRUN = LauncherSyntax(
    name="torchrun",
    variables="PET_",
    ranks="1",
    flags=(
        flag("--nnodes", Role.HOSTS),
        flag("--nproc_per_node", Role.RANKS),
        flag("--rdzv_backend", RENDEZVOUS),
        flag("--rdzv_endpoint", RENDEZVOUS),
        flag("--rdzv_id", RENDEZVOUS),
        flag("--rdzv_conf", RENDEZVOUS),
        switch("--standalone", _FREE_PORT),
        flag("--max_restarts", BecomesOption("--max-restarts"), idle="0"),
        flag("--monitor_interval", NoEquivalent("zlaunch keeps torchrun's own interval")),
        flag("--start_method", NotNeeded("it has no effect on scripts")),
        flag("--event_log_handler", _NO_HOOK, idle="null"),
        flag("--role", NoEquivalent("zlaunch has no rank roles"), idle="default"),
        switch("-m --module", Role.MODULE),
        switch("--no_python", _ONLY_PYTHON),
        switch("--run_path", NotNeeded("zlaunch starts the script like `python` does")),
        flag("--log_dir", LOGS),
        flag("-r --redirects", LOGS),
        flag("-t --tee", LOGS),
        flag("--local_ranks_filter", NotNeeded("zlaunch shows rank 0, and keeps a log for each rank")),
        flag("--duplicate_stdout_filters", LOGS),
        flag("--duplicate_stderr_filters", LOGS),
        flag("--node_rank", NotNeeded("zlaunch starts all hosts from one of them; run it once")),
        flag("--master_addr", RENDEZVOUS),
        flag("--master_port", _FREE_PORT),
        flag("--local_addr", RENDEZVOUS),
        flag("--logs_specs", _NO_HOOK),
        flag("--numa_binding", NoEquivalent("zlaunch does not bind cores")),
        flag("--signals_to_handle", NoEquivalent("zlaunch passes on SIGINT, SIGTERM and SIGHUP")),
        flag("--shutdown_timeout", NoEquivalent("zlaunch gives ranks five seconds after a signal")),
        switch(
            "--virtual_local_rank", NoEquivalent("each rank sees all GPUs of the job and its own LOCAL_RANK")
        ),
    ),
)

_USE_ENV = switch("--use_env", _NO_LOCAL_RANK)

OLD_TORCHRUN = replace(
    TORCHRUN,
    name="torch.distributed.launch",
    flags=(*TORCHRUN.flags, _USE_ENV),
    passes_local_rank=_USE_ENV,
)
