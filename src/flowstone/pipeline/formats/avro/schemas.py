"""Avro schemas: from their JSON to types, and what makes one unusable.

A schema that refers to itself has no columns and is refused. So is an array or a map whose items take no bytes, because
a few bytes could then declare any number of items.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from flowstone.pipeline.errors import PipelineError

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DEPTH_MAX = 64
DECIMAL_PRECISION_MAX = 38  # Spark's
NO_DEFAULT = object()


@dataclass(frozen=True)
class Primitive:
    kind: str
    logical: str = ""
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Fixed:
    name: str
    size: int
    logical: str = ""
    precision: int = 0
    scale: int = 0
    kind: str = "fixed"


@dataclass(frozen=True)
class Enum:
    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    kind: str = "enum"


@dataclass(frozen=True)
class Array:
    items: Type
    kind: str = "array"


@dataclass(frozen=True)
class Map:
    values: Type
    kind: str = "map"


@dataclass(frozen=True)
class Union:
    branches: tuple[Type, ...]
    kind: str = "union"


@dataclass(frozen=True)
class Field:
    name: str
    type: Type
    aliases: tuple[str, ...] = ()
    default: Any = field(default=NO_DEFAULT, hash=False)


@dataclass(frozen=True)
class Record:
    name: str
    fields: tuple[Field, ...]
    kind: str = "record"


Type = Primitive | Fixed | Enum | Array | Map | Union | Record


class BadSchema(PipelineError):
    """A text that is not an Avro schema, or one that pipelines cannot use. The message is a sentence's end."""


def parse(text: str, references: tuple[str, ...] = ()) -> Type:
    """Return the type of a schema's JSON. `references` are schemas whose named types it uses. Raises BadSchema."""
    parser = _Parser()
    for each in references:
        parser.parse(_loaded(each), "", 0)
    return parser.parse(_loaded(text), "", 0)


def _loaded(text: str) -> Any:
    if text.strip() in PRIMITIVES:
        return text.strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSchema(f"is not JSON ({error})") from None


def least_bytes(type: Type) -> int:
    """Return the number of bytes that a value of the type has at least."""
    if isinstance(type, Record):
        return sum(least_bytes(each.type) for each in type.fields)
    if isinstance(type, Fixed):
        return type.size
    return {"null": 0, "float": 4, "double": 8}.get(type.kind, 1)


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, Type] = {}
        self._open: set[str] = set()

    def parse(self, schema: Any, namespace: str, depth: int) -> Type:
        if depth > DEPTH_MAX:
            raise BadSchema(f"is nested more than {DEPTH_MAX} deep")
        if isinstance(schema, str):
            return self._reference(schema, namespace)
        if isinstance(schema, list):
            return self._union(schema, namespace, depth)
        if not isinstance(schema, dict) or "type" not in schema:
            raise BadSchema(f"has {json.dumps(schema)[:60]} where a type should be")
        kind = schema["type"]
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace, depth + 1)
        if kind in ("record", "error", "enum", "fixed"):
            return self._declared(kind, schema, namespace, depth)
        if kind == "array":
            return Array(self._items(schema.get("items"), namespace, depth))
        if kind == "map":
            return Map(self._items(schema.get("values"), namespace, depth))
        if kind in PRIMITIVES:
            return Primitive(kind, *_logical(schema))
        return self._reference(kind, namespace)

    def _reference(self, name: Any, namespace: str) -> Type:
        if name in PRIMITIVES:
            return Primitive(name)
        full = _full_name(name, namespace)
        for each in (full, name):
            if each in self._open:
                raise BadSchema(f"refers to itself in {each}: a recursive type has no columns in Spark")
            if each in self._named:
                return self._named[each]
        raise BadSchema(f"has the unknown type {json.dumps(name)[:60]}")

    def _items(self, schema: Any, namespace: str, depth: int) -> Type:
        items = self.parse(schema, namespace, depth + 1)
        if least_bytes(items) == 0:
            raise BadSchema("has an array or a map whose items take no bytes")
        return items

    def _union(self, schema: list[Any], namespace: str, depth: int) -> Union:
        branches = tuple(self.parse(each, namespace, depth + 1) for each in schema)
        if not branches or any(isinstance(each, Union) for each in branches):
            raise BadSchema("has a union without branches, or a union in a union")
        return Union(branches)

    def _declared(self, kind: str, schema: dict[str, Any], namespace: str, depth: int) -> Type:
        if not isinstance(schema.get("name"), str):
            raise BadSchema(f"has a type {kind} without a name")
        inner = schema.get("namespace", namespace)
        name = _full_name(schema["name"], inner if isinstance(inner, str) else namespace)
        if name in self._named:
            raise BadSchema(f"declares {name} twice")
        self._open.add(name)
        try:
            made = self._made(kind, name, schema, depth)
        finally:
            self._open.discard(name)
        self._named[name] = made
        return made

    def _made(self, kind: str, name: str, schema: dict[str, Any], depth: int) -> Type:
        if kind == "enum":
            symbols = schema.get("symbols")
            if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols) or not symbols:
                raise BadSchema(f"has the enum {name} without symbols")
            return Enum(name, tuple(symbols), schema.get("default"))
        if kind == "fixed":
            size = schema.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise BadSchema(f"has the fixed type {name} without a size")
            return Fixed(name, size, *_logical(schema))
        declared = schema.get("fields")
        if not isinstance(declared, list):
            raise BadSchema(f"has the record {name} without fields")
        fields = tuple(self._field(each, name, depth) for each in declared)
        if len({each.name for each in fields}) != len(fields):
            raise BadSchema(f"has the record {name} with two fields of the same name")
        return Record(name, fields)

    def _field(self, declared: Any, record: str, depth: int) -> Field:
        if not isinstance(declared, dict) or not isinstance(declared.get("name"), str) or "type" not in declared:
            raise BadSchema(f"has a field without name or type in the record {record}")
        type = self.parse(declared["type"], record.rpartition(".")[0], depth + 1)
        aliases = tuple(each for each in declared.get("aliases") or () if isinstance(each, str))
        return Field(declared["name"], type, aliases, declared.get("default", NO_DEFAULT))


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _logical(schema: dict[str, Any]) -> tuple[str, int, int]:
    """Return the logical type; an unknown or malformed one counts as none, as the specification says."""
    logical = schema.get("logicalType", "")
    if logical != "decimal":
        return (logical, 0, 0) if isinstance(logical, str) else ("", 0, 0)
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return ("", 0, 0)
    if not 0 < precision <= DECIMAL_PRECISION_MAX or not 0 <= scale <= precision:
        return ("", 0, 0)
    return (logical, precision, scale)
