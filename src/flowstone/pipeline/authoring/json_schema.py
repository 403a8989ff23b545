"""The JSON Schema of `pipeline.yaml`, for editors: generated from the table of fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowstone.pipeline.authoring import fields
from flowstone.pipeline.authoring.fields import Declaration, Field, Type
from flowstone.pipeline.authoring.yaml_form import TRIGGERS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALAR = {"type": ["string", "number", "boolean"]}
_ROWS = {"type": "object", "additionalProperties": {"type": ["array", "null"], "items": {"type": "object"}}}
_TYPES: dict[Type, dict[str, Any]] = {
    Type.TEXT: _SCALAR,
    Type.TEXTS: {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]},
    Type.NUMBER: {"type": "number"},
    Type.COUNT: {"type": "integer"},
    Type.MAP: {"type": "object", "additionalProperties": _SCALAR},
    Type.FORMAT: {"$ref": "#/$defs/format"},
    Type.TRIGGER: {
        "anyOf": [
            {"enum": list(TRIGGERS)},
            {
                "type": "object",
                "properties": {"interval_s": {"type": "number"}},
                "required": ["interval_s"],
                "additionalProperties": False,
            },
        ]
    },
    Type.EXPECTATIONS: {
        "type": "object",
        "additionalProperties": {"anyOf": [_SCALAR, {"$ref": "#/$defs/expectation"}]},
    },
    Type.ROWS: _ROWS,
    Type.FILE_KIND: {},
}


def json_schema() -> dict[str, Any]:
    """Return the schema as a JSON document."""
    sections = {
        "sources": ("where rows come from, by name", [_declared(each, ()) for each in fields.SOURCES]),
        "steps": ("what becomes of them, by name", [_object(fields.STEP)]),
        "sinks": ("where they are written, by name", [_declared(each, (fields.SINK_INPUT,)) for each in fields.SINKS]),
        "tests": ("rows in and rows out, by name", [_object(fields.TEST)]),
    }
    document = _object(fields.PIPELINE)
    for name, (help, kinds) in sections.items():
        document["properties"][name] = {
            "description": help,
            "type": "object",
            "additionalProperties": kinds[0] if len(kinds) == 1 else {"anyOf": kinds},
        }
    formats = [_format(each) for each in fields.FORMATS]
    names = {"enum": [each.name for each in fields.FORMATS]}
    return {
        "$schema": DIALECT,
        "title": "A pipeline of Flowstone",
        **document,
        "$defs": {"format": {"anyOf": [names, *formats]}, "expectation": _object(fields.EXPECTATION)},
    }


def _object(some: Sequence[Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {each.name: _field(each) for each in some},
        "required": [each.name for each in some if each.is_required],
        "additionalProperties": False,
    }


def _field(field: Field) -> dict[str, Any]:
    kind = {"enum": list(field.choices)} if field.choices else _TYPES[field.type]
    default = f" (default: {field.default})" if field.default else ""
    return {"description": f"{field.help}{default}", **kind}


def _declared(declaration: Declaration, more: tuple[Field, ...]) -> dict[str, Any]:
    return {"description": declaration.help, **_object([*declaration.fields, *more])}


def _format(declaration: Declaration) -> dict[str, Any]:
    made = _object(declaration.fields)
    made["properties"] = {"format": {"const": declaration.name}, **made["properties"]}
    made["required"] = ["format"]
    return {"description": declaration.help, **made}
