"""Parser of the schema notation: turns `messages/*.txt` into descriptions of structs and fields.

One file describes one API, one line a field:

    api 1 Fetch 4-18 flex 12          key, name, versions, first flexible version
    request
      max_wait_ms int32               name and type, in every version
      session_epoch int32 7+ =-1      since version 7, default -1
      topics []FetchRequestTopic      an array of structs; the struct's fields follow, indented
        topic string 4-12
        topic_id uuid 13+
      name string ?12+                null allowed since version 12; a bare `?`: in all its versions
      cluster_id string 12+ ? @0 =null    a tagged field, tag 0

A struct named again without fields below it is the one already described. `#` starts a comment. A tagged field is
tagged in every version that has it. Defaults are Kafka's: zero, "", an empty array; null only where it is written.
A struct field is absent (None) by default.

This module knows nothing of bytes or of generated code; it fails loudly on text it does not understand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

Default = int | float | bool | str | bytes | tuple[()] | None

# Primitive types and their defaults, `struct` codes where the size is fixed.
FIXED_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
FIXED_SIZES_BYTES = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float64": 8, "uuid": 16}
_DEFAULTS: dict[str, Default] = {
    "bool": False,
    "float64": 0.0,
    "uuid": bytes(16),
    "string": "",
    "bytes": b"",
    "records": None,
}
_INTEGERS = ("int8", "int16", "int32", "int64")
VARIABLE_TYPES = ("string", "bytes", "records")
_NO_END = 1 << 15

MESSAGES_DIRECTORY = Path(__file__).parent / "messages"


class SchemaError(Exception):
    """The schema text is invalid, which is our bug and is detected when the text is first read."""


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions."""

    first: int
    last: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


class Field(NamedTuple):
    name: str
    type: str  # a primitive's name, or the struct's name
    struct: Struct | None
    is_array: bool
    versions: Versions
    nullable: Versions | None
    tag: int | None
    default: Default

    def is_nullable(self, version: int) -> bool:
        return self.nullable is not None and version in self.nullable


class Struct(NamedTuple):
    name: str
    fields: tuple[Field, ...]

    def plain_fields(self, version: int) -> list[Field]:
        """Return the untagged fields of a version, in wire order."""
        return [field for field in self.fields if version in field.versions and field.tag is None]

    def tagged_fields(self, version: int) -> list[Field]:
        """Return the tagged fields of a version, by ascending tag; they are written only if not default."""
        fields = [field for field in self.fields if version in field.versions and field.tag is not None]
        return sorted(fields, key=lambda field: field.tag or 0)

    def absent_fields(self, version: int) -> list[Field]:
        """Return the fields that this version lacks, which a decoder must set to their defaults."""
        return [field for field in self.fields if version not in field.versions]


class ApiSchema(NamedTuple):
    key: int
    name: str
    versions: Versions
    flexible_from: int
    request: Struct
    response: Struct

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from

    def structs(self) -> Iterator[tuple[Struct, bool]]:
        """Yield every struct once, inner ones first, and whether it belongs to the request."""
        seen: set[str] = set()
        for root, in_request in ((self.request, True), (self.response, False)):
            for struct in _inner_first(root):
                if struct.name not in seen:
                    seen.add(struct.name)
                    yield struct, in_request


def _inner_first(struct: Struct) -> Iterator[Struct]:
    for field in struct.fields:
        if field.struct is not None:
            yield from _inner_first(field.struct)
    yield struct


def file_name(api_name: str) -> str:
    """Return the name of an API's schema file: `ListOffsets` is described in `list_offsets.txt`."""
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in api_name)
    return words.lstrip("_") + ".txt"


def load_api(api_name: str) -> ApiSchema:
    """Return the description of one API, read from the package."""
    schema = parse_api((MESSAGES_DIRECTORY / file_name(api_name)).read_text(encoding="utf-8"))
    if schema.name != api_name:
        raise SchemaError(f"{file_name(api_name)} describes {schema.name}")
    return schema


def load_all() -> list[ApiSchema]:
    """Return the descriptions of all APIs, by key."""
    texts = [file.read_text(encoding="utf-8") for file in MESSAGES_DIRECTORY.glob("*.txt")]
    return sorted((parse_api(text) for text in texts), key=lambda schema: schema.key)


def parse_api(text: str) -> ApiSchema:
    return _Parser(text).parse()


class _Line(NamedTuple):
    indent: int
    words: list[str]


class _Parser:
    """Recursive-descent parser of indented lines."""

    def __init__(self, text: str) -> None:
        self._lines: list[_Line] = []
        for raw in text.splitlines():
            content = raw.split("#", 1)[0].rstrip()
            if content:
                indent = len(content) - len(content.lstrip())
                self._lines.append(_Line(indent, content.split()))
        self._position = 0
        self._structs: dict[str, Struct] = {}
        self._versions = Versions(0, _NO_END)

    def parse(self) -> ApiSchema:
        match self._lines[0].words:
            case ["api", key, name, versions, "flex", flexible_from]:
                self._versions = _parse_versions(versions, Versions(0, _NO_END))
            case words:
                raise SchemaError(f"expected `api KEY NAME VERSIONS flex VERSION`, found {' '.join(words)!r}")
        self._position = 1
        request = self._parse_message("request", f"{name}Request")
        response = self._parse_message("response", f"{name}Response")
        if self._position != len(self._lines):
            raise SchemaError(f"{name}: text after the response: {' '.join(self._lines[self._position].words)!r}")
        return ApiSchema(int(key), name, self._versions, int(flexible_from), request, response)

    def _parse_message(self, keyword: str, name: str) -> Struct:
        line = self._lines[self._position] if self._position < len(self._lines) else _Line(0, [])
        if line.words != [keyword] or line.indent != 0:
            raise SchemaError(f"{name}: expected `{keyword}`, found {' '.join(line.words)!r}")
        self._position += 1
        return Struct(name, self._parse_fields(0))

    def _parse_fields(self, parent_indent: int) -> tuple[Field, ...]:
        fields: list[Field] = []
        if self._position < len(self._lines):
            indent = self._lines[self._position].indent
            while self._position < len(self._lines) and self._lines[self._position].indent > parent_indent:
                line = self._lines[self._position]
                if line.indent != indent:
                    raise SchemaError(f"uneven indentation at {' '.join(line.words)!r}")
                self._position += 1
                fields.append(self._parse_field(line))
        return tuple(fields)

    def _parse_field(self, line: _Line) -> Field:
        name, type_name, *marks = line.words
        is_array = type_name.startswith("[]")
        type_name = type_name.removeprefix("[]")
        versions, nullable, tag = self._versions, None, None
        default: str | None = None
        for mark in marks:
            if mark.startswith("?"):
                nullable = _parse_versions(mark[1:], self._versions) if mark != "?" else Versions(0, _NO_END)
            elif mark.startswith("@"):
                tag = int(mark[1:])
            elif mark.startswith("="):
                default = mark[1:]
            else:
                versions = _parse_versions(mark, self._versions)
        struct = None
        if type_name not in FIXED_CODES and type_name not in VARIABLE_TYPES:
            struct = self._parse_struct(type_name, line)
        value = _default_value(type_name, struct is not None, is_array, default)
        return Field(name, type_name, struct, is_array, versions, nullable, tag, value)

    def _parse_struct(self, name: str, line: _Line) -> Struct:
        fields = self._parse_fields(line.indent)
        if name in self._structs and not fields:
            return self._structs[name]
        if name in self._structs or not fields:
            raise SchemaError(f"struct {name} is described {'twice' if fields else 'nowhere'}")
        struct = self._structs[name] = Struct(name, fields)
        return struct


def _parse_versions(text: str, bounds: Versions) -> Versions:
    """Parse a version range: `3+`, `3-12` or `3`."""
    try:
        if text.endswith("+"):
            versions = Versions(int(text[:-1]), bounds.last)
        else:
            first, _, last = text.partition("-")
            versions = Versions(int(first), int(last or first))
    except ValueError:
        raise SchemaError(f"{text!r} is not a range of versions") from None
    if not bounds.first <= versions.first <= versions.last <= bounds.last:
        raise SchemaError(f"versions {text} are not within {bounds.first}-{bounds.last}")
    return versions


def _default_value(type_name: str, is_struct: bool, is_array: bool, text: str | None) -> Default:
    if text == "null" or (is_struct and not is_array):
        return None
    if is_array:
        return ()
    if type_name in _INTEGERS:
        return int(text or "0")
    if type_name == "bool":
        return text == "true"
    if text is not None:
        raise SchemaError(f"no default can be written for a {type_name}")
    return _DEFAULTS[type_name]
