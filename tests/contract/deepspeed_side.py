"""How to ask the installed DeepSpeed what it thinks of a ds_config, without ranks and without GPUs."""

from collections.abc import KeysView, Mapping
from typing import Any
from unittest import mock

from deepspeed.runtime.config import DeepSpeedConfig

NO_DEFAULT = object()


class Asked(dict[str, Any]):
    """An object of a ds_config that remembers which keys it was asked for, and with which defaults."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.defaults: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return True

    def __contains__(self, key: object) -> bool:
        self.defaults.setdefault(str(key), NO_DEFAULT)
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.defaults.setdefault(key, NO_DEFAULT)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.defaults[key] = default
        return super().get(key, default)

    def pop(self, key: str, default: Any = NO_DEFAULT) -> Any:
        self.defaults.setdefault(key, default)
        return super().pop(key, default)

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return KeysView(self)

    def scalar_defaults(self) -> dict[str, Any]:
        """Name the defaults that are plain values, not whole sections."""
        return {
            key: value
            for key, value in self.defaults.items()
            if value is not NO_DEFAULT and not isinstance(value, dict)
        }


class Ranks:
    """What DeepSpeed takes for a model-parallel unit: it says how many data-parallel ranks there are."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def get_data_parallel_world_size(self) -> int:
        return self.world_size

    def get_data_parallel_rank(self) -> int:
        return 0


def deepspeed_reads(config: dict[str, Any], world_size: int = 1) -> Any:
    """Read a ds_config as every rank does; whatever DeepSpeed raises comes through."""
    with mock.patch("deepspeed.runtime.config.dist.get_rank", return_value=0):
        return DeepSpeedConfig(config, mpu=Ranks(world_size))


def asked(*path: str, **content: Any) -> Asked:
    """Let DeepSpeed read a ds_config, and see what it looks for in the object at a path."""
    block = Asked(content)
    config: dict[str, Any] = block
    for key in reversed(path):
        config = {key: config}
    if path:
        config["train_batch_size"] = 1
    with mock.patch("deepspeed.runtime.config.dist.get_rank", return_value=0):
        DeepSpeedConfig(config)
    return block
