"""What is shown of the operations of a profile."""

import json
from pathlib import Path

from tests.recorded_run import write_run
from zlaunch.cli.views.step_time import profile_lines
from zlaunch.runs.run import Run


def test_long_names_that_begin_alike_are_told_apart_by_their_ends(tmp_path: Path) -> None:
    root, name = write_run(tmp_path / "run", 100), "aten::_scaled_dot_product_flash_attention_for_cpu"
    names = [f"{name}_forward_of_all", f"{name}_backward_of_all"]
    operations = [{"name": each, "calls": 4, "seconds": 0.1} for each in names]
    record = {"version": 1, "first": 3, "last": 4, "operations": operations}
    (root / "ranks/rank-0.operations.json").write_text(json.dumps(record))
    _, *rows = [line for line in profile_lines(Run(root)) if not line.startswith("  ")]
    assert len({row.split()[0] for row in rows}) == 2
    assert max(map(len, rows)) < 80
