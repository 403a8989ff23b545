"""Generator of `messages/generated.py`, the typed classes of all messages, from the schema text.

    python -m flowstone.wire.generate [--check]

`--check` writes nothing; the exit status says whether the module is up to date. The output is formatted as `ruff
format` would.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from flowstone.wire.schema import MESSAGES_DIRECTORY, ApiSchema, Field, Struct, load_all

LINE_LENGTH_MAX = 120
TARGET = MESSAGES_DIRECTORY / "generated.py"
_LINE_LENGTH_MAX = 120

_HEADER = '''"""Every message of the protocol as a typed class. Generated from the schema text: do not edit.

Regenerate with `python -m flowstone.wire.generate`.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.types import Bytes
from flowstone.wire.message import Message, Records
'''

_PYTHON_TYPES = {
    "bool": "bool",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "int",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "Bytes",
}


def generate_module(schemas: list[ApiSchema]) -> str:
    parts = [_HEADER]
    for schema in schemas:
        parts += ["\n\n" + "\n".join(_class_lines(struct, in_request)) for struct, in_request in schema.structs()]
    parts.append("\n\n" + "\n".join(_table_lines(schemas)))
    names = [struct.name for schema in schemas for struct, _ in schema.structs()]
    parts.append("\n__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]")
    return "".join(f"{part}\n" if not part.endswith("\n") else part for part in parts)


def _class_lines(struct: Struct, in_request: bool) -> Iterator[str]:
    yield f"class {struct.name}(Message):"
    quoted = [f'"{field.name}"' for field in struct.fields]
    one_line = f"    __slots__ = ({', '.join(quoted)}{',' if len(quoted) == 1 else ''})"
    if len(one_line) <= _LINE_LENGTH_MAX:
        yield one_line
    else:
        yield "    __slots__ = ("
        yield from (f"        {name}," for name in quoted)
        yield "    )"
    if not struct.fields:
        return
    yield ""
    yield "    def __init__("
    yield "        self,"
    yield "        *,"
    for field in struct.fields:
        yield f"        {field.name}: {_annotation(field, in_request)} = {_literal(field)},"
    yield "    ) -> None:"
    yield from (f"        self.{field.name} = {field.name}" for field in struct.fields)


def _annotation(field: Field, in_request: bool) -> str:
    if field.type == "records":
        # Decoded values are bytes; encoded ones may also be a slice of a file.
        name = "Bytes" if in_request else "Records"
    else:
        name = field.struct.name if field.struct is not None else _PYTHON_TYPES[field.type]
    if field.is_array:
        name = f"Sequence[{name}]"
    return f"{name} | None" if field.nullable is not None or field.default is None else name


def _literal(field: Field) -> str:
    if field.type == "uuid" and not field.is_array:
        return "bytes(16)"
    if isinstance(field.default, str):
        return f'"{field.default}"'
    if field.default == b"":
        return 'b""'
    return repr(field.default)


def _table_lines(schemas: list[ApiSchema]) -> Iterator[str]:
    yield "API_TABLE: tuple[tuple[int, str, int, int, int, type[Message], type[Message]], ...] = ("
    for schema in schemas:
        first, last = schema.versions.first, schema.versions.last
        names = schema.request.name, schema.response.name
        cells = [str(schema.key), f'"{schema.name}"', str(first), str(last), str(schema.flexible_from), *names]
        line = f"    ({', '.join(cells)}),"
        if len(line) <= LINE_LENGTH_MAX:
            yield line
        else:  # as the formatter writes it
            yield from ("    (", *(f"        {cell}," for cell in cells), "    ),")
    yield ")"


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the message classes from the schema text.")
    parser.add_argument("--check", action="store_true", help="only say whether the module is up to date")
    arguments = parser.parse_args()
    text = generate_module(load_all())
    if not arguments.check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET.name} is out of date: run `python -m flowstone.wire.generate`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
