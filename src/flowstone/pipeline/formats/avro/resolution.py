"""Schema resolution: from a writer's and a reader's schema to the nodes that read the one as the other.

Fields are matched by name, then by the reader's aliases. A field that the writer does not have gets its default.
Numbers are widened, strings and bytes are exchangeable, and a union is resolved for each record by the branch that it
has. The names of records, enums and fixed types do not count, as in Java's implementation for records.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from flowstone.pipeline.formats.avro import column_types, nodes
from flowstone.pipeline.formats.avro.blocks import ArrayNode, MapNode
from flowstone.pipeline.formats.avro.column_types import arrow_type, scalar_kind, timestamp_unit
from flowstone.pipeline.formats.avro.nodes import Node
from flowstone.pipeline.formats.avro.schemas import (
    NO_DEFAULT,
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Record,
    Type,
    Union,
    least_bytes,
)
from flowstone.pipeline.formats.cursor import Bits, Ints

_WIDER = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "double": ("double",),
}
_MICROS_PER_S = 1_000_000


class Incompatible(Exception):
    """A writer's schema that cannot be read as the reader's; the message says which part, and why."""


def resolve(writer: Type, reader: Type) -> Node:
    """Return the node that reads whole values. Raises Incompatible."""
    return _node(writer, reader, "")


def _node(writer: Type, reader: Type, path: str) -> Node:
    if isinstance(writer, Union):
        return _writers_union(writer, reader, path)
    if isinstance(reader, Union):
        return _readers_union(writer, reader, path)
    if isinstance(writer, Record) and isinstance(reader, Record):
        return _record(writer, reader, path)
    if isinstance(writer, Array) and isinstance(reader, Array):
        items = _node(writer.items, reader.items, f"{path}[]")
        return ArrayNode(arrow_type(reader), _named(path), items, least_bytes(writer.items))
    if isinstance(writer, Map) and isinstance(reader, Map):
        keys = nodes.BytesNode(pa.string(), f"{_named(path)}, a key")
        values = _node(writer.values, reader.values, f"{path}{{}}")
        return MapNode(arrow_type(reader), _named(path), keys, values, least_bytes(writer.values))
    found = _scalar(writer, reader, path)
    if found is None:
        raise _other_type(writer, reader, path)
    return found


def _other_type(writer: Type, reader: Type, path: str) -> Incompatible:
    return Incompatible(
        f"{_named(path)} is {_text(writer)} in the record's schema, and {_text(reader)} in the reader's"
    )


def _named(path: str) -> str:
    return f"the field {path}" if path else "the value"


def _text(type: Type) -> str:
    if isinstance(type, Union):
        return f"a union of {', '.join(map(_text, type.branches))}"
    logical = getattr(type, "logical", "")
    return f"{type.kind} ({logical})" if logical else type.kind


def _writers_union(writer: Union, reader: Type, path: str) -> Node:
    wanted = arrow_type(reader)
    branches: list[Node] = []
    causes: list[Incompatible] = []
    for each in writer.branches:
        if each.kind == "null" and _takes_null(reader):
            branches.append(nodes.NullNode(wanted))
            continue
        try:
            branches.append(_node(each, reader, path))
        except Incompatible as cause:
            causes.append(cause)
            branches.append(nodes.MismatchNode(wanted, f"{cause}"))
    if len(causes) == len(branches):
        raise causes[0]
    return nodes.UnionNode(wanted, _named(path), tuple(branches))


def _takes_null(reader: Type) -> bool:
    return any(each.kind == "null" for each in reader.branches) if isinstance(reader, Union) else reader.kind == "null"


def _readers_union(writer: Type, reader: Union, path: str) -> Node:
    wanted = arrow_type(reader)
    if writer.kind == "null" and _takes_null(reader):
        return nodes.NullNode(wanted)
    members = column_types.members(reader)
    # A branch of the same name or kind goes before those to which the value can be widened.
    order = sorted(range(len(members)), key=lambda n: not _is_same(writer, members[n]))
    for number in order:
        try:
            found = _node(writer, members[number], path)
        except Incompatible:
            continue
        return nodes.MemberNode(wanted, number, found) if len(members) > 1 else found
    raise _other_type(writer, reader, path)


def _is_same(writer: Type, reader: Type) -> bool:
    if isinstance(writer, Record | Enum | Fixed) and isinstance(reader, Record | Enum | Fixed):
        return writer.name.rpartition(".")[2] == reader.name.rpartition(".")[2]
    return writer.kind == reader.kind


def _record(writer: Record, reader: Record, path: str) -> Node:
    places: dict[str, int] = {}
    fields: list[Node] = []
    for number, each in enumerate(writer.fields):
        target = _target(each.name, reader, writer)
        inner = f"{path}.{each.name}" if path else each.name
        if target is not None:
            places[target.name] = number
        # What the reader does not want is read as what it is, and dropped.
        fields.append(_node(each.type, target.type if target is not None else each.type, inner))
    for wanted in reader.fields:
        if wanted.name in places:
            continue
        if wanted.default is NO_DEFAULT:
            inner = f"{path}.{wanted.name}" if path else wanted.name
            raise Incompatible(f"{_named(inner)} is not in the record's schema, and has no default in the reader's")
        places[wanted.name] = len(fields)
        fields.append(nodes.ConstantNode(arrow_type(wanted.type), _default(wanted)))
    return nodes.RecordNode(arrow_type(reader), tuple(fields), tuple(places[each.name] for each in reader.fields))


def _target(name: str, reader: Record, writer: Record) -> Field | None:
    """Return the reader's field for a writer's: the one of its name, or else the first one with it as an alias."""
    written = {each.name for each in writer.fields}
    for each in reader.fields:
        if each.name == name:
            return each
    for each in reader.fields:
        if each.name not in written and name == next((alias for alias in each.aliases if alias in written), None):
            return each
    return None


def _scalar(writer: Type, reader: Type, path: str) -> Node | None:
    what, wanted = _named(path), arrow_type(reader)
    if isinstance(writer, Enum) and isinstance(reader, Enum):
        known = (each if each in reader.symbols else reader.default for each in writer.symbols)
        return nodes.EnumNode(what, tuple(known))
    if isinstance(writer, Enum | Array | Map | Record) or isinstance(reader, Enum | Array | Map | Record):
        return None
    if scalar_kind(reader) == "decimal":
        return _decimal(writer, wanted, what)
    if isinstance(writer, Fixed) or isinstance(reader, Fixed):
        same = isinstance(writer, Fixed) and isinstance(reader, Fixed) and writer.size == reader.size
        return nodes.BytesNode(wanted, what, getattr(writer, "size", 0)) if same else None
    if writer.kind in ("string", "bytes"):
        return nodes.BytesNode(wanted, what) if reader.kind in ("string", "bytes") else None
    if writer.kind != reader.kind and reader.kind not in _WIDER.get(writer.kind, ()):
        return None
    if writer.kind in ("int", "long"):
        return nodes.LongNode(wanted, what, writer.kind == "int", _conversion(writer, reader, wanted))
    if writer.kind in ("float", "double"):
        return nodes.FloatNode(wanted, what, 4 if writer.kind == "float" else 8)
    return nodes.BooleanNode(wanted, what) if writer.kind == "boolean" else nodes.NullNode(wanted)


def _decimal(writer: Type, wanted: pa.DataType, what: str) -> Node | None:
    if isinstance(writer, Fixed):
        inner = nodes.BytesNode(pa.binary(), what, writer.size)
    elif writer.kind == "bytes":
        inner = nodes.BytesNode(pa.binary(), what)
    else:
        return None
    scale = writer.scale if writer.logical == "decimal" else wanted.scale  # type: ignore[union-attr]
    # A lower scale would lose digits, which the specification does not allow.
    return nodes.DecimalNode(wanted, what, scale, inner) if scale <= wanted.scale else None


def _conversion(writer: Type, reader: Type, wanted: pa.DataType) -> Callable[[Ints], tuple[pa.Array, Bits | None]]:
    if timestamp_unit(reader):
        return partial(_timestamps, timestamp_unit(writer) or timestamp_unit(reader), wanted)
    return partial(_numbers, wanted)


def _timestamps(unit: int, wanted: pa.DataType, numbers: Ints) -> tuple[pa.Array, Bits | None]:
    if unit > _MICROS_PER_S:
        micros = numbers // (unit // _MICROS_PER_S)
        return pa.array(micros).view(wanted), None
    factor = _MICROS_PER_S // unit
    over = np.abs(numbers // 2) > (2**62 // factor) if factor > 1 else np.zeros(0, np.bool_)
    if over.any():
        return pa.array(np.where(over, 0, numbers) * factor).view(wanted), over
    return pa.array(numbers * factor).view(wanted), None


def _numbers(wanted: pa.DataType, numbers: Ints) -> tuple[pa.Array, Bits | None]:
    if pa.types.is_int64(wanted):
        return pa.array(numbers), None
    if pa.types.is_floating(wanted):
        # A large number loses digits, as the specification allows.
        return pa.array(numbers.astype(np.float32 if pa.types.is_float32(wanted) else np.float64)), None
    return pa.array(numbers.astype(np.int32)).view(wanted), None


def _default(field: Field) -> Any:
    """Return a field's default as a value that Arrow takes. Raises Incompatible if it does not fit the type."""
    type = field.type
    if isinstance(type, Union):
        # Any branch of the union may be the one of the default, as of version 1.12 of the specification.
        if field.default is None:
            return None
        for number, each in enumerate(column_types.members(type)):
            try:
                found = _default(Field(field.name, each, (), field.default))
            except Incompatible:
                continue
            return {f"member{number}": found} if len(column_types.members(type)) > 1 else found
        raise Incompatible(f"the default of the field {field.name} is of no type of its union")
    try:
        value = _value(type, field.default)
        pa.array([value], arrow_type(type))
    except (pa.ArrowException, ValueError, TypeError, AttributeError, KeyError) as error:
        shown = json.dumps(field.default)[:60]
        raise Incompatible(f"the default {shown} of the field {field.name} is not a value of its type") from error
    return value


def _value(type: Type, default: Any) -> Any:
    if isinstance(type, Record):
        return {each.name: _value_of_field(each, default) for each in type.fields}
    if isinstance(type, Array):
        return [_value(type.items, each) for each in default]
    if isinstance(type, Map):
        return [(key, _value(type.values, each)) for key, each in default.items()]
    if isinstance(type, Union):
        return _default(Field("", type, (), default))
    kind = scalar_kind(type)
    if kind == "decimal":
        unscaled = int.from_bytes(default.encode("latin-1"), "big", signed=True)
        return Decimal(unscaled).scaleb(-type.scale)  # type: ignore[union-attr]
    if kind == "bytes":
        return default.encode("latin-1")
    if kind == "date":
        return datetime.date(1970, 1, 1) + datetime.timedelta(days=default)
    unit = timestamp_unit(type)
    return default * _MICROS_PER_S // unit if unit else default


def _value_of_field(field: Field, given: dict[str, Any]) -> Any:
    if field.name in given:
        return _default(Field(field.name, field.type, (), given[field.name]))
    if field.default is NO_DEFAULT:
        raise KeyError(field.name)
    return _default(field)
