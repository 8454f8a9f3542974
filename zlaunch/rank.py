"""The old name of `zlaunch.worker.rank`, in recorded run.sh files; gone with the next release."""

import runpy

if __name__ == "__main__":
    runpy.run_module("zlaunch.worker.rank", run_name="__main__", alter_sys=True)
