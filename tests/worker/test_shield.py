"""A script that was started with SIGTERM blocked, in a process of its own."""

import subprocess
import sys

from tests.running import ROOT

ENDS_ITS_OWN = """
import multiprocessing, os, signal, subprocess, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
from zlaunch.worker.hook.shield import shield_children
shield_children()
pool = multiprocessing.get_context("fork").Pool(1)
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
worker.start()
os.kill(os.getpid(), 0)
worker.terminate()
program.terminate()
pool.terminate()
pool.join()
worker.join()
print(worker.exitcode, program.wait())
"""


def test_a_script_can_end_its_own_processes_where_sigterm_is_blocked() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS_ITS_OWN],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.strip() == "-1 -1", done.stderr
