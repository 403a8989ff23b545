"""A YAML document with the line of each value, read by the types of `fields`.

Errors name the file and line; an unknown field names the nearest known one. Values of text are taken as they are
written, so that `4`, `1.0` and `yes` need no quotes where text is expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flowstone.pipeline.authoring.fields import Field, Type
from flowstone.pipeline.authoring.validation import nearest
from flowstone.pipeline.errors import PipelineError, Place

DOCUMENT_BYTES_MAX = 4 << 20
_NULL, _INT, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("null", "int", "float"))


class Value(NamedTuple):
    """A value of the document, with its name and place for errors."""

    what: str
    node: yaml.Node
    place: Place

    def error(self, message: str) -> PipelineError:
        return PipelineError(f"{self.what}: {message}" if self.what else message, self.place)


class Document:
    def __init__(self, file: Path) -> None:
        """Parse the file. Raises PipelineError if it cannot be read, or is not YAML."""
        self._file = str(file)
        try:
            data = file.read_bytes()
            if len(data) > DOCUMENT_BYTES_MAX:
                raise PipelineError(f"it has more than {DOCUMENT_BYTES_MAX} bytes", Place(self._file, 1))
            self._loader = yaml.SafeLoader(data)
            node = self._loader.get_single_node()
        except OSError as error:
            raise PipelineError(f"{file} cannot be read: {error.strerror or error}") from error
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
            raise PipelineError(f"it is not YAML: {error.problem}", Place(self._file, line)) from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise PipelineError(f"it is not YAML: {error}", Place(self._file, 1)) from error
        if node is None:
            raise PipelineError("it is empty", Place(self._file, 1))
        self.root = self._value("", node)

    def entries(self, value: Value) -> dict[str, Value]:
        """Return the entries of a mapping. Raises PipelineError if it is none, or has a name twice."""
        if not isinstance(value.node, yaml.MappingNode):
            raise value.error("it should have fields, as in `name: value`")
        found: dict[str, Value] = {}
        for key, node in value.node.value:
            place = self._place(key)
            if not isinstance(key, yaml.ScalarNode):
                raise PipelineError(f"{value.what}: a name should be text", place)
            if key.value in found:
                raise PipelineError(f"{value.what}: {key.value} is there twice".removeprefix(": "), place)
            found[key.value] = Value(f"{value.what}.{key.value}".removeprefix("."), node, place)
        return found

    def fields(self, value: Value, known: Iterable[str]) -> dict[str, Value]:
        """Return the entries of a mapping whose names are all known. Raises PipelineError."""
        entries, names = self.entries(value), list(known)
        for name, each in entries.items():
            if name not in names:
                where = f" of {value.what}" if value.what else ""
                raise PipelineError(f"{name}: there is no such field{where}{nearest(name, names)}", each.place)
        return entries

    def read(self, field: Field, value: Value) -> Any:
        """Return the value of a field of a plain type."""
        if field.type in (Type.TEXT, Type.FILE_KIND):
            text = self.text(value)
            if field.choices and text not in field.choices:
                raise value.error(f"it is {text!r}, and can be {', '.join(field.choices)}{_close(text, field.choices)}")
            return text
        if field.type is Type.TEXTS:
            return self.texts(value)
        if field.type is Type.MAP:
            return {name: self.text(each) for name, each in self.entries(value).items()}
        assert field.type in (Type.NUMBER, Type.COUNT), field.type
        return self.number(value, whole=field.type is Type.COUNT)

    def text(self, value: Value) -> str:
        if not isinstance(value.node, yaml.ScalarNode) or value.node.tag == _NULL:
            raise value.error("it should be text")
        return str(value.node.value)

    def texts(self, value: Value) -> tuple[str, ...]:
        if isinstance(value.node, yaml.SequenceNode):
            return tuple(self.text(self._value(value.what, each)) for each in value.node.value)
        return (self.text(value),)

    def number(self, value: Value, *, whole: bool = False) -> float:
        allowed = (_INT,) if whole else (_INT, _FLOAT)
        if not isinstance(value.node, yaml.ScalarNode) or value.node.tag not in allowed:
            raise value.error(f"it should be a {'whole ' if whole else ''}number")
        number = self.plain(value)
        assert isinstance(number, int | float)
        return number

    def plain(self, value: Value) -> Any:
        """Return the value as Python's dicts, lists and scalars."""
        try:
            return self._loader.construct_object(value.node, deep=True)
        except (yaml.YAMLError, ValueError, TypeError) as error:
            raise value.error(f"it cannot be read: {error}") from error

    def rows(self, value: Value) -> dict[str, tuple[Mapping[str, Any], ...]]:
        """Return lists of rows by node."""
        found = {}
        for name, each in self.entries(value).items():
            rows = self.plain(each)
            if rows is None:
                rows = []
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise each.error("it should be a list of rows, each with the values of columns by name")
            found[name] = tuple(rows)
        return found

    def is_scalar(self, value: Value) -> bool:
        return isinstance(value.node, yaml.ScalarNode)

    def _value(self, what: str, node: yaml.Node) -> Value:
        return Value(what, node, self._place(node))

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._file, node.start_mark.line + 1)


def _close(text: str, choices: Iterable[str]) -> str:
    close = nearest(text, choices)
    return close if close.startswith("; did") else ""
