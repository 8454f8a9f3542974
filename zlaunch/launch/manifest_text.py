"""Manifests of Kubernetes as YAML."""

from typing import Any

import yaml


def manifest_text(manifest: Any) -> str:
    """Write a manifest in the usual style."""
    text: str = yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)
    return text


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes texts of several lines as they are, and the items of lists below their key."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)
