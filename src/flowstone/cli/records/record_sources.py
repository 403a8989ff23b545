"""Sources of records for `flowstone produce`: lines, JSON lines, CSV or Parquet, from a file or standard input.

One record at a time is in memory (for Parquet, a batch of rows). Invalid input raises a CommandError that names the
line. The module knows no broker.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, BinaryIO

from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import encode
from flowstone.cli.common.times import TIME_MS_MAX
from flowstone.cli.records.sending import RECORD_BYTES_MAX, Header, OutgoingRecord

Records = Generator[OutgoingRecord, None, None]

FORMATS = ("lines", "jsonl", "csv", "parquet")
_SUFFIXES = {".txt": "lines", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


def format_of(path: str) -> str:
    found = _SUFFIXES.get(os.path.splitext(path)[1].lower())
    if found is None:
        raise CommandError(f"the name of {path} does not tell its format: say --format {'|'.join(FORMATS)}")
    return found


@dataclass(frozen=True)
class Fields:
    """The fields of an object that are also used as the record's key, timestamp and headers."""

    key: str | None = None
    timestamp: str | None = None
    headers: tuple[str, ...] = ()

    @property
    def are_named(self) -> bool:
        return self != Fields()


class Shape:
    """Builder of records: adds the same headers to all, and takes the `fields` from each object."""

    def __init__(self, fields: Fields, headers: list[Header]) -> None:
        self._fields, self._headers = fields, headers

    def record(self, row: Mapping[str, Any], value: bytes, where: str) -> OutgoingRecord:
        headers = [*self._headers]
        headers += [(name, _bytes(row[name])) for name in self._fields.headers if name in row]
        key = _bytes(_field(row, self._fields.key, where)) if self._fields.key is not None else None
        timestamp_ms = None
        if self._fields.timestamp is not None:
            timestamp_ms = _milliseconds(_field(row, self._fields.timestamp, where), where)
        return OutgoingRecord(value, key, headers, timestamp_ms)

    def plain(self, value: bytes, key: bytes | None) -> OutgoingRecord:
        return OutgoingRecord(value, key, self._headers)


def _field(row: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in row:
        raise CommandError(f"{where} has no field {name}")
    return row[name]


def _bytes(value: Any) -> bytes | None:
    """Return text unchanged as bytes, and any other value as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    return (value if isinstance(value, str) else encode(value)).encode()


def _milliseconds(value: Any, where: str) -> int:
    with suppress(ValueError, OverflowError):
        time_ms = -1
        if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()):
            time_ms = int(value)
        elif isinstance(value, str):
            time_ms = int(datetime.fromisoformat(value).timestamp() * 1000)
        if 0 <= time_ms <= TIME_MS_MAX:
            return time_ms
    raise CommandError(f"{where}: {value!r} is not a time: expected milliseconds since 1970, or ISO 8601")


def read_lines(file: BinaryIO, name: str, separator: bytes, shape: Shape) -> Records:
    for where, line in _numbered_lines(file, name):
        if not separator:
            yield shape.plain(line, None)
            continue
        key, found, value = line.partition(separator)
        if not found:
            raise CommandError(f"{where} has no key separator {separator.decode()!r}")
        yield shape.plain(value, key)


def read_jsonl(file: BinaryIO, name: str, shape: Shape) -> Records:
    """Yield a record per line whose value is the unchanged line; skip empty lines."""
    for where, line in _numbered_lines(file, name):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise CommandError(f"{where} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise CommandError(f"{where} is JSON, but not an object in braces")
        yield shape.record(row, line.strip(), where)


def _numbered_lines(file: BinaryIO, name: str) -> Iterator[tuple[str, bytes]]:
    number = 0
    while line := file.readline(RECORD_BYTES_MAX + 1):
        number += 1
        where = f"line {number} of {name}"
        if len(line) > RECORD_BYTES_MAX:
            raise CommandError(f"{where} is longer than {RECORD_BYTES_MAX} bytes")
        yield where, line.rstrip(b"\r\n")


def read_csv(file: BinaryIO, name: str, shape: Shape) -> Records:
    """Yield a record per row, as an object of texts; the first row names the fields."""
    csv.field_size_limit(RECORD_BYTES_MAX)
    # Otherwise the wrapper would close a file that belongs to the caller.
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        rows = csv.reader(text, strict=True)
        names = next(rows, [])
        if len(set(names)) < len(names):
            raise CommandError(f"two columns of {name} have the same name: rename one")
        for cells in rows:
            where = f"line {rows.line_num} of {name}"
            if cells and len(cells) != len(names):
                raise CommandError(f"{where} has {len(cells)} fields, the first row has {len(names)}")
            if cells:
                row = dict(zip(names, cells, strict=True))
                yield shape.record(row, encode(row).encode(), where)
    except csv.Error as error:
        raise CommandError(f"line {rows.line_num} of {name} is not CSV: {error}") from None
    except UnicodeDecodeError:
        raise CommandError(f"{name} is not UTF-8 text: convert it first") from None
    finally:
        text.detach()
