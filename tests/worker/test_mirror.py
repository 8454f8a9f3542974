import base64
from pathlib import Path

from zlaunch.rundir.layout import RunDir
from zlaunch.worker.mirror import CHUNK_BYTES, MOST_BYTES, Changes, write_part


def test_a_record_of_another_host_is_kept_on_a_full_disk(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    record = run_dir.rank_record(1)
    (record.parent / f".{record.name}.new").mkdir(parents=True)  # no other file can be made
    record.write_text('{"rank": 1, "host": "w1"}')
    content = base64.b64encode(b'{"returncode": 0}').decode()
    write_part(run_dir, {"file": f"ranks/{record.name}", "offset": 0, "data": content})
    assert record.read_text() == '{"returncode": 0}'


def test_a_log_that_grew_faster_than_it_is_sent_arrives_whole_although_it_grows_no_more(
    tmp_path: Path,
) -> None:
    here, there = RunDir(tmp_path / "here"), RunDir(tmp_path / "there")
    for run_dir in (here, there):
        run_dir.logs.mkdir(parents=True)
    here.rank_log(1).write_bytes(b"line\n" * (MOST_BYTES // 4))
    changes, parts = Changes(here), list[int]()
    for _ in range(3):
        messages = [*changes.of([here.rank_log(1)])]
        for message in messages:
            write_part(there, message)
        parts.append(len(messages))
    assert there.rank_log(1).read_bytes() == here.rank_log(1).read_bytes()
    assert parts == [MOST_BYTES // CHUNK_BYTES, MOST_BYTES // CHUNK_BYTES // 4, 0]
