"""A dict that records which keys are read, to find out which keys a program knows."""

from collections.abc import KeysView, Mapping
from typing import Any

NO_DEFAULT = object()


class Asked(dict[str, Any]):
    """An object of a ds_config that records which keys are read, and with which defaults."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        super().__init__(content)
        self.defaults: dict[str, Any] = {}

    def __bool__(self) -> bool:
        """Return True, so that readers do not skip an empty object."""
        return True

    def __contains__(self, key: object) -> bool:
        """Record the key."""
        self.defaults.setdefault(str(key), NO_DEFAULT)
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        """Record the key."""
        self.defaults.setdefault(key, NO_DEFAULT)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Record the key and its default."""
        self.defaults[key] = default
        return super().get(key, default)

    def pop(self, key: str, default: Any = NO_DEFAULT) -> Any:
        """Record the key."""
        self.defaults.setdefault(key, default)
        return super().pop(key, default)

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        """Return a view that records `key in block.keys()` too."""
        return KeysView(self)

    def scalar_defaults(self) -> dict[str, Any]:
        """Return the defaults, except for whole sections."""
        return {
            key: value
            for key, value in self.defaults.items()
            if value is not NO_DEFAULT and not isinstance(value, dict)
        }
