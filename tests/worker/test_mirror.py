import base64
from pathlib import Path

from zlaunch.rundir.layout import RunDir
from zlaunch.worker.mirror import write_part


def test_a_record_of_another_host_is_kept_on_a_full_disk(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    record = run_dir.rank_record(1)
    (record.parent / f".{record.name}.new").mkdir(parents=True)  # no other file can be made
    record.write_text('{"rank": 1, "host": "w1"}')
    content = base64.b64encode(b'{"returncode": 0}').decode()
    write_part(run_dir, {"file": f"ranks/{record.name}", "offset": 0, "data": content})
    assert record.read_text() == '{"returncode": 0}'
