"""The installed packages, asked offline: DeepSpeed takes this machine for a CPU, whatever it has."""

import logging
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
    del os.environ[name]

logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
