"""The door to programs, each test in a process of its own: it becomes a reaper and heeds signals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import zlaunch
from tests.running import ROOT
from zlaunch.process import ours

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
)
PLAIN = "import time; time.sleep(60)"


def told(program: str, body: str) -> str:
    """Run statements in which `child` is a program that runs, its log `log`."""
    setting = f"""
import os, pathlib, signal, subprocess, sys, tempfile, time
from zlaunch import process
from zlaunch.process import Child, LauncherProcess
log = pathlib.Path(tempfile.mkdtemp()) / "log"
start = lambda kind, grace: kind([sys.executable, "-c", {program!r}], os.environ, log.open("wb"), grace)
"""
    done = subprocess.run(
        [sys.executable, "-c", setting + body],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


KILLED = """
child = start({kind}, 0.3)
while not log.read_text():
    time.sleep(0.01)
child.on_signal(signal.SIGTERM, None)
print(child.wait(lambda: None))
"""


def test_a_program_that_had_to_be_killed_was_killed() -> None:
    assert told(STUBBORN, KILLED.format(kind="Child")) == "-9"


def test_a_launcher_that_had_to_be_killed_was_killed() -> None:
    assert told(STUBBORN, KILLED.format(kind="LauncherProcess")) == "-9"


ORPHANED = """
import subprocess, sys
ending = "import time; print('waits', flush=True); time.sleep(0.6); print('ended', flush=True)"
subprocess.Popen([sys.executable, "-c", ending, "{name}"])
"""


@pytest.mark.parametrize(
    ("name", "ended"), [("zlaunch.worker.rank", "1"), ("zlaunch.rank", "1"), ("other", "0")]
)
def test_ranks_of_either_name_get_their_time_to_end_after_their_launcher(name: str, ended: str) -> None:
    body = "start(LauncherProcess, 20.0).wait(lambda: None)\nprint(log.read_text().count('ended'))"
    assert told(ORPHANED.format(name=name), body) == ended


def test_ranks_of_a_launcher_that_is_killed_are_told_to_stop() -> None:
    ending = "import signal; print('waits', flush=True); signal.pause()"
    launcher = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {ending!r}, "zlaunch.worker.rank"])
time.sleep(60)
"""
    body = """
child = start(LauncherProcess, 20.0)
while not log.read_text():
    time.sleep(0.01)
os.kill(child.pid, signal.SIGINT)
begin = time.monotonic()
print(child.wait(lambda: None), time.monotonic() - begin < 10)
"""
    assert told(launcher, body) == "-2 True"


def test_a_daemon_gets_no_time_to_end_after_a_launcher_that_was_stopped() -> None:
    launcher = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {PLAIN!r}], start_new_session=True)
print(flush=True)
time.sleep(60)
"""
    body = """
child = start(LauncherProcess, 20.0)
while not log.read_text():
    time.sleep(0.01)
child.on_signal(signal.SIGTERM, None)
begin = time.monotonic()
print(child.wait(lambda: None), time.monotonic() - begin < 10)
"""
    assert told(launcher, body) == "-15 True"


def test_a_signal_that_comes_while_a_program_is_started_reaches_it() -> None:
    body = """
begin = subprocess.Popen
def slowly(*args, **options):
    os.kill(os.getpid(), signal.SIGINT)
    return begin(*args, **options)
process.subprocess.Popen = slowly
child = start(Child, 5.0)
print(child.wait(lambda: None), child.stopped_by.name)
"""
    status, by = told(PLAIN, body).split()
    assert (status in ("-2", "1"), by) == (True, "SIGINT")  # 1 if Python itself was still starting


def test_a_signal_before_the_wait_reaches_the_program() -> None:
    body = """
child = start(Child, 5.0)
os.kill(os.getpid(), signal.SIGTERM)
print(child.wait(lambda: None), child.stopped_by.name)
"""
    assert told(PLAIN, body) == "-15 SIGTERM"


TIDY = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), sys.exit(3)))
print(flush=True)
time.sleep(60)
"""

TOLD_TWICE = """
child = start(process.Foreground, 30.0)
while not log.read_text():
    time.sleep(0.01)
{first}
os.kill(os.getpid(), signal.SIGTERM)
print(child.wait(lambda: None))
"""


def test_a_signal_after_its_order_in_a_file_is_no_second_one() -> None:
    body = TOLD_TWICE.format(first="child.on_signal(signal.SIGTERM, None)")
    assert told(TIDY, body) == "3"


def test_a_second_signal_ends_a_program_at_once() -> None:
    assert told(TIDY, TOLD_TWICE.format(first="os.kill(os.getpid(), signal.SIGTERM)")) == "-9"


def test_a_second_sigterm_is_no_order_where_it_asks_to_save() -> None:
    body = """
asked = []
child = process.Foreground([sys.executable, "-c", "import time; time.sleep(1)"], os.environ, log.open("wb"), 30.0, shielded=True)
child.save_first = lambda number: asked.append(number) is None
os.kill(os.getpid(), signal.SIGTERM)
os.kill(child.pid, signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
print(child.wait(lambda: None), len(asked), child.stopped_by)
"""
    assert told(PLAIN, body) == "0 2 None"


SHIELDED = """
process.shield_from_sigterm()
other = subprocess.Popen([sys.executable, "-c", f"import os, signal; os.kill({os.getpid()}, signal.SIGTERM)"])
other.wait()
print(process.is_told_by_parent(), end=" ")
child = start(Child, 5.0)
os.kill(child.pid, signal.SIGTERM)
time.sleep(0.5)
is_running = child._process.poll() is None
child.on_signal(signal.SIGTERM, None)
print(is_running, child.wait(lambda: None), child.stopped_by.name)
"""


def test_a_shielded_program_is_ended_only_by_who_started_it() -> None:
    assert told(PLAIN, SHIELDED) == "False True -1 SIGTERM"


def test_a_shielded_program_ends_under_nohup_too() -> None:
    body = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
child = Child([sys.executable, "-c", "import time; time.sleep(60)"], os.environ, log.open("wb"), 5.0, shielded=True)
process.shield_from_sigterm()
child.on_signal(signal.SIGTERM, None)
print(child.wait(lambda: None))
"""
    assert told(PLAIN, body) == "-1"


def test_a_shielded_program_knows_that_its_parent_wants_it_to_end() -> None:
    parent = """
rank = "import sys, time\\nfrom zlaunch import process\\nprocess.shield_from_sigterm()\\nprint(flush=True)\\nwhile not process.is_told_by_parent(): time.sleep(0.05)\\nsys.exit(7)"
other = subprocess.Popen([sys.executable, "-c", rank], stdout=subprocess.PIPE)
other.stdout.readline()
other.terminate()
print(other.wait(20))
"""
    assert told(PLAIN, parent) == "7"


def test_handlers_are_as_before_after_the_wait() -> None:
    body = """
before = signal.getsignal(signal.SIGTERM)
child = start(Child, 5.0)
child.on_signal(signal.SIGTERM, None)
child.wait(lambda: None)
print(signal.getsignal(signal.SIGTERM) is before)
"""
    assert told(PLAIN, body) == "True"


def test_a_signal_after_a_final_result_does_not_change_the_exit_status() -> None:
    body = """
with process.signals_as_exceptions(is_final=True):
    process.defer_signals()
    os.kill(os.getpid(), signal.SIGINT)
os.kill(os.getpid(), signal.SIGTERM)
print("the same")
"""
    assert told(PLAIN, body) == "the same"


def test_a_second_signal_waits_until_the_first_was_dealt_with() -> None:
    body = """
try:
    with process.signals_as_exceptions(is_final=True):
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        except process.Stopped as first:
            os.kill(os.getpid(), signal.SIGTERM)
            print(first.number.name, flush=True)
        process.heed_signals()
except process.Stopped as second:
    print(second.number.name)
"""
    assert told(PLAIN, body) == "SIGHUP\nSIGTERM"


def test_an_end_that_takes_too_long_is_not_waited_for() -> None:
    body = """
child = start(Child, 60.0)
child.end_within(0.3)
print(child.wait(lambda: None), child.stopped_by)
"""
    assert told(PLAIN, body) == "-9 None"


def test_a_process_whose_parent_ended_before_it_could_ask_ends_too() -> None:
    orphan = "import os; from zlaunch.process import die_with_parent; die_with_parent(os.getpid())"
    done = subprocess.run([sys.executable, "-c", orphan], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -9


def test_a_program_of_ours_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    installed, here = tmp_path / "installed", tmp_path / "here"
    for folder in (installed, here):
        folder.mkdir()
        (folder / "mine.py").write_text(
            "import sys, zlaunch\nprint(__name__, __file__, sys.argv[1:], zlaunch.__file__)"
        )
    for name in ("zlaunch", "runpy", "os"):
        (here / f"{name}.py").write_text("raise ImportError\n")
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        ours("mine", "a", "b"), cwd=here, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"__main__ {installed / 'mine.py'} ['a', 'b'] {zlaunch.__file__}\n"
