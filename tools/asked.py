"""A dict that remembers what it was asked for: how we learn which keys a reader of ours looks at."""

from collections.abc import KeysView, Mapping
from typing import Any

NO_DEFAULT = object()


class Asked(dict[str, Any]):
    """An object of a ds_config that remembers which keys it was asked for, and with which defaults."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.defaults: dict[str, Any] = {}

    def __bool__(self) -> bool:
        """Be there, so that readers do not skip an empty object."""
        return True

    def __contains__(self, key: object) -> bool:
        """Remember the key."""
        self.defaults.setdefault(str(key), NO_DEFAULT)
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        """Remember the key."""
        self.defaults.setdefault(key, NO_DEFAULT)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Remember the key and its default."""
        self.defaults[key] = default
        return super().get(key, default)

    def pop(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """Remember the key."""
        self.defaults.setdefault(key, default)
        return super().pop(key, default)

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        """Ask through this dict, so that `key in block.keys()` is remembered too."""
        return KeysView(self)

    def scalar_defaults(self) -> dict[str, Any]:
        """Name the defaults that are plain values, not whole sections."""
        return {
            key: value
            for key, value in self.defaults.items()
            if value is not NO_DEFAULT and not isinstance(value, dict)
        }
