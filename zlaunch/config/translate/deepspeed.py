"""The flags of `deepspeed` (deepspeed/launcher/runner.py)."""

from zlaunch.config.translate.flags import Launcher, LeftOut, Lost, Refusal, Role, flag, switch

_FREE_PORT = LeftOut("zlaunch picks a free port")
_OVER_SSH = Lost("zlaunch reaches all hosts by ssh, from one of them")
_QUIET = LeftOut("zlaunch shows rank 0, and keeps the launcher's log in the run directory")
_NO_BINDING = Lost("zlaunch binds no cores; it divides them among the ranks by OMP_NUM_THREADS")

NO_LOCAL_RANK = switch("--no_local_rank", LeftOut("zlaunch never gives `--local_rank` to a script"))

LAUNCHER = Launcher(
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
        flag("--master_addr", LeftOut("DeepSpeed asks the first host for its address")),
        flag("--node_rank", _OVER_SSH, idle="-1"),
        flag("--launcher", Lost("zlaunch starts other hosts with pdsh"), idle="pdsh"),
        flag("--launcher_args", Lost("zlaunch starts other hosts with pdsh, without arguments of one's own")),
        switch("--module", Role.MODULE),
        switch("--no_python", Refusal("zlaunch starts Python scripts only")),
        NO_LOCAL_RANK,
        switch("--no_ssh", _OVER_SSH),
        switch("--no_ssh_check", LeftOut("zlaunch asks every host itself what it has")),
        switch("--force_multi", LeftOut("with `--hostfile`, zlaunch uses ssh even for one host")),
        switch("--save_pid", Lost("zlaunch writes no process id; a signal to zlaunch reaches every rank")),
        flag("--enable_each_rank_log", LeftOut("the run directory has a log for each rank")),
        flag("--autotuning", Lost("zlaunch does not start DeepSpeed's autotuner")),
        switch("--bind_cores_to_rank", _NO_BINDING),
        flag("--bind_core_list", _NO_BINDING),
        flag("--ssh_port", Lost("write `Port` into ~/.ssh/config")),
        flag("--venv_script", Lost("the Python of zlaunch is used, and must be there on all hosts")),
        flag("--log_level", _QUIET),
        switch("-q --quiet", _QUIET),
    ),
)
