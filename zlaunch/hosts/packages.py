"""The packages that jobs and estimates need; configs and records of runs need none of them."""

import importlib.util
import sys
from collections.abc import Sequence

from zlaunch.errors import Unavailable

TRAINING = ("torch", "deepspeed")
"""Every job needs them; the rest is up to its script."""
RECIPE = (*TRAINING, "transformers", "accelerate", "datasets")
ESTIMATING = (*TRAINING, "transformers")


def is_importable(package: str) -> bool:
    """Whether a package is installed; a mere directory of that name, as wandb leaves one, does not count."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def require(what: str, packages: Sequence[str]) -> None:
    """Raise Unavailable with all packages that are not installed; `what` needs them."""
    if missing := [name for name in packages if not is_importable(name)]:
        raise not_installed(missing, f"{what} needs")


def not_installed(packages: Sequence[str], before: str = "zlaunch needs") -> Unavailable:
    """Name missing packages and their environment, and say how to install them."""
    *some, last = packages
    names, verb = (f"{', '.join(some)} and {last}", "are") if some else (last, "is")
    return Unavailable(
        f"{before} {names}, which {verb} not installed in {sys.prefix}",
        "`pip install zlaunch`, in that environment, installs what is missing",
    )
