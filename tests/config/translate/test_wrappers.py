"""What stands in front of a command."""

import shlex

from tests.each import each
from zlaunch.config.translate.programs import is_program
from zlaunch.config.translate.wrappers import hands_on_variables, num_tasks, unwrap

FRONT = (
    "nohup",
    "A=1 B='x y'",
    "env A=1",
    "env -u A",
    "nice -n 5",
    "timeout -s INT 1h",
    "taskset -c 0-3",
    "numactl -N 0 --membind=0",
    "uv run",
    "uv run --with trl --python 3.12 --",
    "uv run --unknown-option x",
    "poetry run",
    "poetry -C dir run",
    "conda run -n trl --no-capture-output",
    "micromamba run -p /env",
    "srun -N 2 --job-name torchrun --ntasks-per-node=1",
    "mpirun -np 2 --mca btl tcp -x A",
    "apptainer exec --nv --bind /data image.sif",
    "stdbuf -oL",
    "nohup env A=1 srun -N2 uv run",
)
COMMANDS = (
    "torchrun t.py",
    "python -m trl.cli sft",
    "llamafactory-cli train x.yaml",
    "accelerate launch t.py",
)


@each("front", FRONT)
def test_what_runs_a_command_is_taken_off_it(front: str) -> None:
    for command in COMMANDS:
        wrapped = unwrap(shlex.split(f"{front} {command}"), is_program)
        assert shlex.join(wrapped.words) == command


@each("command", ["uv pip install trl", "conda install trl", "bash run.sh", "time", "train.py --x nohup"])
def test_what_runs_no_other_command_is_left_alone(command: str) -> None:
    wrapped = unwrap(command.split(), is_program)
    assert (shlex.join(wrapped.words), wrapped.text) == (command, None)


def test_a_shell_has_a_text() -> None:
    wrapped = unwrap(["A=1", "srun", "bash", "-lc", "torchrun t.py", "x"], is_program)
    assert (wrapped.text, wrapped.prefix, wrapped.after) == ("torchrun t.py", ("srun", "bash", "-lc"), ("x",))


@each(
    ("front", "count"),
    [
        ("srun", None),
        ("srun -w n1", None),
        ("srun -N2", 2),
        ("srun -N1 -w n1", 1),
        ("srun --nodes=1-1", 1),
        ("srun --nodes 1 --ntasks-per-node=2", 2),
        ("srun -N 1 -n 2", 2),
        ("srun -n$N", None),
        ("srun -N2 srun -n1", 1),
        ("mpirun -np 2 -npernode 1", 2),
        ("mpirun -H n1", 1),
        ("mpirun -H n0,n1", None),
        ("mpiexec -n1", 1),
    ],
)
def test_a_starter_of_tasks_says_how_many(front: str, count: int | None) -> None:
    assert num_tasks(unwrap([*front.split(), "torchrun", "t.py"], is_program).front) == count


@each(
    ("front", "arrive"),
    [
        ("nohup uv run", True),
        ("sudo -E", True),
        ("sudo", False),
        ("env -u A B=1", True),
        ("env -i B=1", False),
        ("srun --export=ALL,A=1", True),
        ("srun --export NONE", False),
        ("mpirun -np 1", False),
        ("apptainer exec --nv image.sif", True),
        ("apptainer exec --cleanenv image.sif", False),
    ],
)
def test_variables_arrive_behind_what_hands_them_on(front: str, arrive: bool) -> None:
    wrapped = unwrap([*front.split(), "torchrun", "t.py"], is_program)
    assert hands_on_variables(wrapped.front) is arrive


def test_a_module_of_uv_is_one_of_python() -> None:
    assert unwrap(["uv", "run", "-m", "trl.cli", "sft"], is_program).words == (
        "python",
        "-m",
        "trl.cli",
        "sft",
    )
