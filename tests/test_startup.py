"""What a rank of tests is spared makes no difference to what it computes."""

import json
import sys
from pathlib import Path

import pytest

from tests.running import run

pytestmark = pytest.mark.job

EXEC = "ZLAUNCH_TESTS_EXEC"

STEP = """
import json, sys
from transformers import Trainer
import torch
weight = torch.nn.Parameter(torch.ones(2))
(weight * torch.tensor([2.0, 3.0])).sum().backward()
torch.optim.AdamW([weight], lr=0.1).step()
imported = [name for name in ("torch._dynamo.eval_frame", "sympy.core") if name in sys.modules]
print(json.dumps([weight.tolist(), imported]))
"""


def test_a_rank_steps_as_a_users_does_but_imports_neither_compiler_nor_sympy(tmp_path: Path) -> None:
    (weight, imported), users = (
        json.loads(run(sys.executable, "-c", STEP, cwd=tmp_path, env={"RANK": "0", EXEC: all_}).out)
        for all_ in ("", "1")
    )
    assert imported == []
    assert users == [weight, ["torch._dynamo.eval_frame", "sympy.core"]]
