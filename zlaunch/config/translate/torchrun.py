"""The flags of `torchrun` (torch/distributed/run.py) and its predecessor."""

from dataclasses import replace

from zlaunch.config.translate.flags import (
    LauncherSyntax,
    NoEquivalent,
    NotNeeded,
    Role,
    Untranslatable,
    flag,
    switch,
)

_RENDEZVOUS = NotNeeded("zlaunch does the rendezvous itself")
_LOGS = NotNeeded("the run directory has a log for each rank")
_NO_RESTARTS = NoEquivalent("zlaunch does not restart single ranks")
_NO_HOOK = NoEquivalent("zlaunch has no such hook")

LAUNCHER = LauncherSyntax(
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
        switch("--standalone", NotNeeded("zlaunch picks a free port")),
        flag("--max_restarts", _NO_RESTARTS, idle="0"),
        flag("--monitor_interval", NoEquivalent("zlaunch keeps torchrun's own interval")),
        flag("--start_method", NotNeeded("it has no effect on scripts")),
        flag("--event_log_handler", _NO_HOOK, idle="null"),
        flag("--role", NoEquivalent("zlaunch has no rank roles"), idle="default"),
        switch("-m --module", Role.MODULE),
        switch("--no_python", Untranslatable("zlaunch only starts Python scripts")),
        switch("--run_path", NotNeeded("zlaunch starts the script like `python` does")),
        flag("--log_dir", _LOGS),
        flag("-r --redirects", _LOGS),
        flag("-t --tee", _LOGS),
        flag("--local_ranks_filter", NotNeeded("zlaunch shows rank 0, and keeps a log for each rank")),
        flag("--duplicate_stdout_filters", _LOGS),
        flag("--duplicate_stderr_filters", _LOGS),
        flag("--node_rank", NotNeeded("zlaunch starts all hosts from one of them; run it once")),
        flag("--master_addr", _RENDEZVOUS),
        flag("--master_port", NotNeeded("zlaunch picks a free port")),
        flag("--local_addr", _RENDEZVOUS),
        flag("--logs_specs", _NO_HOOK),
        flag("--numa_binding", NoEquivalent("zlaunch does not bind cores")),
        flag("--signals_to_handle", NoEquivalent("zlaunch passes on SIGINT, SIGTERM and SIGHUP")),
        flag("--shutdown_timeout", NoEquivalent("zlaunch gives ranks five seconds after a signal")),
        switch(
            "--virtual_local_rank", NoEquivalent("each rank sees all GPUs of the job and its own LOCAL_RANK")
        ),
    ),
)

_USE_ENV = switch("--use_env", NotNeeded("zlaunch never gives `--local_rank` to a script"))

OLD_LAUNCHER = replace(
    LAUNCHER,
    name="torch.distributed.launch",
    flags=(*LAUNCHER.flags, _USE_ENV),
    passes_local_rank=_USE_ENV,
)
