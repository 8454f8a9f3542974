"""An `aio` section in a ds_config that people have written."""

from pathlib import Path

import pytest

from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Refused
from zlaunch.launch.nvme import merge_aio, merged_aio

SECTION = '{"block_size": 8388608, "single_submit": false}'
AIO: dict[str, object] = {"block_size": 8388608, "single_submit": False}


@pytest.mark.parametrize(
    ("text", "merged"),
    [
        (
            '{\n  // mine\n  "train_batch_size": 4  // all ranks\n}\n',
            '{\n  // mine\n  "train_batch_size": 4,  // all ranks\n  "aio": ' + SECTION + "\n}\n",
        ),
        (
            '{"aio": {\n  "block_size": 1, // small\n  "use_gds": true\n}}',
            '{"aio": {\n  "block_size": 8388608, // small\n  "use_gds": true,\n  "single_submit": false\n}}',
        ),
        ('{"aio": {}}', '{"aio": {"block_size": 8388608, "single_submit": false}}'),
        ("{}", '{"aio": {"block_size": 8388608, "single_submit": false}}'),
    ],
    ids=["no section", "with comments", "an empty section", "an empty file"],
)
def test_the_keys_are_set_and_all_else_stays(text: str, merged: str) -> None:
    assert merged_aio(parse(text, "f"), AIO).text == merged


def test_a_section_that_is_no_object_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        merged_aio(parse('{"aio": 3}', "f"), AIO)
    assert refused.value.findings[0].place is not None


def test_the_old_file_is_kept_and_an_equal_one_is_not_written(tmp_path: Path) -> None:
    (file := tmp_path / "ds.json").write_text("{}")
    assert merge_aio(file, AIO) == tmp_path / "ds.json.bak"
    assert merge_aio(file, AIO) is None
