"""`zlaunch config validate` as people and programs use it."""

import base64
import json
import stat
import subprocess
from pathlib import Path

import pytest

from tests.running import CONFIGS, ZLAUNCH, Result, zlaunch

GOOD = '{\n  "train_micro_batch_size_per_gpu": 1\n}\n'
BAD = '{\n  "train_micro_batch_size_per_gpu": "1"\n}\n'
SILENT = '{\n  "train_micro_batch_size_per_gpu": 1,\n  "steps": 10\n}\n'
TYPO = '{"train_micro_batch_size_per_gpu": 1, "gradient_cliping": 1.0}'
TWO = '{\n  "train_micro_batch_size_per_gpu": "1",\n  "elasticity": {"enabled": true}\n}\n'
MEMBERS = [
    *("file", "line", "column", "end_line", "end_column"),
    *("path", "code", "severity", "message", "hint"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"good": GOOD, "bad": BAD, "silent": SILENT, "typo": TYPO, "none": "{"}.items():
        (tmp_path / f"{name}.json").write_text(text)
    return tmp_path


def validate(cwd: Path, *words: object) -> Result:
    return zlaunch("config", "validate", *words, cwd=cwd)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["good.json"], 0),
        (["bad.json"], 65),
        (["none.json"], 65),
        (["silent.json"], 0),
        (["typo.json"], 65),
        (["silent.json", "--strict"], 65),
        (["absent.json"], 66),
        (["bad.json", "absent.json"], 66),
        (["good.json", "bad.json"], 65),
        (["good.json", "--deepspeed", "0.2"], 2),
        (["good.json", "--world-size", "0"], 2),
        (["good.json", "--model", "absent"], 66),
    ],
)
def test_the_exit_status_tells_how_bad_it_is(folder: Path, words: list[str], status: int) -> None:
    assert validate(folder, *words).status == status


@pytest.mark.parametrize("words", [["absent.json"], ["none.json"], ["bad.json"], ["--fix", "-"]])
def test_nothing_ends_in_a_traceback(folder: Path, words: list[str]) -> None:
    assert "Traceback" not in validate(folder, *words).err


def test_json_has_every_finding_with_all_its_members(folder: Path) -> None:
    findings = json.loads(validate(folder, "bad.json", "silent.json", "--format", "json").out)["findings"]
    assert [list(finding) for finding in findings] == [MEMBERS, MEMBERS]


def test_json_names_the_place_of_a_finding(folder: Path) -> None:
    (finding,) = json.loads(validate(folder, "bad.json", "--format", "json").out)["findings"]
    assert (finding["file"], finding["line"], finding["column"]) == ("bad.json", 2, 3)


@pytest.mark.parametrize("name", ["absent.json", "none.json"])
def test_json_stays_json_when_a_file_cannot_be_read(folder: Path, name: str) -> None:
    assert len(json.loads(validate(folder, name, "--format", "json").out)["findings"]) == 1


def test_github_is_told_in_one_line_for_each_finding(folder: Path) -> None:
    (line,) = validate(folder, "silent.json", "--format", "github").out.splitlines()
    assert line.startswith("::warning file=silent.json,line=3,col=3,endColumn=14,title=unknown-key::")
    assert "%0A" in line
    assert "%25" not in line


def test_sarif_is_one_log_for_all_files(folder: Path) -> None:
    names = ["silent.json", "bad.json", "absent.json"]
    done = validate(folder, *names, "--format", "sarif")
    (run,) = json.loads(done.out)["runs"]
    assert [one["ruleId"] for one in run["results"]] == ["unknown-key", "bad-type", "cannot-read"]
    assert (done.status, done.err) == (66, "")


def test_stdin_is_checked_for_a_dash(folder: Path) -> None:
    done = subprocess.run(
        [*ZLAUNCH, "config", "validate", "-"],
        input=BAD.encode(),
        capture_output=True,
        check=False,
        cwd=folder,
    )
    assert done.stdout.decode().startswith("<stdin>:2:3: error: train_micro_batch_size_per_gpu [bad-type]")


def test_base64_is_checked_as_launchers_pass_it_on(folder: Path) -> None:
    assert validate(folder, base64.urlsafe_b64encode(BAD.encode()).decode()).status == 65


def test_arguments_of_the_trainer_are_compared(folder: Path) -> None:
    done = validate(folder, "good.json", "--", "--per_device_train_batch_size", "4")
    assert "[differs-from-argument]" in done.out


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--", "--fsdp", "full_shard"], 65),
        (["--", "--fsdp"], 65),
        (["--", "--fsdp", ""], 0),
        (["--for", "deepspeed", "--", "--fsdp"], 0),
    ],
)
def test_fsdp_is_refused_as_the_trainer_does(folder: Path, words: list[str], status: int) -> None:
    (folder / "zero.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}')
    done = validate(folder, "zero.json", *words)
    assert (done.status, "fsdp-and-deepspeed" in done.out) == (status, status == 65)


def test_the_batch_is_judged_at_the_size_that_was_asked_for(folder: Path) -> None:
    (folder / "batch.json").write_text('{"train_batch_size": 6, "train_micro_batch_size_per_gpu": 1}')
    assert validate(folder, "batch.json", "--world-size", "4").status == 65


def test_an_older_release_reads_what_the_newest_refuses(folder: Path) -> None:
    (folder / "old.json").write_text('{"train_batch_size": 8, "elasticity": {"enabled": false}}')
    assert [validate(folder, "old.json", *words).status for words in ([], ["--deepspeed", "0.16"])] == [65, 0]


def test_a_diff_changes_nothing(folder: Path) -> None:
    validate(folder, "bad.json", "--diff")
    assert (folder / "bad.json").read_text() == BAD


def test_a_diff_shows_what_would_change(folder: Path) -> None:
    assert '+  "train_micro_batch_size_per_gpu": 1\n' in validate(folder, "bad.json", "--diff").out


def test_fixing_writes_the_mended_text(folder: Path) -> None:
    validate(folder, "bad.json", "--fix")
    assert (folder / "bad.json").read_text() == GOOD


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bad.json", "--fix"], "bad.json: 1 fix written, old file kept as bad.json.bak; valid\n"),
        (["bad.json", "--fix", "--no-backup"], "bad.json: 1 fix written; valid\n"),
        (
            ["bad.json", "--diff"],
            "bad.json: `--fix` would write 1 fix; refused, 1 error now, none after the fixes\n",
        ),
        (["silent.json", "--fix"], "silent.json: no safe fixes; valid, 1 ignored\n"),
    ],
)
def test_it_is_said_whether_a_fix_was_written(folder: Path, words: list[str], said: str) -> None:
    assert validate(folder, *words).err == said


def test_the_errors_after_fixes_that_are_only_shown_are_those_that_are_listed(folder: Path) -> None:
    (folder / "two.json").write_text(TWO)
    told = validate(folder, "two.json", "--diff").err
    assert told.endswith("refused, 2 errors now, 1 error after the fixes\n")
    assert told.count(": error: ") == 1


def test_what_was_fixed_is_valid_at_once(folder: Path) -> None:
    assert validate(folder, "bad.json", "--fix").status == 0


def test_fixing_keeps_the_permissions_of_a_file(folder: Path) -> None:
    (folder / "bad.json").chmod(0o640)
    validate(folder, "bad.json", "--fix")
    assert stat.S_IMODE((folder / "bad.json").stat().st_mode) == 0o640


def test_fixing_goes_through_a_link(folder: Path) -> None:
    (folder / "link.json").symlink_to("bad.json")
    validate(folder, "link.json", "--fix")
    assert ((folder / "link.json").is_symlink(), (folder / "bad.json").read_text()) == (True, GOOD)


@pytest.mark.parametrize(("words", "left"), [([], {"bad.json.bak"}), (["--no-backup"], set())])
def test_fixing_leaves_only_a_copy_of_the_old_file_behind(
    folder: Path, words: list[str], left: set[str]
) -> None:
    before = {file.name for file in folder.iterdir()}
    validate(folder, "bad.json", "--fix", *words)
    assert {file.name for file in folder.iterdir()} - before == left


def test_the_old_file_is_kept_byte_for_byte(folder: Path) -> None:
    old = b"\xef\xbb\xbf" + BAD.replace("\n", "\r\n").encode()
    (folder / "bad.json").write_bytes(old)
    validate(folder, "bad.json", "--fix")
    assert (folder / "bad.json.bak").read_bytes() == old
    assert (folder / "bad.json").read_bytes() == GOOD.replace("\n", "\r\n").encode()


def test_a_copy_that_was_there_is_not_overwritten(folder: Path) -> None:
    (folder / "bad.json.bak").write_text("mine")
    assert "bad.json.bak2" in validate(folder, "bad.json", "--fix").err
    assert [(folder / f"bad.json.bak{n}").read_text() for n in ("", "2")] == ["mine", BAD]


def test_a_file_without_fixes_is_not_copied(folder: Path) -> None:
    validate(folder, "good.json", "--fix")
    assert not (folder / "good.json.bak").exists()


def test_a_deleted_section_is_named_in_one_line(folder: Path) -> None:
    (folder / "old.json").write_text('{"train_batch_size": 8, "elasticity": {"enabled": false}}')
    said = [validate(folder, "old.json", *words).err.splitlines()[0] for words in (["--diff"], ["--fix"])]
    assert said == [
        "old.json: `--fix` would delete `elasticity`, which is off",
        "old.json: deleted `elasticity`, which was off",
    ]


def test_comments_survive_a_fix_for_an_unknown_reader(folder: Path) -> None:
    (folder / "c.json").write_text(f"// mine\n{BAD}/* ours */\n")
    validate(folder, "c.json", "--fix")
    assert (folder / "c.json").read_text() == f"// mine\n{GOOD}/* ours */\n"


def test_comments_go_if_the_trainer_surely_reads_the_file(folder: Path) -> None:
    (folder / "c.json").write_text(f"// mine\n{BAD}/* ours */\n")
    validate(folder, "c.json", "--fix", "--for", "trainer")
    assert (folder / "c.json").read_text() == GOOD


@pytest.mark.job
def test_deepspeed_itself_is_asked_when_wanted(folder: Path) -> None:
    (folder / "pipe.json").write_text('{"train_batch_size": 8, "vocabulary_size": "many"}')
    assert "[deepspeed-refuses]" in validate(folder, "pipe.json", "--deep").out


@pytest.mark.job
@pytest.mark.parametrize(
    "sizes", [{"sequence_parallel_size": 2}, {"sequence_parallel_size": 2, "data_parallel_size": 2}]
)
def test_deepspeed_itself_is_asked_about_ranks_that_share_a_sequence(
    folder: Path, sizes: dict[str, int]
) -> None:
    batch = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}
    (folder / "shared.json").write_text(json.dumps({**batch, **sizes}))
    done = validate(folder, "shared.json", "--for", "deepspeed", "--deep", "--world-size", "4")
    assert "[deepspeed-refuses]" not in done.out


@pytest.mark.job
def test_deepspeed_itself_accepts_what_comes_with_zlaunch(folder: Path) -> None:
    done = validate(folder, CONFIGS / "zero3_nvme.json", "--deep", "--world-size", "4")
    assert (done.status, done.out) == (0, "")


def test_the_ds_config_inside_an_accelerate_config_is_checked(folder: Path) -> None:
    (folder / "a.yaml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: 2\n  offload_param_device: cpu\n"
    )
    assert "a.yaml:4:3: ignored: zero_optimization.offload_param" in validate(folder, "a.yaml").out


def test_the_ds_config_that_an_accelerate_config_names_is_checked(folder: Path) -> None:
    named = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: bad.json\n"
    (folder / "a.yml").write_text(named)
    assert "bad.json:2:3: error" in validate(folder, "a.yml").out


@pytest.mark.parametrize(
    ("config", "arguments", "codes"),
    [
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ["--bf16"], ["both-formats"]),
        (
            {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}},
            ["--bf16", "--fp16"],
            ["both-precisions"],
        ),
    ],
)
def test_two_formats_at_once_are_one_finding(
    folder: Path, config: dict[str, object], arguments: list[str], codes: list[str]
) -> None:
    batch = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}}
    (folder / "both.json").write_text(json.dumps({**batch, **config}))
    done = validate(folder, "both.json", "--format", "json", "--", *arguments)
    assert [one["code"] for one in json.loads(done.out)["findings"]] == codes


def test_a_misspelled_key_does_not_hide_what_it_leaves_out(folder: Path) -> None:
    (folder / "typo.json").write_text('{"train_batchsize": 8}')
    out = validate(folder, "typo.json", "--for", "deepspeed").out
    assert "ignores it: `train_batch_size` and" in " ".join(out.split())


def test_a_reader_of_strict_json_fails_on_a_comment(folder: Path) -> None:
    (folder / "c.json").write_text('{"train_batch_size": 8} // mine')
    assert [validate(folder, "c.json", *words).status for words in ([], ["--for", "trainer"])] == [0, 65]


def test_a_comment_is_fine_where_deepspeed_alone_reads_it(folder: Path) -> None:
    (folder / "c.json").write_text('{"train_batch_size": 8} // mine')
    assert validate(folder, "c.json", "--for", "deepspeed").out == ""


@pytest.mark.parametrize("words", [["--diff"], ["--fix", "--diff"]])
@pytest.mark.parametrize(("name", "status"), [("bad", 65), ("good", 0), ("silent", 0)])
def test_a_diff_fails_if_there_would_be_changes(
    folder: Path, name: str, status: int, words: list[str]
) -> None:
    before = (folder / f"{name}.json").read_bytes()
    done = validate(folder, f"{name}.json", *words)
    assert (done.status, bool(done.out)) == (status, status == 65)
    assert (folder / f"{name}.json").read_bytes() == before
    assert not (folder / f"{name}.json.bak").exists()


def test_a_change_that_is_only_advice_fails_a_diff(folder: Path) -> None:
    (folder / "old.json").write_text('{"train_batch_size": 8, "bfloat16": {"enabled": true}}')
    assert [validate(folder, "old.json", *words).status for words in ([], ["--diff"], ["--fix"])] == [
        0,
        65,
        0,
    ]


def test_a_diff_is_shown_with_what_it_does_not_mend(folder: Path) -> None:
    twice = '"allgather_partitionss": true, "allgather_partitionz": true'
    (folder / "twice.json").write_text(
        f'{{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {{"stage": 2, {twice}}}}}'
    )
    told = validate(folder, "twice.json", "--diff")
    assert "allgather_partitionz" in told.err


@pytest.mark.parametrize("text", [TWO, TWO.rstrip("\n"), TWO.replace("\n", "\r\n"), f"// c\n{TWO}"])
def test_git_applies_a_diff_to_what_fix_would_write(folder: Path, text: str) -> None:
    for name in ("it's shown.json", "fixed.json"):
        (folder / name).write_bytes(text.encode())
    shown = validate(folder, "it's shown.json", "--diff")
    validate(folder, "fixed.json", "--fix")
    subprocess.run(["git", "apply", "-p0", "-"], input=shown.out.encode(), check=True, cwd=folder)
    assert (folder / "it's shown.json").read_bytes() == (folder / "fixed.json").read_bytes() != text.encode()
    assert "[removed-key]" in shown.err


@pytest.mark.parametrize(("name", "header"), [("bad.json", "bad.json"), ("b ad.json", "b ad.json\t")])
def test_a_name_with_spaces_ends_with_a_tab_in_a_diff(folder: Path, name: str, header: str) -> None:
    (folder / name).write_text(BAD)
    assert validate(folder, name, "--diff").out.splitlines()[:2] == [f"--- {header}", f"+++ {header}"]


def test_a_backup_without_a_fix_is_a_mistake(folder: Path) -> None:
    assert validate(folder, "bad.json", "--no-backup").status == 2


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ('{"train_batch_size": "8"}', 25),
        ('{"train_batch_size":\n  "8"}', 20),
        ('{"train_batch_size": 8, "a:b": {\n}}', 30),
        ('{"train_batch_size": 8, "ä😀": 1}', 32),
    ],
)
def test_a_finding_ends_after_its_value_or_after_its_key_if_that_is_longer(
    folder: Path, text: str, end: int
) -> None:
    (folder / "end.json").write_text(text, "utf-8")
    (finding,) = json.loads(validate(folder, "end.json", "--format", "json").out)["findings"]
    assert (finding["end_line"], finding["end_column"]) == (1, end)


def test_json_has_a_verdict_for_each_file(folder: Path) -> None:
    names = ["good.json", "bad.json", "silent.json", "absent.json", "typo.json"]
    done = validate(folder, *names, "--format", "json")
    files = json.loads(done.out)["files"]
    assert [(one["file"], one["verdict"], one["exit_status"]) for one in files] == [
        ("good.json", "valid", 0),
        ("bad.json", "refused", 65),
        ("silent.json", "valid", 0),
        ("absent.json", "unreadable", 66),
        ("typo.json", "refused", 65),
    ]
    assert files[2]["counts"] == {"error": 0, "fails later": 0, "warning": 0, "ignored": 1, "advice": 0}
    assert files[4]["counts"] == {"error": 1, "fails later": 0, "warning": 0, "ignored": 0, "advice": 0}


def test_a_strict_verdict_counts_what_is_ignored(folder: Path) -> None:
    done = validate(folder, "silent.json", "--strict", "--format", "json")
    assert json.loads(done.out)["files"][0]["verdict"] == "refused"


def test_json_tells_what_a_fix_did(folder: Path) -> None:
    done = validate(folder, "bad.json", "--fix", "--format", "json")
    fixes = {"count": 1, "written": True, "deleted": [], "backup": "bad.json.bak"}
    assert json.loads(done.out)["files"][0]["fixes"] == fixes


def test_json_holds_what_was_mended(folder: Path) -> None:
    done = validate(folder, "bad.json", "--fix", "--format", "json")
    assert list(json.loads(done.out)["diffs"]) == ["bad.json"]


def test_an_accelerate_config_is_not_written_to(folder: Path) -> None:
    text = 'distributed_type: DEEPSPEED\ndeepspeed_config:\n  zero_stage: "2"\n'
    (folder / "a.yaml").write_text(text)
    assert (validate(folder, "a.yaml", "--fix").status, (folder / "a.yaml").read_text()) == (2, text)


def test_an_accelerate_config_that_names_itself_is_refused(folder: Path) -> None:
    named = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: a.yaml\n"
    (folder / "a.yaml").write_text(named)
    done = validate(folder, "a.yaml")
    assert (done.status, "Traceback" in done.err) == (65, False)


def test_arguments_are_judged_once_for_all_files(folder: Path) -> None:
    done = validate(folder, "good.json", "silent.json", "--", "--evaluation_strategy", "no")
    assert done.out.count("[removed-argument]") == 1


def test_what_a_terminal_would_obey_is_shown(folder: Path) -> None:
    (folder / "esc.json").write_text('{"train_batch_size": 8, "a\\u001b[31m": 1}')
    assert "\x1b" not in validate(folder, "esc.json").out


def test_a_file_is_checked_for_the_program_that_is_named(folder: Path) -> None:
    source = "parser = deepspeed.add_config_arguments(argparse.ArgumentParser())\n"
    (folder / "loop.py").write_text(f"import argparse, deepspeed\n{source}")
    config = {
        "train_batch_size": 16,
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": 0},
    }
    (folder / "sgd.json").write_text(json.dumps(config))
    done = validate(folder, "sgd.json", "--", "loop.py", "--steps", "8")
    assert (done.status, "differs-from-argument" in done.out) == (0, False)


def test_arguments_that_the_installed_torch_does_not_know_or_lacks_are_found(tmp_path: Path) -> None:
    optimizer = {"type": "SGD", "params": {"lr": 0.1, "momentums": 0.9}}
    scheduler = {"type": "CosineAnnealingLR", "params": {"eta_min": 0}}
    (tmp_path / "ds.json").write_text(
        json.dumps({"train_batch_size": 8, "optimizer": optimizer, "scheduler": scheduler})
    )
    done = zlaunch("config", "validate", "ds.json", cwd=tmp_path)
    assert done.status == 65
    assert "torch's SGD has no argument `momentums`\n  hint: did you mean `momentum`?" in done.out
    assert "torch's CosineAnnealingLR needs the argument `T_max`" in done.out


def test_without_a_file_it_checks_what_it_finds_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "ds_config.json").write_text(GOOD)
    (tmp_path / "configs" / "zero2.json").write_text(BAD)
    done = validate(tmp_path)
    head, *_, total = done.err.splitlines()
    assert head == "found 2 ds_configs: ds_config.json, configs/zero2.json"
    assert (done.status, total) == (65, "2 checked: 1 valid, 1 refused")


def test_of_many_files_those_without_findings_are_only_counted(tmp_path: Path) -> None:
    for number in range(11):
        (tmp_path / f"{number}.json").write_text(GOOD)
    (tmp_path / "wrong.json").write_text('{"zero_optimization": {"stage": 4}}')
    done = validate(tmp_path, *(file.name for file in tmp_path.iterdir()))
    assert "12 checked: 11 valid, 1 refused" in done.err
    assert "wrong.json: refused" in done.err
    assert ".json: valid" not in done.err
    assert validate(tmp_path, "--verbose", "wrong.json", *(["1.json"] * 11)).err.count(".json: valid") == 11


def test_without_a_file_arguments_of_the_trainer_count(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text(GOOD)
    assert "[differs-from-argument]" in validate(tmp_path, "--", "--per_device_train_batch_size", "4").out


def test_where_nothing_is_found_the_error_says_what_to_type(tmp_path: Path) -> None:
    done = validate(tmp_path)
    assert done.status == 66
    assert "hint: `zlaunch config validate FILE`" in done.err


def test_json_is_a_short_form_of_the_format(folder: Path) -> None:
    assert validate(folder, "bad.json", "--json").out == validate(folder, "bad.json", "--format", "json").out


def test_json_and_another_format_are_refused(folder: Path) -> None:
    done = validate(folder, "bad.json", "--json", "--format", "sarif")
    assert (done.status, done.out) == (2, "")


def test_a_config_of_accelerate_in_json_is_named_and_read_as_one(folder: Path) -> None:
    config = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}}
    (folder / "acc.json").write_text(json.dumps(config))
    done = validate(folder, "acc.json")
    assert (done.status, "[accelerate-config]" in done.out) == (0, True)
