"""The installed releases of the packages that a job runs with."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path

from zlaunch.dsconfig.releases import Release, nearest
from zlaunch.frozen import dataclass
from zlaunch.job.trainer_releases import TrainerRelease, is_before
from zlaunch.units import numbers_of

TESTED: Mapping[str, tuple[str, str]] = {
    "torch": ("2.13", "2.15"),
    "deepspeed": ("0.15", "0.19"),
    "transformers": ("4.46", "5.24"),
    "accelerate": ("1.1", "1.15"),
}
"""Package → the oldest and the newest release in docs/versions.md.

All tests ran with the newest of each, but with the oldest torch, that of `constraints.txt`.
"""


FORCED_LOAD = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
"""The variable with which `torch.load` takes all classes unless its caller says otherwise."""


@dataclass(frozen=True)
class SoftwareStack:
    """Installed versions; an unknown one counts as the newest."""

    versions: Mapping[str, str | None] = field(default_factory=dict)
    torch: Path | None = None
    """The folder of torch; None if it is unknown."""

    @property
    def deepspeed(self) -> Release:
        """The DeepSpeed release that reads the ds_config."""
        return nearest(self.versions.get("deepspeed"))

    @property
    def trainer(self) -> TrainerRelease:
        """The releases whose Trainer reads the arguments."""
        return TrainerRelease(self.versions.get("transformers"), self.versions.get("torch"))

    @property
    def refuses_classes(self) -> bool:
        """Whether `torch.load` by default refuses classes that are not torch's own, as since torch 2.6."""
        return not is_before(self.versions.get("torch"), "2.6")

    def optimizer_on_host(self, optim: str) -> str:
        """The optimizer of `--optim` as accelerate offloads it; before 1.2, that is always Adam."""
        if is_before(self.versions.get("accelerate"), "1.2"):
            return "adamw_torch"
        return optim

    def is_tested(self, name: str) -> bool:
        """Whether a package is as old or new as those that zlaunch was tested with."""
        version, (oldest, newest) = self.versions.get(name), TESTED[name]
        return version is None or numbers_of(oldest) <= numbers_of(version) <= numbers_of(newest)

    def is_newest(self, name: str) -> bool:
        """Whether this is the newest release of a package that zlaunch was tested with."""
        version = self.versions.get(name)
        return version is None or numbers_of(version) == numbers_of(TESTED[name][1])

    def untested(self) -> Iterator[str]:
        """Say which versions zlaunch was not tested with, if there are any."""
        if versions := ", ".join(self._untested()):
            yield f"zlaunch was not tested with {versions}"

    def _untested(self) -> Iterator[str]:
        """Describe each version that is older or newer than all that zlaunch was tested with."""
        for name in (name for name in TESTED if not self.is_tested(name)):
            oldest, newest = TESTED[name]
            tested = newest
            if oldest != newest:
                tested = f"{oldest} to {newest}"
            yield f"{name} {self.versions[name]} (tested: {tested})"
