"""The flags of `deepspeed` (deepspeed/launcher/runner.py)."""

from zlaunch.config.translate.flags import (
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

NO_LOCAL_RANK = switch("--no_local_rank", NotNeeded("zlaunch never gives `--local_rank` to a script"))

LAUNCHER = LauncherSyntax(
    name="deepspeed",
    either_dash=False,
    passes_local_rank=NO_LOCAL_RANK,
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
        switch("--no_python", Untranslatable("zlaunch only starts Python scripts")),
        NO_LOCAL_RANK,
        switch("--no_ssh", _OVER_SSH),
        switch("--no_ssh_check", NotNeeded("zlaunch checks every host itself")),
        switch("--force_multi", NotNeeded("with `--hostfile`, zlaunch uses ssh even for one host")),
        switch(
            "--save_pid",
            NoEquivalent("zlaunch does not write process ids; a signal to zlaunch reaches every rank"),
        ),
        flag("--enable_each_rank_log", NotNeeded("the run directory has a log for each rank")),
        flag("--autotuning", NoEquivalent("zlaunch does not start DeepSpeed's autotuner")),
        switch("--bind_cores_to_rank", _NO_BINDING),
        flag("--bind_core_list", _NO_BINDING),
        flag("--ssh_port", NoEquivalent("set `Port` in ~/.ssh/config")),
        flag("--venv_script", NoEquivalent("zlaunch uses its own Python, which must exist on all hosts")),
        flag("--log_level", _QUIET),
        switch("-q --quiet", _QUIET),
    ),
)
