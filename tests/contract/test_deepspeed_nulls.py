"""Where zlaunch lets `null` pass, DeepSpeed reads it; elsewhere it crashes with a raw AttributeError."""

from tests.contract.deepspeed_side import deepspeed_reads
from tests.contract.zlaunch_side import Path, all_paths, nested
from tests.each import each
from zlaunch.dsconfig.schema_check import check

BATCH = {"train_batch_size": 1, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}


def nullable() -> list[Path]:
    return [path for path in all_paths() if not check(nested(path, None)).findings]


@each("path", nullable, ids=".".join)
def test_deepspeed_reads_every_null_that_zlaunch_lets_pass(path: Path) -> None:
    assert deepspeed_reads({**BATCH, **nested(path, None)})
