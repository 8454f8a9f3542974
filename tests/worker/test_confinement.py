import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from zlaunch.worker.hook.confinement import Confinement
from zlaunch.worker.hook.other_programs import program_among


@pytest.fixture
def confinement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Confinement:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return Confinement(folder)


def test_a_file_that_is_appended_to_is_copied_first(confinement: Confinement, tmp_path: Path) -> None:
    file = tmp_path / "history.txt"
    file.write_text("before\n")
    with Path(confinement._place(str(file), True)).open("a") as copy:
        copy.write("after\n")
    assert Path(confinement._place(str(file), False)).read_text() == "before\nafter\n"
    assert file.read_text() == "before\n"


def test_a_file_that_is_replaced_is_not_copied(confinement: Confinement, tmp_path: Path) -> None:
    file = tmp_path / "history.txt"
    file.write_text("before\n")
    assert not Path(confinement._place(str(file), True, replaces=True)).exists()


TELLING = """
git rev-parse HEAD 2>/dev/null
git -C '/a b' --no-pager log -1 --format=%H
git status --porcelain
git diff --stat HEAD~1 | wc -l
git config --get user.name
git config user.name
git branch --show-current
nvidia-smi --query-gpu=memory.used -i 0,1 --format=csv,noheader
nvidia-smi topo -m
/sbin/ldconfig -p
LC_ALL=C lscpu | grep -i model
c++ -dumpfullversion -dumpversion
nvcc -V 2>&1
python3.11 --version
python3 -m pip list --format=freeze
which gcc && uname -a
command -v git
hostname -I
whoami
dpkg -l libaio-dev
ffmpeg -i pipe:0 -ac 1 -f f32le pipe:1
""".strip().splitlines()

DOING = """
git push
git -C . commit -m done
git config user.name somebody
git config --unset user.name
git log --output=log.txt
git tag v1
git fetch
nvidia-smi -pm 1
nvidia-smi --gpu-reset
python prepare.py
python -m pip install wheel
cc -o tool tool.c
echo done > out.txt
echo a; rm b
echo $(rm b)
echo `rm b`
ls | xargs rm
(rm b)
command rm b
ls & rm b
FOO=1 rm b
date -s 12:00
hostname other
ffmpeg -i a.wav b.mp3
aws s3 cp a b
""".strip().splitlines()


@pytest.mark.parametrize("line", TELLING)
def test_a_program_that_only_tells_something_is_started(line: str) -> None:
    assert program_among(["/bin/sh", "-c", line]) is None


@pytest.mark.parametrize("line", [*DOING, "echo a\nrm b"])
def test_a_program_that_does_more_is_not_started(line: str) -> None:
    assert program_among(["/bin/sh", "-c", line]) is not None


STARTS = {
    "subprocess": "subprocess.run(['touch', made])",
    "a shell": "subprocess.run('touch ' + made, shell=True)",
    "os.popen": "os.popen('touch ' + made).read()",
    "os.system": "assert os.system('touch ' + made) == 127 << 8",
    "os.execvp": "os.execvp('touch', ['touch', made])",
    "a fork that executes": "os.fork() or os.execvp('touch', ['touch', made]); os.wait()",
    "os.posix_spawnp": "os.posix_spawnp('touch', ['touch', made], os.environ)",
    "os.spawnlp": "os.spawnlp(os.P_WAIT, 'touch', 'touch', made)",
    "pty": "import pty; pty.spawn(['touch', made])",
    "multiprocessing": (
        "import multiprocessing, pathlib; context = multiprocessing.get_context('spawn');"
        " process = context.Process(target=pathlib.Path.touch, args=(pathlib.Path(made),));"
        " process.start(); process.join()"
    ),
}
"""Ways to start another program, each of which makes a file."""

CONFINED = """
import os, subprocess, sys, tempfile
from pathlib import Path
from zlaunch.worker.hook.confinement import Confinement

made, code = sys.argv[1:]
Confinement(Path(tempfile.mkdtemp()), not_started=lambda name: print(name, flush=True)).install()
if __name__ == "__main__":
    exec(code)
"""


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, bool]]:
    """Start a program in every way; return what each try says, and whether its file was made."""
    folder = tmp_path_factory.mktemp("starts")
    (folder / "confined.py").write_text(CONFINED)
    tries = {}
    for number, (way, code) in enumerate(STARTS.items()):
        made = folder / f"made-{number}"
        argv = [sys.executable, str(folder / "confined.py"), str(made), code]
        done = subprocess.run(
            argv,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        tries[way] = (done.stdout + done.stderr, made.exists())
    return tries


@pytest.mark.parametrize("way", STARTS)
def test_no_way_to_start_a_program_is_open(way: str, confined: dict[str, tuple[str, bool]]) -> None:
    told, was_made = confined[way]
    assert not was_made
    assert told.splitlines()[0] in ("touch", Path(sys.executable).name)


CHANGES = {
    "deletes a link to a cache": ("os.remove('link')", "PermissionError"),
    "renames a link to a cache": ("os.rename('link', 'other')", "PermissionError"),
    "makes a link": ("os.symlink('kept', 'made'); os.symlink('kept', 'made')", ""),
    "makes a link that is there": ("os.symlink('kept', 'link')", "FileExistsError"),
    "makes a hard link and writes to it": (
        "os.link('kept', 'made'); open('made', 'w').write('new'); print(open('made').read())",
        "new",
    ),
    "renames a temporary file to a new one": (
        "open(temporary, 'w').write('new'); os.replace(temporary, 'made'); print(open('made').read())",
        "new",
    ),
    "renames a temporary file to an old one": (
        "open(temporary, 'w').write('new'); os.replace(temporary, 'kept'); print(open('kept').read())",
        "new",
    ),
    "deletes a temporary directory with a file of the same name": (
        "os.mkdir(temporary); open(temporary + '/kept', 'w').close(); shutil.rmtree(temporary)",
        "",
    ),
    "deletes a temporary directory with a file named like one that it wrote": (
        (
            "open('made', 'w').write('new'); os.mkdir(temporary); open(temporary + '/made', 'w').close();"
            " shutil.rmtree(temporary); print(open('made').read())"
        ),
        "new",
    ),
    "renames a directory that it made": (
        "os.mkdir('made'); os.rename('made', 'other'); os.rmdir('other')",
        "",
    ),
}
"""Ways to change the current directory → the code, and what the program says last."""

CHANGING = """
import os, shutil, sys, tempfile
from pathlib import Path
from zlaunch.worker.hook.confinement import Confinement

tempfile.tempdir, code = sys.argv[1:]
temporary = tempfile.tempdir + "/temporary"
Confinement(Path(tempfile.mkdtemp())).install()
exec(code)
"""


@pytest.mark.parametrize("way", CHANGES)
def test_no_way_to_change_a_directory_is_open(way: str, tmp_path: Path) -> None:
    code, says = CHANGES[way]
    for name in ("work", "temporary", "cache"):
        (tmp_path / name).mkdir()
    work = tmp_path / "work"
    (work / "kept").write_text("old")
    (tmp_path / "cache" / "file").touch()
    (work / "link").symlink_to(tmp_path / "cache" / "file")
    done = subprocess.run(
        [sys.executable, "-c", CHANGING, str(tmp_path / "temporary"), code],
        cwd=work,
        env={**os.environ, "HF_HOME": str(tmp_path / "cache")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    last = "\n".join(["", *(done.stdout + done.stderr).splitlines()[-1:]]).strip()
    assert last.partition(":")[0] == says
    assert sorted(path.name for path in work.iterdir()) == ["kept", "link"]
    assert (work / "kept").read_text() == "old"
