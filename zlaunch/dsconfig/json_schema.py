"""The models as JSON Schema, draft 2020-12, for editors, and the names of all keys in it.

It accepts what the models accept, key by key; it has no rules between keys.
"""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from zlaunch.dsconfig.keys.lookup import section_in
from zlaunch.dsconfig.releases import NEWEST, Release
from zlaunch.dsconfig.schema.optimizer import OPTIMIZERS
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import BuiltOnDemand, Section, in_lower_case, not_null, spellings
from zlaunch.dsconfig.text.document import KeyPath, dotted
from zlaunch.frozen import dataclass
from zlaunch.units import narrowed

ANY = "*"
"""Placeholder in a path for names and numbers that users choose."""


def _meaning(section: type[Section], key: str) -> str:
    """Find the docstring of a field, in the class or its bases; else the first line about its section."""
    for owner in section.__mro__:
        if issubclass(owner, Section) and (
            words := _docstrings_of(owner.__module__).get((owner.__name__, key))
        ):
            return words
    inner = section_in(section.model_fields[key].annotation)
    if inner is None or inner.__doc__ is None:
        return ""
    return inner.__doc__.partition("\n")[0]


@functools.cache
def _docstrings_of(module: str) -> Mapping[tuple[str, str], str]:
    """Read the docstrings below the fields of all classes of a module."""
    docstrings = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, below in pairwise(node.body):
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
                continue
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                docstrings[node.name, field.target.id] = inspect.cleandoc(str(below.value.value))
    return docstrings


class _Generator(GenerateJsonSchema):
    """Adds what pydantic's generator cannot know: docstrings, other names, the effect of validators."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Describe the keys of a section."""
        node = super().model_schema(schema)
        for key, child in node["properties"].items():
            child["description"] = _meaning(schema["cls"], key)
            child["names"] = spellings(schema["cls"], key)
        return node

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Write a union with "auto", or of optimizers or schedulers."""
        arms = {str(tag): self.generate_inner(arm) for tag, arm in schema["choices"].items()}
        if "<auto>" in arms:
            return {"anyOf": list(arms.values())}
        return _by_type(arms, self.definitions)

    def function_plain_schema(self, schema: core_schema.PlainValidatorFunctionSchema) -> JsonSchemaValue:
        """Write a section whose validator may not have been built."""
        function = schema["function"]["function"]
        assert isinstance(function, BuiltOnDemand), "no other function validates a whole value"
        function.section.model_rebuild()
        return self.generate_inner(function.section.__pydantic_core_schema__)

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Write words in any case, and keys that may not be null."""
        inner = super().function_before_schema(schema)
        function = schema["function"]["function"]
        if function is not_null:
            arms: list[JsonSchemaValue] = [arm for arm in inner.get("anyOf", []) if arm != {"type": "null"}]
            if len(arms) == 1:
                return arms[0]
        if function is in_lower_case:
            return _in_any_case(inner["enum"])
        return inner


def _in_any_case(words: Iterable[str]) -> JsonSchemaValue:
    """Suggest words in their usual spelling, and accept them in any case."""
    words = list(words)
    pattern = re.sub(r"[^\W\d_]", lambda letter: f"[{letter[0].lower()}{letter[0].upper()}]", "|".join(words))
    return {"type": "string", "anyOf": [{"enum": words}, {"pattern": f"^({pattern})$"}]}


def _by_type(arms: Mapping[str, JsonSchemaValue], definitions: Mapping[Any, Any]) -> JsonSchemaValue:
    """Choose between objects by their key `type`."""
    conditions = []
    for tag, arm in arms.items():
        written = definitions[arm["$ref"].rpartition("/")[2]]["properties"]["type"]
        if names := [name for name, kind in OPTIMIZERS.items() if kind == tag]:
            written.update(_in_any_case(names))
        choice = {key: value for key, value in written.items() if key in ("type", "anyOf", "const", "enum")}
        conditions.append({"if": {"properties": {"type": choice}}, "then": arm})
    words = "Name of one of DeepSpeed's own, or of a PyTorch class."
    choices = [each["if"]["properties"]["type"] for each in conditions]
    return {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"description": words, "anyOf": choices}},
        "allOf": conditions,
    }


@dataclass(frozen=True)
class Catalog:
    """Every key that a release reads."""

    schema: JsonSchemaValue
    """The JSON Schema of a ds_config."""

    keys: Mapping[str, list[JsonSchemaValue]]
    """Dotted key → its schema; a setting of optimizers or schedulers has one for each that has it."""

    other_names: Mapping[str, str]
    """Other spelling of a dotted key → its name."""


@functools.cache
def catalog(release: Release = NEWEST) -> Catalog:
    """Describe every key that a release reads."""
    raw = DsConfig.model_json_schema(schema_generator=_Generator)
    plain = _Plain(raw.pop("$defs"), release)
    whole = plain.section(raw, ())
    editors = {"type": "string", "description": "Location of this schema, for editors; DeepSpeed ignores it."}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"ds_config for DeepSpeed {release.name}",
        **whole,
        "properties": {"$schema": editors, **whole["properties"]},
    }
    return Catalog(schema, plain.keys, plain.other_names)


class _Plain:
    """Inlines definitions, and drops what a release does not read."""

    def __init__(self, definitions: Mapping[str, Any], release: Release) -> None:
        self._definitions, self._release = definitions, release
        self.keys: dict[str, list[JsonSchemaValue]] = {}
        self.other_names: dict[str, str] = {}

    def section(self, node: Mapping[str, Any], path: KeyPath) -> JsonSchemaValue:
        """Write an object with known keys."""
        properties: JsonSchemaValue = {}
        for key, value in node["properties"].items():
            paths = [(*path, name) for name in value["names"]]
            known = [name for name in paths if self._release.knows(name) or self._is_free(path)]
            if known:
                same = self.keys.setdefault(dotted((*path, key)), [])
                same.append(self._key(value, known[0]))
                properties |= {name: same[-1] for *_, name in known}
                self.other_names |= {dotted(name): dotted((*path, key)) for name in known[1:]}
        for *above, name in (known for known in self._release.keys if known not in self._release.refused):
            if tuple(above) == path and name not in properties:
                words = f"Read by DeepSpeed {self._release.name}; not by {NEWEST.name}."
                properties[str(name)] = {"description": words}
        section: JsonSchemaValue = {
            "type": "object",
            "description": node["description"].partition("\n")[0],
            "properties": properties,
        }
        if required := [key for key in node.get("required", ()) if key in properties]:
            section["required"] = required
        section["additionalProperties"] = False
        return section

    def _key(self, value: Mapping[str, Any], path: KeyPath) -> JsonSchemaValue:
        node = {**self.plain(value, path), "description": value["description"]}
        default = value.get("default")
        if path in self._release.keys:
            default = self._release.default(path)
        if isinstance(default, float) and node.get("type") != "number" and default > 1:
            default = narrowed(default)
        node.pop("default", None)
        if isinstance(default, bool | int | float | str):
            node["default"] = default
        if value.get("deprecated"):
            node["deprecated"] = True
        return node

    def plain(self, node: Any, path: KeyPath) -> Any:
        """Inline definitions anywhere in the schema."""
        if isinstance(node, list):
            return [self.plain(part, path) for part in node]
        if not isinstance(node, dict):
            return node
        if name := str(node.get("$ref", "")).rpartition("/")[2]:
            return self.section(self._definitions[name], path)
        inlined = {}
        for key, value in node.items():
            if key in ("items", "additionalProperties"):
                inlined[key] = self.plain(value, (*path, ANY))
            elif key not in ("title", "names"):
                inlined[key] = self.plain(value, path)
        return inlined

    def _is_free(self, path: KeyPath) -> bool:
        """Whether the table of releases does not cover the keys of an object."""
        return path[:1] in (("optimizer",), ("scheduler",)) or ANY in path
