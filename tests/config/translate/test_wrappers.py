"""What stands in front of a command."""

import shlex

from tests.each import each
from zlaunch.config.translate.programs import is_program
from zlaunch.config.translate.wrappers import unwrap

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


def test_a_module_of_uv_is_one_of_python() -> None:
    assert unwrap(["uv", "run", "-m", "trl.cli", "sft"], is_program).words == (
        "python",
        "-m",
        "trl.cli",
        "sft",
    )
