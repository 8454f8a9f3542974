"""The models as JSON Schema, draft 2020-12, for editors.

It accepts what the models accept, key by key; it has no rules between keys.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from zlaunch.dsconfig.keys.docs import meaning, sections
from zlaunch.dsconfig.releases import NEWEST, Release
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import Section, in_lower_case, not_null
from zlaunch.dsconfig.text.document import KeyPath

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ANY = "*"
"""Placeholder in a path for names and numbers that users choose."""

_NAMES = {
    "<adam>": ("Adam", "AdamW"),
    "<lion>": ("Lion",),
    "<adagrad>": ("Adagrad",),
    "<lamb>": ("Lamb",),
    "<muon>": ("Muon",),
    "<mup>": ("MuAdam", "MuAdamW", "MuSGD"),
}
"""The optimizers that DeepSpeed accepts in any case, in their usual spelling."""


class _Generator(GenerateJsonSchema):
    """Adds what pydantic's generator cannot know: the effect of validator functions."""

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Write a union with "auto", or of optimizers or schedulers."""
        arms = {str(tag): self.generate_inner(arm) for tag, arm in schema["choices"].items()}
        if "<auto>" in arms:
            return {"anyOf": list(arms.values())}
        return _by_type(arms, self.definitions)

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Write words in any case, and keys that may not be null."""
        inner = super().function_before_schema(schema)
        function = schema["function"]["function"]
        if function is not_null:
            kept = [arm for arm in inner.get("anyOf", []) if arm != {"type": "null"}]
            return kept[0] if len(kept) == 1 else inner
        return _in_any_case(inner["enum"]) if function is in_lower_case else inner


def _in_any_case(words: Iterable[str]) -> JsonSchemaValue:
    """Suggest words in their usual spelling, and accept them in any case."""
    words = list(words)
    spelled = ("".join(f"[{c.lower()}{c.upper()}]" if c.isalpha() else c for c in word) for word in words)
    return {"type": "string", "anyOf": [{"enum": words}, {"pattern": f"^({'|'.join(spelled)})$"}]}


def _by_type(arms: Mapping[str, JsonSchemaValue], definitions: Mapping[Any, Any]) -> JsonSchemaValue:
    """Choose between objects by their key `type`."""
    names = {
        tag: _in_any_case(_NAMES[tag]) if tag in _NAMES else _type_of(arm, definitions)
        for tag, arm in arms.items()
    }
    return {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"description": _TYPE, "anyOf": [*names.values()]}},
        "allOf": [{"if": {"properties": {"type": names[tag]}}, "then": arm} for tag, arm in arms.items()],
    }


_TYPE = "Name of one of DeepSpeed's own, or of a PyTorch class."


def _type_of(arm: JsonSchemaValue, definitions: Mapping[Any, Any]) -> JsonSchemaValue:
    """List the names of an arm; a name of both DeepSpeed and torch is DeepSpeed's."""
    written = definitions[arm["$ref"].rpartition("/")[2]]["properties"]["type"]
    if "const" in written:
        return {"const": written["const"]}
    taken = {name for names in _NAMES.values() for name in names}
    return {"enum": [name for name in written["enum"] if name not in taken]}


def json_schema(release: Release = NEWEST) -> JsonSchemaValue:
    """Write the schema of a release."""
    raw = DsConfig.model_json_schema(schema_generator=_Generator)
    models = {model.__name__: model for model in sections()}
    whole = _Plain(raw.pop("$defs"), models, release).section(raw, DsConfig, ())
    editors = {"type": "string", "description": "Location of this schema, for editors; DeepSpeed ignores it."}
    return {
        "$schema": DIALECT,
        "title": f"ds_config for DeepSpeed {release.name}",
        **whole,
        "properties": {"$schema": editors, **whole["properties"]},
    }


class _Plain:
    """Inlines definitions, describes every key, and drops what a release does not read."""

    def __init__(
        self, definitions: Mapping[str, Any], models: Mapping[str, type[Section]], release: Release
    ) -> None:
        self._definitions, self._models, self._release = definitions, models, release

    def section(self, node: Mapping[str, Any], model: type[Section], path: KeyPath) -> JsonSchemaValue:
        """Write an object with known keys."""
        properties: JsonSchemaValue = {}
        for key, value in node["properties"].items():
            for name in _spellings(model, key):
                if self._release.knows((*path, name)) or self._is_free(path):
                    properties[name] = self._key(value, model, key, (*path, name))
        for name in self._older(path, properties):
            properties[name] = {
                "description": f"Read by DeepSpeed {self._release.name}; not by {NEWEST.name}."
            }
        required = [key for key in node.get("required", ()) if key in properties]
        return {
            "type": "object",
            "description": (model.__doc__ or "").partition("\n")[0],
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }

    def _key(self, value: Any, model: type[Section], key: str, path: KeyPath) -> JsonSchemaValue:
        words = meaning(model, key)
        node = {**self.plain(value, path), "description": words}
        node.pop("default", None)
        default = self._default(model, key, path)
        if (
            isinstance(default, float)
            and node.get("type") != "number"
            and default.is_integer()
            and default > 1
        ):
            default = int(default)
        if default is not None:
            node["default"] = default
        if value.get("deprecated"):
            node["deprecated"] = True
        return node

    def _default(self, model: type[Section], key: str, path: KeyPath) -> Any:
        if path in self._release.reads.keys:
            return self._release.default(path)
        default = model.model_fields[key].default
        return default if isinstance(default, bool | int | float | str) else None

    def plain(self, node: Any, path: KeyPath) -> Any:
        """Inline definitions anywhere in the schema."""
        if isinstance(node, list):
            return [self.plain(part, path) for part in node]
        if not isinstance(node, dict):
            return node
        if name := str(node.get("$ref", "")).rpartition("/")[2]:
            return self.section(self._definitions[name], self._models[name], path)
        kept = {key: value for key, value in node.items() if key != "title"}
        below = {"items", "additionalProperties"}
        return {key: self.plain(value, (*path, ANY) if key in below else path) for key, value in kept.items()}

    def _is_free(self, path: KeyPath) -> bool:
        """Whether the table of releases does not cover the keys of an object."""
        return path[:1] in (("optimizer",), ("scheduler",)) or ANY in path

    def _older(self, path: KeyPath, properties: Mapping[str, Any]) -> list[str]:
        """List the keys that only this release knows."""
        reads = self._release.reads
        return [
            str(key[-1])
            for key in reads.keys
            if key[:-1] == path and key[-1] not in properties and key not in reads.refused
        ]


def _spellings(model: type[Section], key: str) -> list[str]:
    alias = model.model_fields[key].validation_alias
    choices = getattr(alias, "choices", None) or [key]
    return [str(choice) for choice in choices]


def to_text(schema: Mapping[str, Any]) -> str:
    """Write a schema as the file that editors read."""
    return json.dumps(schema, indent=2) + "\n"
