"""What DeepSpeed's `ds_nvme_tune` prints, and how it is called."""

import json
import math
import os
import subprocess
from pathlib import Path

import pytest

from tests.making import CPU_MACHINE
from zlaunch.dsconfig.schema.storage import Aio
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.op_cache import VARIABLE, find_op_cache
from zlaunch.launch.nvme import NUM_MEASUREMENTS, PROGRAM, in_folder, read_result

PRINTED = """Running DeepNVMe performance tuning on ['.']
Best performance (GB/sec): read =  0.79, write =  1.63
{
   "aio": {
      "single_submit": "false",
      "overlap_events": "true",
      "num_threads": 4,
      "queue_depth": 32,
      "block_size": 1048576
   }
}
"""


def test_the_section_has_the_keys_that_deepspeed_reads() -> None:
    found = read_result(PRINTED)
    assert found is not None
    assert (found.read, found.write) == (0.79, 1.63)
    aio = Aio.model_validate(found.aio)
    assert (aio.overlap_events, aio.intra_op_parallelism, aio.queue_depth) == (True, 4, 32)


@pytest.mark.parametrize("output", ["", "Possible fix: apt install libaio-dev.", PRINTED[:60]])
def test_output_without_a_result_is_none(output: str) -> None:
    assert read_result(output) is None


@pytest.mark.packages
def test_the_sweep_has_as_many_measurements_as_are_shown() -> None:
    from deepspeed.nvme.perf_run_sweep import DEFAULT_SWEEP_CONFIG

    assert 2 * math.prod(map(len, DEFAULT_SWEEP_CONFIG.values())) == NUM_MEASUREMENTS


@pytest.mark.job
def test_deepspeeds_program_measures_one_setting_as_it_is_called(libaio: None, tmp_path: Path) -> None:
    setting = {"block_size": ["1M"], "queue_depth": [32], "io_parallel": [1]}
    (drive := tmp_path / "my drive").mkdir()
    (drive / "sweep.json").write_text(json.dumps(setting))
    python = inspect_python(None)
    argv = in_folder(drive, python, f"{python.scripts}/{PROGRAM}", 16 << 20)
    path = os.pathsep.join([*python.programs, os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "DS_ACCELERATOR": "cpu"}
    environment[VARIABLE] = str(find_op_cache(python, CPU_MACHINE, environment).folder)
    result = subprocess.run(
        [*argv, "--sweep_config", "sweep.json"], env=environment, capture_output=True, text=True, check=False
    )
    found = read_result(result.stdout)
    assert found is not None, result.stdout + result.stderr
    assert min(found.read, found.write) > 0
