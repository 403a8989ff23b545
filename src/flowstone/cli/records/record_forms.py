"""Output formats of a consumed record: a line with columns, or a JSON object."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Message

from flowstone.cli.common.json_output import encode

COLUMNS = ("key", "offset", "partition", "timestamp", "headers")

Form = Callable[[Message], bytes]


class JsonValues:
    """Parser of values as JSON that counts invalid ones and leaves them unchanged."""

    def __init__(self) -> None:
        self.refused = 0

    def decode(self, value: bytes) -> Any:
        """Return the value parsed as JSON. Raises ValueError if it is invalid."""
        try:
            return json.loads(value)
        except ValueError:
            self.refused += 1
            raise


def line_form(columns: Sequence[str], values: JsonValues | None) -> Form:
    """Return a formatter of columns and value separated by tabs; a JSON value is indented."""

    def form(message: Message) -> bytes:
        cells = [_cell(message, column) for column in columns]
        return b"\t".join([*cells, _value(message, values)]) + b"\n"

    return form


def json_form(values: JsonValues | None) -> Form:
    """Return a formatter of one JSON object per line; bytes that are not UTF-8 are base64 under another name."""

    def form(message: Message) -> bytes:
        record: dict[str, Any] = {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": message.timestamp()[1],
            **_field("key", message.key()),
            **_json_value(message, values),
            "headers": [{"name": name, **_field("value", value)} for name, value in _headers(message)],
        }
        return encode(record).encode() + b"\n"

    return form


def _json_value(message: Message, values: JsonValues | None) -> dict[str, Any]:
    value = message.value()
    if values is not None and value is not None:
        try:
            return {"value": values.decode(as_bytes(value))}
        except ValueError as error:
            return {**_field("value", value), "value_error": f"not JSON: {error}"}
    return _field("value", value)


def _field(name: str, data: str | bytes | None) -> dict[str, str | None]:
    if not isinstance(data, bytes):
        return {name: data}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _value(message: Message, values: JsonValues | None) -> bytes:
    value = message.value()
    if values is not None and value is not None:
        try:
            return json.dumps(values.decode(as_bytes(value)), ensure_ascii=False, indent=2).encode()
        except ValueError:
            pass
    return as_bytes(value)


def _cell(message: Message, column: str) -> bytes:
    match column:
        case "key":
            return as_bytes(message.key())
        case "offset":
            return as_bytes(str(message.offset()))
        case "partition":
            return as_bytes(str(message.partition()))
        case "timestamp":
            return as_bytes(str(message.timestamp()[1]))
        case _:
            return b",".join(name.encode() + b"=" + as_bytes(value) for name, value in _headers(message))


def _headers(message: Message) -> list[tuple[str, str | bytes | None]]:
    headers = message.headers() or []
    assert isinstance(headers, list)  # as read, in whatever format they were sent
    return headers


def as_bytes(text: str | bytes | None) -> bytes:
    if text is None:
        return b"null"
    return text.encode() if isinstance(text, str) else text
