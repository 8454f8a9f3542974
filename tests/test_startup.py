"""What a rank of tests is spared makes no difference to what it computes."""

import sys
from pathlib import Path

import pytest

from tests.running import run

pytestmark = pytest.mark.job

STEP = """
import sys, torch
weight = torch.nn.Parameter(torch.ones(2))
(weight * torch.tensor([2.0, 3.0])).sum().backward()
torch.optim.AdamW([weight], lr=0.1).step()
print(weight.tolist(), "torch._dynamo.eval_frame" in sys.modules)
"""


def test_a_rank_steps_as_a_users_does_but_imports_no_compiler(tmp_path: Path) -> None:
    spared, users = (
        run(sys.executable, "-c", STEP, cwd=tmp_path, env={"RANK": "0", **more}).out.rsplit(maxsplit=1)
        for more in ({}, {"ZLAUNCH_TESTS_EXEC": "1"})
    )
    assert (spared[0], spared[1], users[1]) == (users[0], "False", "True")
