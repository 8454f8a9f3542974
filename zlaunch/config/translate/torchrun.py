"""The flags of `torchrun` (torch/distributed/run.py), and of what came before it."""

from dataclasses import replace

from zlaunch.config.translate.flags import Launcher, LeftOut, Lost, Refusal, Role, flag, switch

_RENDEZVOUS = LeftOut("zlaunch brings the ranks together itself")
_LOGS = LeftOut("the run directory has a log for each rank")
_NO_RESTARTS = Lost("zlaunch does not start ranks anew")
_NO_HOOK = Lost("zlaunch has no such hook")

LAUNCHER = Launcher(
    name="torchrun",
    variables="PET_",
    ranks="1",
    flags=(
        flag("--nnodes", Role.HOSTS),
        flag("--nproc_per_node", Role.RANKS),
        flag("--rdzv_backend", _RENDEZVOUS),
        flag("--rdzv_endpoint", _RENDEZVOUS),
        flag("--rdzv_id", _RENDEZVOUS),
        flag("--rdzv_conf", _RENDEZVOUS),
        switch("--standalone", LeftOut("zlaunch picks a free port")),
        flag("--max_restarts", _NO_RESTARTS, idle="0"),
        flag("--monitor_interval", Lost("zlaunch keeps torchrun's own interval")),
        flag("--start_method", LeftOut("it has no effect on scripts")),
        flag("--event_log_handler", _NO_HOOK, idle="null"),
        flag("--role", Lost("zlaunch gives its ranks no role"), idle="default"),
        switch("-m --module", Role.MODULE),
        switch("--no_python", Refusal("zlaunch starts Python scripts only")),
        switch("--run_path", LeftOut("zlaunch starts the script as Python does")),
        flag("--log_dir", _LOGS),
        flag("-r --redirects", _LOGS),
        flag("-t --tee", _LOGS),
        flag("--local_ranks_filter", LeftOut("zlaunch shows rank 0, and keeps a log for each rank")),
        flag("--duplicate_stdout_filters", _LOGS),
        flag("--duplicate_stderr_filters", _LOGS),
        flag("--node_rank", LeftOut("zlaunch starts all hosts from one of them: run it once")),
        flag("--master_addr", _RENDEZVOUS),
        flag("--master_port", LeftOut("zlaunch picks a free port")),
        flag("--local_addr", _RENDEZVOUS),
        flag("--logs_specs", _NO_HOOK),
        flag("--numa_binding", Lost("zlaunch binds no cores")),
        flag("--signals_to_handle", Lost("zlaunch passes on SIGINT, SIGTERM and SIGHUP")),
        flag("--shutdown_timeout", Lost("zlaunch gives ranks five seconds after a signal")),
        switch("--virtual_local_rank", Lost("each rank sees all GPUs of the job, and has its LOCAL_RANK")),
    ),
)

_USE_ENV = switch("--use_env", LeftOut("zlaunch never gives `--local_rank` to a script"))

OLD_LAUNCHER = replace(
    LAUNCHER,
    name="torch.distributed.launch",
    flags=(*LAUNCHER.flags, _USE_ENV),
    passes_local_rank=_USE_ENV,
)
