import importlib
import importlib.util
from pathlib import Path

import pytest

from tests.each import each
from zlaunch.errors import InputMissing
from zlaunch.job.module_files import find_module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


def put(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("raise SystemExit('this was imported')\n")
    importlib.invalidate_caches()


def told(name: str, **environ: str) -> InputMissing:
    with pytest.raises(InputMissing) as missing:
        find_module(name, environ)
    return missing.value


@pytest.mark.parametrize(
    "name", ["json.tool", "http.server", "email.mime.text", "pytest", "unittest", "zlaunch"]
)
def test_a_module_is_where_python_finds_it(name: str) -> None:
    found = importlib.util.find_spec(name)
    assert found is not None
    main = importlib.util.find_spec(f"{name}.__main__") if found.submodule_search_locations else found
    assert main is not None
    assert str(find_module(name, {})) == main.origin


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("alone", "alone.py"),
        ("pack.age.part", "pack/age/part.py"),
        ("pack.age", "pack/age/__main__.py"),
        ("spaced.part", "spaced/part.py"),
        ("spaced.age.part", "spaced/age/part.py"),
        ("spaced", "spaced/__main__.py"),
        ("pack.age.__main__", "pack/age/__main__.py"),
    ],
)
def test_a_module_is_found_from_the_working_directory_without_importing_anything(
    name: str, file: str, folder: Path
) -> None:
    put(folder, "alone.py", "pack/__init__.py", "pack/age/__init__.py", "pack/age/part.py")
    put(folder, "pack/age/__main__.py", "spaced/part.py", "spaced/__main__.py", "spaced/age/part.py")
    assert find_module(name, {}) == folder / file


def test_the_working_directory_comes_before_what_is_installed(folder: Path) -> None:
    put(folder, "jsonschema/__main__.py", "jsonschema/__init__.py")
    assert find_module("jsonschema", {}) == folder / "jsonschema" / "__main__.py"


def test_the_working_directory_does_not_count_where_python_leaves_it_out(folder: Path) -> None:
    put(folder, "alone.py")
    assert "no module `alone`" in told("alone", PYTHONSAFEPATH="1").message


@each(
    ("name", "hint"),
    [
        ("pack.trian", "did you mean `-m pack.train`?"),
        ("pcak.train", "did you mean `-m pack.train`?"),
        ("pack", "write `-m pack.NAME`; it has `other`, `train`"),
        ("pack.zzz", "it has `other`, `train`"),
        ("pack.train.zzz", "pack.train is a module, not a package"),
        ("pack/train.py", "write `zlaunch train pack/train.py`"),
        ("alone.py", "write `-m alone`"),
        ("pack-train", "write it as in `import`: `-m package.module`"),
        (".train", "write it as in `import`: `-m package.module`"),
        ("", "write it as in `import`: `-m package.module`"),
        ("pack..train", "write it as in `import`: `-m package.module`"),
        ("turtel.scripts.sft", "start where `python -m` finds it, or name its file: `zlaunch train FILE`"),
        ("zzzqqq", "start where `python -m` finds it, or name its file: `zlaunch train FILE`"),
    ],
)
def test_a_module_that_is_not_there_comes_with_what_to_type(name: str, hint: str, folder: Path) -> None:
    put(folder, "alone.py", "pack/__init__.py", "pack/train.py", "pack/other.py")
    assert told(name).hint == hint


def test_a_module_without_source_is_none_to_read(folder: Path) -> None:
    assert "no Python source" in told("_struct").message


def test_a_link_that_leads_nowhere_is_no_module_to_suggest(folder: Path) -> None:
    for name in ("train.py", "trian.py"):
        (folder / name).symlink_to(folder / "nosuch")
    missing = told("train")
    assert "there is no module `train`" in missing.message
    assert "trian" not in (missing.hint or "")
